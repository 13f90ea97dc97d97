"""Runs programs for verify.py: within a part's time limit, including child processes, and records their output.

Reads GoogleTest results test by test: a crash, a hang, or an error after which the GPU is of no use costs the test that
caused it, not those after it.
"""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = 64 << 10  # characters of what one program prints: all of them together come back from the machine
QUIET = 25  # seconds without a new line after which a test on a GPU hangs
MESSAGE = 1000  # characters of a failed test's message

# What stands in for a program of the bundle on each device that is no GPU: programs of the build folder's tests.
STAND_INS = {"cpu": {"athanor": "athanor", "gpu_test_cuda": "test_ops", "gpu_test_train": "test_train"},
             "emulated": {"athanor": "athanor_emulated", "gpu_test_cuda": "test_cuda_emulated",
                          "gpu_test_train": "test_train_emulated", "gpu_test_kernels": "test_emulator_fast"}}
# Their tests that a try of the script runs.
FEW = {("cpu", "ops"): "Family/Cpu*", ("emulated", "ops"): "*Rope*", ("emulated", "kernels"): "MatrixKernel.*",
       ("cpu", "parity"): "*Parity*", ("emulated", "parity"): "*Parity*/gpt2*",
       ("cpu", "smoke"): "Family/Cpu.*", ("emulated", "smoke"): "Chain.*:Basic.FillMatchesReference",
       ("cpu", "laws"): "Engine.*:Precisions.*",
       ("emulated", "laws"): "Step.*:*Laws.RecomputationIsBitExact/gpt2_bf16_f32",
       ("cpu", "ranks"): "Ranks.ReplicatedShardsAreBitExact:Ranks.RunsAreDeterministic",
       ("emulated", "ranks"): "Nccl.*:NcclTraining.RankInvariantSumsAreBitExactOnAnyRanks"}


class WithFindings(Exception):
    """found: what a part found until then, for the report."""

    def __init__(self, message, found=None):
        super().__init__(message)
        self.found = found


class NotRun(WithFindings):
    """Why a part could not run."""


class Failed(WithFindings):
    """What a part found to be wrong."""


