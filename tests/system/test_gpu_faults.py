"""Planted faults: whatever goes wrong under verify.py, in a program or a call, is red or `not run`, never green."""
import argparse
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock
from pathlib import Path

from harness import PROGRAM, PYTHON, ROOT, TIMEOUT, SystemTest
from test_gpu_scripts import HAS_TORCH, PARTS, VERIFY, module

parts, verify, programs = module(PARTS), module(VERIFY), module(ROOT / "scripts" / "gpu" / "programs.py")


# Time of a script that says something and then hangs: more, where a machine with other work has not even started it.
MINUTES = (0.01, 0.1, 1)
ATTEMPTS = 5


def outlives(pid, seconds=60):
    """Still runs after that long, and does not merely wait for its parent to ask how it ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.02)
    return True


def scale(path, name, factor):
    """Multiplies one f32 tensor of a safetensors file."""
    data = bytearray(path.read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    first, end = (begin + at for at in json.loads(data[8:begin])[name]["data_offsets"])
    values = struct.unpack(f"<{(end - first) // 4}f", data[first:end])
    data[first:end] = struct.pack(f"<{len(values)}f", *(factor * value for value in values))
    path.write_bytes(data)


class Planted(SystemTest):
    """A part in this process, with a script of the test's in the place of the program."""

    def call(self, script, minutes=10.0, call_minutes=60.0, device="cpu"):
        self.make_data()
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        fake = self.folder / "fake"
        fake.write_text("#!/bin/sh\nprogram=" + str(PROGRAM) + "\n" + script)
        fake.chmod(0o755)
        call = programs.Call(argparse.Namespace(device="cpu", minutes=minutes, call_minutes=call_minutes,
                                                out=self.folder / "out", data=self.folder / "data"), work)
        call.device, call.config_device, call.program = device, device, lambda name: fake
        return call

    def run_part(self, name, script, status, says, **more):
        entry = verify.run_part(name, self.call(script, **more))
        self.assertEqual(entry["status"], status, entry)
        self.assertIn(says, entry["why"])
        return entry


class ProgramFaults(Planted):
    def test_recomputation_that_differs_by_a_bit_fails(self):
        script = '''"$program" "$@" || exit
case $2 in *llama_selective*)
  cd ${2%.json} && printf '\\001' | dd of=step-00000008/model.safetensors bs=1 seek=70000 conv=notrunc 2>/dev/null;;
esac'''
        self.run_part("resume", script, "FAILED", "llama: ['selective'] ended with different weights")

    def test_resumed_run_that_restarts_fails(self):
        script = '''case $2 in *_stopped*) [ "$7" ] || rm -rf ${2%.json}/step-*;; esac
exec "$program" "$@"'''
        entry = self.run_part("resume", script, "FAILED", "expected each of 8 once")
        self.assertIn("gpt2 stopped", entry["why"])

    def test_killed_program_fails_its_part(self):
        self.run_part("backend", "kill -9 $$", "FAILED", "ended by SIGKILL")

    def test_hanging_program_is_ended_with_its_children(self):
        pid = self.folder / "pid"
        script = f"sleep 1000 & echo $! >{pid}\nwait"
        for minutes in MINUTES:
            self.run_part("backend", script, "FAILED", "did not end in time", minutes=minutes)
            if pid.exists() and pid.read_text().strip():
                break
        self.assertFalse(outlives(pid.read_text().strip()))

    def test_part_cut_off_by_the_end_of_the_call_is_not_run(self):
        with unittest.mock.patch.dict(verify.ESTIMATES, {"backend": 0}):
            self.run_part("backend", "sleep 1000", "not run", "call again with --parts rest", call_minutes=0.01)

    def test_checks_that_compare_nothing_fail(self):
        self.run_part("backend", "echo all is well", "FAILED", "compared no adamw, attention_bwd")

    def test_impossible_rates_fail(self):
        script = '"$program" "$@" | sed "s/\\"copy_bytes\\": .*/\\"copy_bytes\\": 0,/"'
        self.run_part("environment", script, "FAILED", "measured rates are not above 0")

    GPU = '''[ "$1" = devices ] && echo info: a log && echo '{"gpus": [{"problem": "%s"}], "why_no_gpu": ""}' && exit
[ "$1" = bench ] && echo '{"copy_bytes": 1, "gemm_flops": 1}' && exit
echo "athanor 1.0 commit %s"'''

    def test_program_of_another_commit_fails(self):
        self.run_part("environment", self.GPU % ("", "0123"), "FAILED", "from another commit", device="cuda")

    def test_unusable_or_undescribed_gpu_is_reported(self):
        self.run_part("environment", self.GPU % ("too old", ""), "FAILED", "no usable GPU: [{'problem': 'too old'}]",
                      device="cuda")
        with unittest.mock.patch("shutil.which", lambda *_, **__: None):
            self.run_part("environment", self.GPU % ("", "unknown"), "not run", "nvidia-smi is missing", device="cuda")
        tool = self.folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'name, clocks.sm'; echo 'a GPU, 1980'\n")
        tool.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            entry = verify.run_part("environment", self.call(self.GPU % ("", "unknown"), device="cuda"))
        self.assertEqual((entry["status"], entry["found"]["nvidia_smi"]), ("passed", "name, clocks.sm\na GPU, 1980"))

    def test_unknown_memory_total_is_not_run(self):
        script = '"$program" "$@" --set device=cpu --set runtime_reserve_mib=0'
        with unittest.mock.patch("shutil.which", lambda *_, **__: None), \
             unittest.mock.patch.object(parts.curve_parts, "gpu_config", lambda *_: (
                 parts.tiny(argparse.Namespace(train_data="", config_device="cpu"), "gpt2"), 0, 0)):
            self.run_part("memory", script, "not run", "nvidia-smi is missing", device="cuda")


    def test_model_without_enough_memory_is_not_run_and_others_are_kept(self):
        script = """case $3 in *8b*) echo "error memory: the run needs more" >&2; exit 2;; esac; echo '{"median_ms": 1}'"""
        entry = self.run_part("bench_step", script, "not run", "needs more memory than this GPU has")
        self.assertEqual(entry["found"], {"gpt2-124m": {"median_ms": 1}})