def end_group(process):
    """Kills a process group: a program and the processes it left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


LATE = "did not end in time"


def wait_for(process, log, seconds, quiet):
    """Empty once the process has ended; LATE after so many seconds; or that it hangs, if it wrote nothing for `quiet`."""
    end, size, written = time.monotonic() + seconds, -1, time.monotonic()
    while True:
        try:
            process.wait(max(0.01, min(end - time.monotonic(), 0.5 if quiet < seconds else seconds)))
            return ""
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if log.stat().st_size != size:
                size, written = log.stat().st_size, now
            if now >= end:
                return LATE
            if now - written >= quiet:
                return f"hangs: no new line for {quiet:.0f} s"


class Call:
    """One call of the script: where things are, how long a part may take."""

    def __init__(self, args, work, commit="unknown"):
        self.device, self.minutes, self.out, self.work = args.device, args.minutes, Path(args.out).resolve(), Path(work)
        self.train_data = f"{Path(args.data).resolve()}/text_train_*.bin"
        self.config_device = "cpu" if self.device == "cpu" else "cuda"
        self.root, self.commit = ROOT, commit
        self.out.mkdir(parents=True, exist_ok=True)
        self.call_end = time.monotonic() + 60 * args.call_minutes
        self.hurried = bool(getattr(args, "call", None))  # parts begin although they may not end
        self.quiet = QUIET if self.device == "cuda" else float("inf")  # other devices may be busy for long
        self.progress = lambda found: None  # takes what the part has found so far
        self.red = set()  # suites of tests that failed before: they run last
        self.begin_part()
        self.gpu = self.first_gpu() if self.device == "cuda" else None

    def first_gpu(self):
        """nvidia-smi's name for it, or None."""
        try:
            return self.run("gpu", ["nvidia-smi", "-L"]).splitlines()[0] if shutil.which("nvidia-smi") else None
        except Failed:
            return None

    def begin_part(self, most_seconds=float("inf")):
        end = time.monotonic() + min(60 * self.minutes, most_seconds)
        self.end, self.cut = min(end, self.call_end), self.call_end < end

    def left(self):
        return max(0.01, self.end - time.monotonic())

    def run(self, name, command, env=None, quiet=float("inf"), most_seconds=float("inf")):
        """Returns the output, whose end also goes to OUT/verify.log. A timeout or nonzero exit status is a failure, and so are
        `quiet` seconds without output."""
        command, log, why = [str(c) for c in command], self.work / f"{name}.log", ""
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True,
                                       stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})))
            try:
                why = wait_for(process, log, min(self.left(), most_seconds), quiet)
            finally:
                end_group(process)
        late, why = why == LATE and self.left() < 1, why or how_it_ended(process.returncode)
        text = log.read_text(errors="replace")
        with (self.out / "verify.log").open("a") as kept:
            kept.write(f"==== {name}: {shlex.join(command)}\n{text[-KEPT:]}\n==== {name}: {why or 'done'}\n\n")
        if late and self.cut:
            raise NotRun(f"{name} had not ended when the call's time was up: call again with --parts rest")
        if why:
            raise Failed(f"{name}: {why}\n" + "\n".join(text.splitlines()[-12:]))
        return text

    def run_json(self, name, command):
        """The JSON object that the program printed, without log lines."""
        text = self.run(name, command)
        return json.loads(text[text.find("{"):text.rfind("}") + 1])

    def program(self, name):
        folders = [ROOT, ROOT / "build", ROOT / "build" / "gpu", ROOT / "build-gpu", ROOT / "build-gpu" / "gpu"]
        if self.device in STAND_INS:
            if name not in STAND_INS[self.device]:
                raise NotRun(f"{name} needs a GPU")
            name, folders = STAND_INS[self.device][name], [ROOT, ROOT / "build", ROOT / "build" / "tests"]
        for folder in folders:
            if os.access(folder / name, os.X_OK) and (folder / name).is_file():
                return folder / name
        places = " or ".join(str(folder.relative_to(ROOT)) for folder in folders)
        raise NotRun(f"no program {name} below {ROOT} in {places}: pack with tests, or build them")

    def torch_version(self):
        """Of PyTorch in ATHANOR_PYTHON or in the Python that runs this, or None."""
        return next((version for _, version in self.torches()), None)

    def torch_python(self):
        """An interpreter whose PyTorch can use the device."""
        needs = "import torch; assert torch.cuda.is_available()" if self.device == "cuda" else "import torch"
        for python, _ in self.torches():
            try:
                self.run("torch_device", [python, "-c", needs])
                return python
            except Failed as why:
                raise NotRun(f"PyTorch of {python} cannot use the device: {why}") from why
        raise NotRun("no PyTorch in ATHANOR_PYTHON or this Python")

    def torches(self):
        for python in filter(None, (os.environ.get("ATHANOR_PYTHON"), sys.executable)):
            try:
                version = self.run("torch", [python, "-c", "import torch; print(torch.__version__)"])
            except (Failed, OSError):
                continue
            yield python, version.splitlines()[-1]

    def google_tests(self, part, name, filter_="*", env=None, may_skip="", alone=False, test_seconds=None):
        """Runs a GoogleTest program, off a GPU a few of its tests. may_skip: in reasons that are none to worry. alone: each
        test in a process of its own; test_seconds: its time on a GPU.

        Returns {tests, passed, skipped: [[name, why]], recorded: {name: values}}.
        """
        tests = GoogleTests(self, part, self.program(name), FEW.get((self.device, part), filter_), env, alone)
        tests.seconds = test_seconds if self.device == "cuda" and test_seconds else float("inf")
        cut = None
        try:
            tests.run()
        except (Failed, NotRun) as why:  # the time is up
            cut = why
        found = tests.found()
        if tests.failed:
            end = f"\n{len(tests.left())} have no result: {cut}" if cut else ""
            raise Failed(f"{len(tests.failed)} of {len(tests.names)} tests failed, {len(tests.passed)} passed\n" +
                         "\n".join(f"{test}: {why}" for test, why in tests.failed.items()) + end, found)
        if cut:
            raise type(cut)(f"{len(tests.passed)} of {len(tests.names)} tests passed, then: {cut}", found)
        missed = [test for test, why in tests.skipped.items() if not (may_skip and re.search(may_skip, why))]
        if not tests.passed:
            missed = list(tests.skipped)
        if missed:
            why = tests.skipped[missed[0]]
            raise NotRun(f"{len(missed)} of {len(tests.names)} tests of {name} were skipped: {why} ({missed[0]})", found)
        return found

    def config(self, name, **changes):
        path = self.work / f"{name}.json"
        path.write_text(json.dumps(changes, indent=1))
        return path


def how_it_ended(status):
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}" if status else ""


def suite_of(test):
    return test.rpartition(".")[0]