GTEST = '''exec {python} - "$@" <<'END'
import os, sys, time
filter_ = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--gtest_filter=")][0]
names = ["A.one", "A.two", "A.three"] if filter_ == "-*Parity*:*Packed*:Nccl*" else filter_.split(":")
if "--gtest_list_tests" in sys.argv:
    sys.exit(print("main()\\nA." + "".join("\\n  " + n[2:] for n in names)))
poisoned, cases = False, ""
for n in names:
    print("[ RUN      ]", n, flush=True)
    does = {does}.get(n, "passes")
    if does == "crashes":
        os.abort()
    if does == "hangs":
        time.sleep(1000)
    if does == "sticky":
        print("[  STICKY  ]", n + ": an illegal memory access", flush=True)
        sys.exit(86)
    poisoned = poisoned or does == "poisons"
    body = '<failure message="wrong"/>' if poisoned or does == "fails" else ""
    body = '<skipped message="a.cc:1&#10;no GPU for each"/>' if does == "skips" else body
    print("[       OK ]", n, "(1 ms)", flush=True)
    result = "skipped" if does == "skips" else "completed"
    cases += f'<testcase classname="A" name="{{n[2:]}}" result="{{result}}">{{body}}</testcase>'
report = [a.split(":", 1)[1] for a in sys.argv if a.startswith("--gtest_output=")][0]
open(report, "w").write(f"<a>{{cases}}</a>")
sys.exit({status} or "failure" in cases)
END'''