class GoogleTests:
    """The tests of one program that match a filter, each with a result in the end. Each suite, or each test, has a process of
    its own; suites that failed before come last."""

    def __init__(self, call, part, program, filter_, env, alone=False):
        self.call, self.part, self.program, self.filter, self.env, self.alone = call, part, program, filter_, env, alone
        self.passed, self.failed, self.skipped, self.recorded, self.runs = set(), {}, {}, {}, 0
        self.seconds = float("inf")  # of a process
        self.names = self.listed()

    def listed(self):
        text = self.call.run(f"{self.part}_list", [self.program, f"--gtest_filter={self.filter}", "--gtest_list_tests"],
                             self.env)
        names, suite = [], ""
        for line in text.splitlines():
            word = line.split("#")[0].rstrip()
            if re.fullmatch(r"[\w/]+\.", word):
                suite = word
            elif suite and re.fullmatch(r"  [\w/]+", word):
                names.append(suite + word.strip())
        if not names:
            raise NotRun(f"no test of {self.program.name} matches {self.filter}")
        return names

    def left(self):
        done = self.passed | self.skipped.keys() | self.failed.keys()
        return [name for name in self.names if name not in done]

    def found(self):
        """For the report."""
        return {"tests": self.filter, "passed": len(self.passed), "failed": self.failed,
                "skipped": [list(s) for s in self.skipped.items()], "recorded": self.recorded, "left": len(self.left())}

    def run(self):
        """Runs until every test has a result. Of those that fail in one process the first one counts, since it may have left
        the GPU unusable; the others are tried again."""
        group = (lambda name: name) if self.alone else suite_of
        for one in sorted(dict.fromkeys(map(group, self.names)), key=lambda one: one in self.call.red):
            own = [name for name in self.names if group(name) == one]
            while left := [name for name in own if name in self.left()]:
                self.run_once(left)
                if not set(left) - set(self.left()):
                    self.failed[left[0]] = "it has no result"
            self.call.progress(self.found())

    def run_once(self, left):
        self.runs += 1
        name, problem = f"{self.part}{self.runs}", None
        report, log = self.call.work / f"{name}.xml", self.call.work / f"{name}.log"
        command = [self.program, f"--gtest_filter={':'.join(left)}", f"--gtest_output=xml:{report}"]
        try:
            self.call.run(name, command, self.env, min(self.call.quiet, self.seconds), self.seconds)
        except (Failed, NotRun) as why:
            problem = str(why)
            if self.call.left() < 1 or isinstance(why, NotRun):
                self.read_log(log.read_text(errors="replace"), left, None)
                raise
        if not report.exists():  # it is written at the end
            return self.read_log(log.read_text(errors="replace"), left, problem or "the program ended without a report")
        failed = self.read_report(ElementTree.parse(report).getroot())
        if problem and not failed:
            failed = {left[-1]: f"all tests ended well, but the program: {problem}"}
            self.passed.discard(left[-1])
        for test, why in list(failed.items())[:1]:
            self.failed[test] = why

    def read_report(self, root):
        failed = {}
        for case in root.iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                failed[name] = (case.find("failure").get("message") or "").strip()[:MESSAGE]
            elif case.get("result") == "skipped":
                where, _, why = (case.find("skipped").get("message") or "").strip().partition("\n")
                self.skipped[name] = why.strip() or where
            elif case.get("result") == "completed":
                self.passed.add(name)
                if values := {p.get("name"): p.get("value") for p in case.iter("property")}:
                    self.recorded[name] = values
        return failed

    def read_log(self, text, left, problem):
        """For a program that crashed, hangs or found the GPU unusable (tests/cuda/gpu_main.cc): its current test has failed,
        those before it are done. Without a problem the time was up, and the current test has no result."""
        begun = re.findall(r"^\[ RUN      \] (\S+)$", text, re.M)
        ended = {test: word for word, test in
                 re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+),? .*\(\d+ ms\)$", text, re.M)}
        sticky = dict(re.findall(r"^\[  STICKY  \] (\S+): (.*)$", text, re.M))
        self.passed |= {test for test, word in ended.items() if word == "OK"}
        self.skipped |= {test: "see the log" for test, word in ended.items() if word == "SKIPPED"}
        self.failed |= {test: "see the log" for test, word in ended.items() if word == "FAILED"}
        if not problem:
            return
        culprits = [test for test in begun if test not in ended] or left  # none began: no other try is worth it
        self.failed |= {test: f"left the GPU unusable: {sticky[test]}\n{problem}" if test in sticky else problem
                        for test in culprits}
        self.passed -= self.failed.keys()