class TestFaults(Planted):
    """Results of GoogleTest programs."""

    def setUp(self):
        super().setUp()
        few = unittest.mock.patch.dict(programs.FEW, {("cpu", "laws"): "-*Parity*:*Packed*:Nccl*"})
        few.start()
        self.addCleanup(few.stop)

    def made(self, does, exits=0, **more):
        return self.call(GTEST.format(python=sys.executable, does=does, status=exits), **more)

    def laws(self, status, says, does, exits=0, quiet=math.inf):
        call = self.made(does, exits)
        call.quiet = quiet
        entry = verify.run_part("laws", call)
        self.assertEqual(entry["status"], status, entry)
        self.assertIn(says, entry["why"])
        return entry["why"]

    @unittest.skipUnless((ROOT / "build" / "tests" / "test_train").exists(), "the tests' programs are not built")
    def test_gradient_off_by_one_percent_fails(self):
        golden = self.folder / "tests" / "golden" / "gpt2"
        shutil.copytree(ROOT / "tests" / "golden" / "gpt2", golden)
        script = f'cd {self.folder} && exec {ROOT}/build/tests/test_train "$@"'
        with unittest.mock.patch.dict(programs.FEW, {("cpu", "parity"): "*Parity.Gradients*/gpt2"}):
            self.assertEqual(verify.run_part("parity", self.call(script))["status"], "passed")
            scale(golden / "reference.safetensors", "grad.transformer.h.1.mlp.c_fc.weight", 1.01)
            self.run_part("parity", script, "FAILED", "GradientsOfTheFirstStepMatchPyTorch/gpt2: ")

    def test_crash_fails_only_its_test(self):
        why = self.laws("FAILED", "1 of 3 tests failed", {"A.one": "crashes"})
        self.assertIn("A.one: laws1: ended by SIGABRT", why)

    def test_failures_after_a_corrupted_gpu_are_retried(self):
        why = self.laws("FAILED", "2 of 3 tests failed", {"A.one": "poisons", "A.three": "fails"})
        self.assertEqual(why.splitlines()[1:], ["A.one: wrong", "A.three: wrong"])

    def test_hang_fails_only_its_test_within_the_time_of_the_part(self):
        why = self.laws("FAILED", "1 of 3 tests failed, 2 passed", {"A.two": "hangs"}, quiet=3)
        self.assertIn("A.two: laws1: hangs: no new line for 3 s", why)

    def test_error_that_leaves_the_gpu_unusable_fails_only_its_test(self):
        why = self.laws("FAILED", "1 of 3 tests failed, 2 passed", {"A.one": "sticky"})
        self.assertIn("A.one: left the GPU unusable: an illegal memory access", why)

    def test_report_has_results_until_the_time_is_up(self):
        for minutes in MINUTES:
            entry = verify.run_part("laws", self.made({"A.three": "hangs"}, minutes=minutes))
            if entry["found"]["passed"] == 2:
                break
        self.assertEqual(entry["status"], "FAILED")
        self.assertIn("2 of 3 tests passed, then: laws1: did not end in time", entry["why"])
        self.assertEqual((entry["found"]["passed"], entry["found"]["left"]), (2, 1))

    @unittest.skipUnless((ROOT / "build" / "tests" / "unusable_gpu").exists(), "the emulated GPU is not built")
    def test_program_exits_when_a_test_leaves_the_gpu_unusable(self):
        call = self.call(f'exec {ROOT}/build/tests/unusable_gpu "$@"')
        call.quiet = 2
        tests = programs.GoogleTests(call, "made", call.program(""), "*", {"HANG": "1"})
        tests.run()
        self.assertEqual(tests.passed, {"Unusable.Before", "Unusable.After", "Hanging.After"})
        self.assertIn("left the GPU unusable: an illegal memory access", tests.failed["Unusable.Planted"])
        self.assertIn("hangs: no new line for 2 s", tests.failed["Hanging.IfAsked"])

    def test_failure_among_passing_tests_fails_the_part(self):
        self.laws("FAILED", "A.two: wrong", {"A.two": "fails"})

    def test_skipped_test_is_not_counted_as_passed(self):
        self.laws("not run", "no GPU for each (A.two)", {"A.two": "skips"})

    def test_nonzero_exit_after_passing_tests_fails(self):
        self.laws("FAILED", "all tests ended well, but the program: laws1: exit status 3", {}, exits=3)

    def test_part_without_matching_tests_is_not_run(self):
        self.run_part("laws", "echo main", "not run", "no test of fake matches")

    def test_program_that_cannot_start_fails(self):
        self.run_part("laws", "echo libcuda.so.1: cannot open shared object file; exit 127", "FAILED", "libcuda.so.1")


class SanitizerFaults(Planted):
    """Possible results of compute-sanitizer."""

    def sanitize(self, text, code, script="", minutes=1):
        call = self.call(f"cat <<'END'\n{text}\nEND\n{script}\nexit {code}", minutes=minutes)
        return parts.sanitize(call, self.folder / "fake", "memcheck")

    CLEAN = "[  PASSED  ] 9 tests.\n========= ERROR SUMMARY: 0 errors"

    def test_clean_run_passes(self):
        self.assertEqual(self.sanitize(self.CLEAN, 0), ("passed", "9 tests, ========= ERROR SUMMARY: 0 errors"))

    def test_faults_missing_summary_and_zero_tests_are_failures(self):
        for text, code in ((self.CLEAN, 9), ("[  PASSED  ] 9 tests.", 0), (self.CLEAN.replace("9", "0"), 0),
                           (self.CLEAN.replace("0 errors", "2 errors"), 0), ("========= ERROR SUMMARY: 0 errors", 0)):
            self.assertEqual(self.sanitize(text, code)[0], "FAILED", text)

    def test_device_unsupported_by_the_sanitizer_is_not_run(self):
        says = "========= Error: Device not supported. See the documentation."
        for code in (0, 255):
            self.assertEqual(self.sanitize(says, code), ("not run", says))

    def test_sanitizer_that_runs_out_of_time_is_not_run(self):
        text = "[       OK ] A.one (1 ms)"
        for said, result in ((text, ("not run", "1 tests were clean, then its time was up")),
                             (text + "\n=========     at kernel", ("FAILED",))):
            for minutes in MINUTES:
                found = self.sanitize(said, 0, "sleep 1000", minutes)
                if found[:len(result)] == result:
                    break
            self.assertEqual(found[:len(result)], result)

    def test_check_that_did_not_run_is_reported_despite_the_others(self):
        found = dict.fromkeys(parts.SANITIZER_CHECKS, ("passed", "9 tests"))
        self.assertEqual(len(parts.judge_sanitizer(found, "instead")), 4)
        with self.assertRaises(parts.NotRun):
            parts.judge_sanitizer(found | {"racecheck": ("not run", "refused")}, "instead")
        with self.assertRaises(parts.Failed):
            parts.judge_sanitizer(found | {"racecheck": ("not run", "refused"), "memcheck": ("FAILED", "x")}, "instead")


class CallFaults(SystemTest):
    """The whole script, and what may befall its calls."""

    def start(self, *arguments, **environment):
        if PROGRAM.parent != ROOT / "build":
            self.skipTest("verify.py looks for build/athanor")
        self.make_data()
        command = [sys.executable, str(VERIFY), "--device", "cpu", "--data", str(self.folder / "data"), "--out",
                   str(self.folder / "out"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=dict(os.environ, TMPDIR=str(self.folder), **environment))

    def verify(self, *arguments, code):
        process = self.start(*arguments)
        text, _ = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, code, text)
        return json.loads((self.folder / "out" / "verify.json").read_text())["parts"], text

    def test_ended_call_leaves_no_process_and_reports_no_success(self):
        (self.folder / "out").mkdir()
        report = {"commit": verify.commit(), "device": "cpu", "parts": {
            "backend": {"status": "passed", "seconds": 1.0}, "ops": {"status": "passed", "seconds": 1.0}}}
        for _ in range(ATTEMPTS):
            (self.folder / "out" / "verify.json").write_text(json.dumps(report))
            process = self.start("--parts", "backend")
            self.assertEqual(process.stdout.readline(), "backend ...\n")
            while not (running := self.children(process.pid)) and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT)
            if process.returncode != 0:
                break  # else the part was over before the signal came
        self.assertEqual(process.returncode, 143)
        self.assertFalse([pid for pid in running if outlives(pid)])
        self.assertEqual(list(self.folder.glob("athanor-verify-*")), [])
        found = json.loads((self.folder / "out" / "verify.json").read_text())["parts"]
        self.assertEqual({name: e["status"] for name, e in found.items()}, {"ops": "passed", "backend": "not run"})
        self.assertIn("the call was ended", found["backend"]["why"])

    def children(self, pid):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def test_damaged_report_of_an_earlier_call_is_ignored(self):
        good = {"commit": verify.commit(), "device": "cpu", "parts": {"ops": {"status": "passed", "seconds": 1.0}}}
        earlier = self.folder / "earlier.json"
        for text in ('{"commit": "', "[]", json.dumps(good | {"parts": {"ops": {"status": "green", "seconds": 1.0}}}),
                     json.dumps(good | {"parts": {"ops": {"status": "passed"}}}), json.dumps(good | {"parts": [1]})):
            earlier.write_text(text)
            found, printed = self.verify("--parts", "sanitizer", "--earlier", str(earlier), code=3)
            self.assertEqual(list(found), ["sanitizer"], text)
            self.assertIn("ignored, since it is no report of an earlier call", printed)
        earlier.write_text(json.dumps(good))
        found, printed = self.verify("--parts", "sanitizer", "--earlier", str(earlier), code=3)
        self.assertEqual(list(found), ["ops", "sanitizer"])
        self.assertIn("no call has asked for it", printed)

    def test_earlier_failure_is_not_hidden_by_an_older_success(self):
        report = {"commit": verify.commit(), "device": "cpu", "parts": {"ops": {"status": "passed", "seconds": 1.0}}}
        (self.folder / "earlier.json").write_text(json.dumps(report))
        report["parts"]["ops"]["status"] = "FAILED"
        (self.folder / "out").mkdir()
        (self.folder / "out" / "verify.json").write_text(json.dumps(report))
        found, _ = self.verify("--parts", "sanitizer", "--earlier", str(self.folder / "earlier.json"), code=1)
        self.assertEqual(found["ops"]["status"], "FAILED")


    def test_bundle_folder_is_sufficient(self):
        self.start("--list").communicate()
        bundle = self.folder / "athanor-gpu"
        for folder in ("scripts/gpu", "scripts/bench/gpu", "configs"):
            shutil.copytree(ROOT / folder, bundle / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(self.folder / "data", bundle / "data")
        (bundle / "athanor").symlink_to(PROGRAM)
        (bundle / "COMMIT").write_text("0123456789abcdef\n")
        tools = self.folder / "bin"  # no git, no compiler
        tools.mkdir()
        for name in ("bash", "dirname", "env"):
            (tools / name).symlink_to(shutil.which(name))
        (tools / "python3").symlink_to(sys.executable)
        done = subprocess.run([bundle / "scripts" / "gpu" / "verify.sh", "--device", "cpu", "--parts",
                               "environment,backend,laws"], cwd=self.folder, env={"PATH": str(tools)},
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        report = json.loads((self.folder / "verify-out" / "verify.json").read_text())
        self.assertEqual(report["commit"], "0123456789abcdef")
        self.assertEqual({name: e["status"] for name, e in report["parts"].items()},
                         {"environment": "passed", "backend": "passed", "laws": "not run"})
        self.assertIn("no program test_train", report["parts"]["laws"]["why"])

    def test_cuda_libraries_of_a_pytorch_installation_are_found(self):
        folder = self.folder / "venv" / "lib" / "python3.12" / "site-packages" / "nvidia" / "nccl" / "lib"
        folder.mkdir(parents=True)
        python = self.folder / "python"
        python.write_text(f"#!/bin/sh\necho {self.folder}/venv\n")
        python.chmod(0o755)
        sides = module(ROOT / "scripts" / "bench" / "gpu" / "sides.py")
        for had, has in (("", f"{folder}"), ("/a", f"/a:{folder}")):
            with unittest.mock.patch.dict(os.environ, {"VIRTUAL_ENV": "", "LD_LIBRARY_PATH": had}):
                sides.show_libraries(str(python))
                self.assertEqual((os.environ["VIRTUAL_ENV"], os.environ["LD_LIBRARY_PATH"]),
                                 (f"{self.folder}/venv", has))

    def test_on_a_gpu_no_part_falls_back_to_the_cpu(self):
        for family in ("gpt2", "llama"):
            self.assertEqual(parts.curve_parts.gpu_config(ROOT, family)[0]["device"], "cuda")


class TorchFaults(Planted):
    def test_missing_pytorch_skips_curves(self):
        with unittest.mock.patch.dict(os.environ, {"ATHANOR_PYTHON": "/nonexistent"}), \
             unittest.mock.patch("sys.executable", "/bin/false"):
            for part in ("curves_gpt2", "curves_llama"):
                self.run_part(part, "exit 1", "not run", "no PyTorch in ATHANOR_PYTHON or this Python")

    @unittest.skipUnless(HAS_TORCH, "ATHANOR_PYTHON lacks torch")
    def test_pytorch_without_a_gpu_skips_curves(self):
        with unittest.mock.patch.dict(os.environ, {"ATHANOR_PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": ""}):
            self.run_part("curves_gpt2", "exit 1", "not run", "cannot use the device", device="cuda")


if __name__ == "__main__":
    unittest.main()
