#!/usr/bin/env python3
"""Runs the groups of scripts/test.sh one after the other and counts what passed, failed and was skipped.

usage: scripts/test.sh [flags]      (it installs what is missing, then starts this)
The output of each command goes to .cache/logs; its end is shown when the command fails.
"""
import argparse
import concurrent.futures
import datetime
import fnmatch
import functools
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / ".cache" / "logs"
TIMES = ROOT / "scripts" / "bench" / "results" / "tests.json"  # minutes of each group; written by --record
CI_ARCHITECTURE = "90a"  # of kernels that CI compiles; --all compiles those of all architectures
TAIL = 60  # lines of a failed group's log
CORES = len(os.sched_getaffinity(0))
AT_ONCE = min(CORES, 2)  # tests that run at the same time; many of them use several threads
LONGEST = ("train_emulated", "cuda_emulated", "train", "ops", "pipeline", "test_gpu_scripts", "test_documents", "test_plan",
           "test_tools")  # started first, in this order, so that none is left for the end

# Tests that share state between threads; the thread sanitizer runs these.
TSAN_PROGRAMS = {"cpu": "*Thread*", "data": "Loader*:Documents*:Tokenize*-DocumentsTest.TextCut*", "metrics": "*", "trainer": "*"}
# Tests that the address sanitizer leaves out: those of the harness of op cases and of the reference backend, planted
# mistakes, and numbers compared over meshes, optimizers, recipes, threads and cuts whose code other tests run.
ASAN_LEFT_OUT = {"cpu": "Attention.IsBitExactForAnyNumberOfThreadsAndRepeats",
                 "data": "FillInTheMiddle.PartsCut*:DocumentsTest.TextCut*",
                 "ops": "Harness*:CheckOps*:Reference.PassesEveryCase:Check.RefusesEveryInvalidTensor*",
                 "pipeline": "Pipeline.LossesMatchOneRank:Pipeline.TiedEmbeddings*:Pipeline.Fp8AndFp4*:Pipeline.UntiedModels*",
                 "tokenizer": "Bpe.MatchesItsDefinition:*CutsChangeNoId:Oracles.CutsOf*:Oracles.NormalizedAndStripped*",
                 "train": "MeshMatrix*:LowPrecisionOnRanks*:TensorMuon*:ContextParallelRing*:Mup*:*Mistakes*:"
                          "*FiftyStepsStayClose:*MissingSums*:*QuantizedHead*:QkClip.IsBitExactOnAnyRanks:"
                          "GatheredQuantized.IsBitExact*:GatheredQuantized.OtherRecipes*:"
                          "Ranks.LossesMatchOneRank:Ranks.EveryOptimizer*:Ranks.RankInvariantSums*:Ranks.WeightAverages*:"
                          "Ranks.Bf16GradientsMatchOneRank:Ranks.OptimizersSupportBf16*:Ranks.SplitMasters*:"
                          "TensorParallel.LossesAndNorms*:TensorParallel.ReplicatedKvHeadsMatchOneRank:"
                          "TensorParallel.AveragesMatchOneRank:TensorParallel.Every*:TensorParallel.LoadsOnlyItsShard:"
                          "TensorParallel.InitialWeights*:SequenceParallel.LossesAndNorms*:"
                          "ContextParallel.LossesAndNorms*:ContextParallel.EveryFamily*:SourceLosses.DoNotDepend*:"
                          "StochasticDepth.MatchesOneRank:HiddenDropout.MatchesOneRank:OneBit.LossStays*:"
                          "MatrixOwners.TrafficMatches*:Offload.IsBitExactForEveryOptimizer:Ranks.EveryPrecision*:"
                          "Matrix.RecomputationAndThreads*:TensorParallel.RecomputationAndRepetition*:"
                          "ContextParallel.RepeatsAndRecomputes*:Recipes/LowPrecision.IsBitExact*:"
                          "Recipes/LowPrecision.FollowsTheBf16LossCurve*:Distillation.TeacherMayHaveAnotherWindow*:"
                          "Distillation.LossOfCachedLogits*"}
# Tests of whole steps that the emulated GPU leaves out but in the long run: families and types whose layers and kernels
# other cases have, and ten steps of families whose gradients of the first step are compared.
LAWS_LEFT_OUT = ("gpt2_tf32_f32", "gpt2_bf16_f32", "gpt2_bf16_bf16", "gpt2_fp16_f32", "llama_fp32_f32", "llama_bf16_f32",
                 "qwen3_bf16_f32", "qwen2_fp16_f32", "mistral_fp32_f32", "mixtral_fp32_f32", "qwen2_moe_bf16_f32",
                 "qwen3_moe_bf16_i16", "qwen3_bf16_i16_gradients_bf16")
STEPS_LEFT_OUT = ("llama", "llama3", "qwen2", "mistral", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
                  "deepseek_v3", "gpt_oss", "nanochat", "gated", "sinks")
EMULATED_LEFT_OUT = {"train_emulated": ":".join([f"Families/Laws.*/{case}" for case in LAWS_LEFT_OUT] +
                                                [f"Golden/Parity.TenStepsMatchPyTorch/{case}"
                                                 for case in STEPS_LEFT_OUT])}
ASAN_ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
                    "UBSAN_OPTIONS": "print_stacktrace=1"}
NO_LEAK_SEARCH = "LeakSanitizer has encountered a fatal error"  # a failure of the search, not a leak
# System tests that show the main path to a user: train, stop, resume, evaluate, sample, convert, refuse bad input.
ESSENTIAL = ("test_configs", "test_convert", "test_refusals", "test_resume", "test_report")
FUZZ_SEEDS = {  # inputs that reach deep at once
    "config_fuzz": ["configs/*.json"],
    "image_fuzz": ["tests/data/fixtures/pictures/*.*g", "tests/data/fixtures/pictures/*.p?m"],
    "parquet_fuzz": ["tests/data/fixtures/*.parquet"],
    "shard_fuzz": ["data/fixtures/*.bin", "data/fixtures/*.npy"],
    "side_files_fuzz": ["data/fixtures/*.idx", "data/fixtures/*.ds.*"],
    "tokenizer_fuzz": ["tests/tokenizer/fixtures/*.json", "tests/tokenizer/fixtures/*.tiktoken",
                       "tests/tokenizer/fixtures/sentencepiece/pieces.json"],
    "sentencepiece_fuzz": ["tests/tokenizer/fixtures/sentencepiece/*.model"],
    "safetensors_fuzz": ["tests/golden/*/model.safetensors"],
}
FUZZ_SEED_BYTES = 1 << 16


@dataclass
class Result:
    """What a group found. A failure has a name and a log; a skip has a name and a reason."""
    passed: int = 0
    failures: list = field(default_factory=list)
    skips: list = field(default_factory=list)
    seconds: float = 0.0

    def add(self, name, ok):
        if ok:
            self.passed += 1
        else:
            self.failures.append(name)

    def merge(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips


def parts_of_verify(path):
    """Parts of scripts/gpu/verify.py as tests: those that did not run are skipped, with their reason."""
    result = Result()
    try:
        parts = json.loads(path.read_text())["parts"]
    except (OSError, ValueError):
        result.failures.append("gpu: verify.py ended without a report")
        return result
    for name, entry in parts.items():
        if entry["status"] == "not run":
            result.skips.append([f"gpu: {name}", entry["why"].splitlines()[0]])
        else:
            result.add(f"gpu: {name}", entry["status"] == "passed")
    return result


class Runner:
    def __init__(self, args):
        self.args = args
        self.console = threading.Lock()
        self.build = Path(args.build_dir).resolve()
        self.temporary = Path(tempfile.mkdtemp(prefix="athanor-tests-"))
        self.everything = args.ci or args.all
        python = ROOT / ".cache" / "python" / "bin" / "python"  # of scripts/setup.sh --tests
        self.environment = dict({"ATHANOR_PYTHON": str(python)} if python.exists() else {}, **os.environ)

    def call(self, name, command, timeout=1800, env=None):
        """Runs a command with its output in a log; shows the log's end if it fails. Returns whether it succeeded."""
        log = LOGS / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                       stdin=subprocess.DEVNULL, env=dict(self.environment, **(env or {})))
            try:
                code = self.wait(process, name, log, timeout)
                why = f"exit status {code}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code, why = -1, f"still running after {timeout} s"
        if code != 0:
            lines = log.read_text(errors="replace").splitlines()
            with self.console:
                print(f"  {name}: {why}; the end of {os.path.relpath(log, ROOT)}:")
                print("\n".join("    " + line for line in lines[-TAIL:]), flush=True)
        return code == 0

    def wait(self, process, name, log, timeout):
        """Exit status. On a terminal one line shows the command, its time and the last line of its log."""
        if not sys.stdout.isatty():
            return process.wait(timeout)
        begin = time.monotonic()
        try:
            while True:
                try:
                    return process.wait(0.5)
                except subprocess.TimeoutExpired:
                    passed = time.monotonic() - begin
                    if passed > timeout:
                        raise
                    last = (log.read_text(errors="replace").rstrip().splitlines() or [""])[-1]
                    line = f"   {name}  {passed:.0f} s  {last}"
                    with self.console:
                        print("\r\033[K" + line[:shutil.get_terminal_size().columns - 1], end="", flush=True)
        finally:
            with self.console:
                print("\r\033[K", end="", flush=True)

    def together(self, tasks):
        """Runs functions that return a Result, AT_ONCE of them at the same time; their sum, in the order of the tasks."""
        result = Result()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for part in pool.map(lambda task: task(), tasks):
                result.merge(part)
        return result

    def one(self, name, command, **named):
        result = Result()
        result.add(name, self.call(name, command, **named))
        return result

    def build_with(self, name, *flags):
        return self.one(f"build {name}".strip().replace(" ", "-"),
                        [ROOT / "scripts" / "build.sh", "--unity", "--jobs", self.args.jobs, *flags], timeout=5400)

    def variant(self, name):
        return self.build.with_name(f"{self.build.name}-{name}")

    # ---- GoogleTest programs

    def test_programs(self, build):
        return sorted(p for p in (build / "tests").glob("test_*") if os.access(p, os.X_OK) and p.is_file())

    def run_googletest(self, program, label, filter="*", timeout=1800, env=None):
        result, report = Result(), self.temporary / f"{label}-{program.name}.json"
        command = [program, f"--gtest_output=json:{report}", f"--gtest_filter={filter}"]
        ok = self.call(f"{label}-{program.name}", command, timeout, env)
        try:
            suites = json.loads(report.read_text())["testsuites"]
        except (OSError, ValueError):
            result.failures.append(f"{label}: {program.name} ended without a report")
            return result
        for suite in suites:
            for case in suite["testsuite"]:
                name = f"{label}: {program.name} {suite['name']}.{case['name']}"
                if case.get("failures"):
                    result.failures.append(name)
                elif case.get("result") == "SKIPPED" or case.get("status") == "NOTRUN":
                    result.skips.append([name, skip_reason(LOGS / f"{label}-{program.name}.log")])
                else:
                    result.passed += 1
        if not suites or result.passed + len(result.failures) + len(result.skips) == 0:
            result.failures.append(f"{label}: {program.name} has no test (filter {filter})")
        if not ok and not result.failures:  # a sanitizer's report at exit, a crash of a foreign library's destructor
            self.judge_end(result, program, label, command, timeout, env)
        return result

    def judge_end(self, result, program, label, command, timeout, env):
        """Of a program whose tests pass, but which fails at its end: a second run decides, unless all is wanted (--all).
        A leak search that ends with an error of its own has found nothing: it reads all that other libraries have mapped,
        and cannot read every mapping on every machine. It is said as a skip, and the program must end well without it."""
        name = f"{label}: {program.name} failed at its end: {cause(LOGS / f'{label}-{program.name}.log')}"
        again = f"{label}-{program.name}-again"
        if not self.args.all and self.call(again, command, timeout, env):
            result.skips.append([name, "seen once, and not in a second run"])
        elif NO_LEAK_SEARCH in name and self.call(
                again, command, timeout, dict(env or {}, ASAN_OPTIONS=ASAN_ENVIRONMENT["ASAN_OPTIONS"] + ":detect_leaks=0")):
            result.skips.append([name, "its memory was not searched for leaks"])
        else:
            result.failures.append(name)

    def run_programs(self, build, label, chosen=None, left_out={}, **named):
        """chosen: filters of the programs that run, otherwise all run; left_out: patterns of tests that do not."""
        programs = {program.name.removeprefix("test_"): program for program in self.test_programs(build)}
        if not programs:
            return Result(failures=[f"{label}: no test programs in {build}"])
        filters = chosen or dict.fromkeys(programs, "*")
        order = sorted((n for n in filters if n in programs), key=longest_first)
        result = self.together([functools.partial(self.run_googletest, programs[n], label,
                                                  f"-{left_out[n]}" if n in left_out else filters[n], **named) for n in order])
        for name in left_out.keys() & programs.keys():
            result.failures += [f"{label}: {name} has no test {pattern}, which is to be left out"
                                for pattern in unmatched(programs[name], left_out[name])]
        return result

    # ---- groups

    def format(self):
        return self.one("format", [ROOT / "scripts" / "format.sh", "--check"])

    def layers(self):
        result = self.one("layers", [ROOT / "scripts" / "check_layers.py"])
        result.merge(self.one("words", [ROOT / "scripts" / "check_words.py"]))
        return result

    def build_all(self):
        wanted = self.everything or self.args.only or gpu_found() or list((self.build / "cuda").glob("*.o"))
        architecture = () if wanted else ("--cuda-arch", "off")
        if self.args.ci and not gpu_found():
            architecture = ("--cuda-arch", CI_ARCHITECTURE)
        return self.build_with("", "--tests", "--build-dir", self.build, *architecture)

    def unit(self):
        if self.args.all:
            result = self.run_programs(self.build, "unit", timeout=3 * 3600, env={"ATHANOR_FULL": "1"})
        else:
            result = self.run_programs(self.build, "unit", left_out=EMULATED_LEFT_OUT)
        if not list((self.build / "tests").glob("test_emulator_*")):
            why = "the build found no headers of CUDA, cuDNN and NCCL" if self.everything else "--ci builds and runs them"
            result.skips.append(["unit: kernels on the emulated GPU", why])
        return result

    def tidy(self):
        report = self.temporary / "tidy.json"
        self.call("tidy", [ROOT / "scripts" / "tidy.py", "--build-dir", self.build, "--jobs", self.args.jobs, "--json",
                           report], timeout=7200)
        return self.read_report(report, "tidy")

    def asan(self):
        build = self.variant("asan")
        result = self.build_with("asan", "--asan", "--tests", "--target", "tests", "--build-dir", build)
        if not result.failures:
            left_out = {} if self.args.all else ASAN_LEFT_OUT
            result.merge(self.run_programs(build, "asan", left_out=left_out, env=ASAN_ENVIRONMENT))
        if self.args.all and not result.failures:
            result.merge(self.build_with("asan program", "--asan", "--build-dir", build))
            result.merge(self.run_system("system-asan", build / "athanor", 1, env=ASAN_ENVIRONMENT))
        return result

    def tsan(self):
        build = self.variant("tsan")
        targets = [part for name in TSAN_PROGRAMS for part in ("--target", f"test_{name}")]
        result = self.build_with("tsan", "--tsan", "--tests", "--build-dir", build, *targets)
        if not result.failures:
            result.merge(self.run_programs(build, "tsan", TSAN_PROGRAMS,
                                           env={"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}))
        return result

    def fuzz(self):
        build = self.variant("fuzz")
        result = self.build_with("fuzz", "--fuzzers", "--build-dir", build)
        seconds = 60 if self.args.all else 10
        targets = sorted((build / "fuzz").glob("*_fuzz"))
        if not targets:
            result.failures.append("fuzz: no targets")
        tasks = []
        for target in targets:
            corpus = self.temporary / target.name
            corpus.mkdir()
            for pattern in FUZZ_SEEDS.get(target.name, []):
                for seed in ROOT.glob(pattern):
                    name = "-".join(seed.relative_to(ROOT).parts)
                    (corpus / name).write_bytes(seed.read_bytes()[:FUZZ_SEED_BYTES])
            found = ROOT / ".cache" / "fuzz-findings"
            found.mkdir(parents=True, exist_ok=True)
            tasks.append(functools.partial(self.one, target.name, [target, f"-max_total_time={seconds}", "-timeout=120",
                                                                   "-rss_limit_mb=2048",
                                                                   f"-artifact_prefix={found}/{target.name}-", corpus],
                                           timeout=seconds + 1200))
        result.merge(self.together(tasks))
        return result

    def mutants(self):
        report = self.temporary / "mutants.json"
        self.call("mutants", [ROOT / "scripts" / "mutate.py", "--count", 32, "--jobs", self.args.jobs, "--json", report],
                  timeout=7200)
        return self.read_report(report, "mutants")

    def kernel_mutants(self):
        report = self.temporary / "kernel-mutants.json"
        if not (self.build / "tests" / "test_cuda_emulated").exists():
            return Result(skips=[["kernel mutants", "the build found no headers of CUDA, cuDNN and NCCL"]])
        self.call("kernel-mutants", [ROOT / "scripts" / "mutate_kernels.py", "--build-dir", self.build, "--jobs",
                                     self.args.jobs, "--json", report], timeout=4 * 3600)
        return self.read_report(report, "kernel mutants")

    def no_cuda(self):
        build = self.variant("no-cuda")
        targets = [part for name in ("athanor", "test_cuda_libraries") for part in ("--target", name)]
        result = self.build_with("no-cuda", "--cuda-arch", "off", "--tests", "--build-dir", build, *targets)
        if not result.failures:
            result.merge(self.run_programs(build, "no-cuda", {"cuda_libraries": "*"}))
            result.merge(self.one("no-cuda-program", [build / "athanor", "--version"]))
        return result

    def architectures(self):
        if not list((self.build / "cuda").glob("*.o")):
            return Result(skips=[["architectures", "the build has no CUDA backend (no nvcc, or no headers)"]])
        return self.build_with("architectures", "--cuda-arch", "all", "--build-dir", self.variant("architectures"),
                               "--target", "athanor_cuda_backend")

    def system(self):
        names = ESSENTIAL if not self.everything and not self.args.only else \
            sorted(path.stem for path in (ROOT / "tests" / "system").glob("test_*.py"))
        repeat = 3 if self.args.all else 1
        return self.together([functools.partial(self.run_system, f"system-{name}", self.build / "athanor", repeat, names=(name,))
                              for name in sorted(names, key=longest_first)])

    def ranks(self):
        return self.run_system("ranks", self.build / "athanor", 3 if self.args.all else 1, folder="ranks")

    def run_system(self, name, program, repeat, env=None, folder="system", names=()):
        report = self.temporary / f"{name}.json"
        self.call(name, [sys.executable, ROOT / "tests" / "system" / "run.py", "--folder", ROOT / "tests" / folder, "--program",
                         program, "--repeat", repeat, "--json", report, *names], timeout=3600, env=env)
        return self.read_report(report, name)

    def hostile(self):
        """In CI always the same scenarios, as far as the time allows; otherwise others each day. What depends on the
        moment and is not seen again is told, but fails only the long run."""
        seconds, seed, most = (7200, int(time.time()) // 86400, 0) if self.args.all else (180, 1, 150)
        report = self.temporary / "hostile.json"
        self.call("hostile", [sys.executable, ROOT / "tests" / "hostile" / "hostile.py", "--program", self.build / "athanor",
                              "--seconds", seconds, "--seed", seed, "--scenarios", most, "--json", report],
                  timeout=seconds + 1800)
        result = Result()
        try:
            found = json.loads(report.read_text())
        except (OSError, ValueError):
            result.failures.append("hostile ended without a report")
            return result
        for v in found["violations"]:
            name = f"hostile: {v['rule']} (scenario {v['number']} of seed {seed})"
            if v["again"] or self.args.all:
                result.failures.append(name)
            else:
                result.skips.append([name, "seen once, and not in a second play"])
        result.passed += found["scenarios"] - len(found["violations"])
        result.skips += [["hostile: scenarios", why] for why in found["left_out"]]
        return result

    def quickstart(self):
        return self.one("quickstart", [ROOT / "scripts" / "quickstart.sh", "--short", "--program",
                                       self.build / "athanor", "--run", self.temporary / "quickstart"])

    def kernels(self):
        log = LOGS / "kernels.log"
        result = self.one("kernels", [ROOT / "scripts" / "check_kernels.py", "--build-dir", self.build])
        if (text := log.read_text()).startswith("skipped: "):
            return Result(skips=[["kernels: budget of compiled kernels", text.removeprefix("skipped: ").strip()]])
        return result

    def gpu(self):
        """The programs for a GPU are built wherever nvcc is, and run where a GPU is."""
        if not list((self.build / "cuda").glob("*.o")):
            return Result(skips=[["gpu: tests on a GPU", "the build has no CUDA backend (no nvcc, or no headers)"]])
        result = self.build_with("gpu tests", "--build-dir", self.build, "--target", "gpu_tests")
        if not gpu_found():
            result.skips.append(["gpu: tests on a GPU", "no GPU here; their programs were built"])
            return result
        data, out = self.temporary / "verify-data", self.temporary / "verify"
        result.merge(self.one("gpu-data", [self.build / "athanor", "tokenize", "--input", ROOT / "README.md",
                                           "--output-prefix", data / "text"]))
        self.call("gpu", [ROOT / "scripts" / "gpu" / "verify.sh", "--data", data, "--out", out], timeout=7200)
        result.merge(parts_of_verify(out / "verify.json"))
        return result

    def read_report(self, path, name):
        result = Result()
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            result.failures.append(f"{name} ended without a report")
            return result
        result.passed += report["passed"]
        result.failures += [f"{name}: {failure}" for failure in report["failures"]]
        result.skips += report.get("skips", [])
        return result


def longest_first(name):
    return LONGEST.index(name) if name in LONGEST else len(LONGEST), name


def unmatched(program, patterns):
    """Those of GoogleTest's patterns that match none of a program's tests."""
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    names, suite = [], ""
    for line in listed.splitlines():
        if line.startswith(" "):
            names.append(suite + line.split("#")[0].strip())
        elif line:
            suite = line.split("#")[0].strip()
    return [p for p in patterns.split(":") if not fnmatch.filter(names, p)]


def gpu_found():
    return bool(shutil.which("nvidia-smi")) and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0


def skip_reason(log):
    """GoogleTest's report does not have the reasons of skips; its output does, in the line before the verdict."""
    lines = log.read_text(errors="replace").splitlines()
    reasons = [lines[i - 1].strip() for i, line in enumerate(lines) if line.startswith("[  SKIPPED ]") and i > 0]
    return reasons[0] if reasons else "no reason given"


def cause(log):
    """The line of a log that says best why the program ended: a sanitizer's headline, or the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    headlines = [line for line in lines if "Sanitizer" in line or "runtime error:" in line or "Tracer caught" in line]
    return " ".join(headlines[:2]) or (lines[-1] if lines else "no output")


GROUPS = {  # name -> (method, what it does)
    "format": (Runner.format, "C++ files are formatted"),
    "layers": (Runner.layers, "folders include only what they may; no retired words"),
    "build": (Runner.build_all, "program and tests compile without a warning"),
    "unit": (Runner.unit, "all GoogleTest programs"),
    "tidy": (Runner.tidy, "clang-tidy over src/ and tests/emulator"),
    "asan": (Runner.asan, "unit tests with address and undefined-behaviour sanitizers"),
    "tsan": (Runner.tsan, "tests of threads with the thread sanitizer"),
    "fuzz": (Runner.fuzz, "each fuzz target for a while"),
    "mutants": (Runner.mutants, "planted mistakes, each of which a test must notice (--all only)"),
    "kernel-mutants": (Runner.kernel_mutants, "each synchronising call of the CUDA kernels deleted (--all only)"),
    "architectures": (Runner.architectures, "kernels for all GPU architectures compile without a warning (--all only)"),
    "no-cuda": (Runner.no_cuda, "a program built without CUDA"),
    "system": (Runner.system, "the built program: resume, faults, refusals, shipped configurations"),
    "ranks": (Runner.ranks, "several processes as one run: launchers, Slurm, MPI, failures, networks"),
    "hostile": (Runner.hostile, "a hostile user for three minutes; with --all for two hours"),
    "quickstart": (Runner.quickstart, "the quick start, shortened"),
    "kernels": (Runner.kernels, "registers, spills and instructions of the compiled kernels"),
    "gpu": (Runner.gpu, "tests on a GPU"),
}
FAST = ("format", "layers", "build", "unit")
USER = ("build", "unit", "system")
LONG = ("mutants", "kernel-mutants", "architectures")


def run_groups(runner, names):
    results = {}
    usual = usual_minutes()
    for i, name in enumerate(names):
        left = sum(usual.get(n, 0) for n in names[i:])
        print(f"== [{i + 1}/{len(names)}] {name}: {GROUPS[name][1]}" +
              (f" (about {left:.0f} min left in all)" if left else ""), flush=True)
        begin = time.monotonic()
        result = GROUPS[name][0](runner)
        result.seconds = time.monotonic() - begin
        results[name] = result
        print(f"   {result.passed} passed, {len(result.failures)} failed, {len(result.skips)} skipped in "
              f"{result.seconds / 60:.1f} min", flush=True)
        if name == "build" and result.failures:
            print("   nothing can be tested without a build")
            break
    return results


def recorded_groups():
    """From empty caches on two cores, as last recorded."""
    try:
        return json.loads(TIMES.read_text())["groups"]
    except (OSError, ValueError, KeyError):
        return {}


def usual_minutes():
    return {name: group["minutes"] for name, group in recorded_groups().items()}


def describe():
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "commit": commit, "cpu": model,
            "cores": CORES, "system": platform.platform()}


def write_results(path, results, kept={}):
    """kept: groups of an earlier record, which stay where they did not run now."""
    groups = kept | {name: {"minutes": round(r.seconds / 60, 2), "passed": r.passed, "failed": len(r.failures),
                     "skipped": len(r.skips), "failures": r.failures, "skips": r.skips} for name, r in results.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**describe(), "groups": groups}, indent=1) + "\n")


def report(results, stopped_early):
    """Prints minutes per group, every failure and skip, and the line of the sum, which is the last one."""
    print("\nminutes  passed  failed  skipped")
    for name, r in results.items():
        print(f"{r.seconds / 60:7.1f} {r.passed:7} {len(r.failures):7} {len(r.skips):8}  {name}")
    failures = [f for r in results.values() for f in r.failures]
    skips = [s for r in results.values() for s in r.skips]
    for why, named in itertools.groupby(sorted(skips, key=lambda s: s[1]), key=lambda s: s[1]):
        named = [name for name, _ in named]
        print(f"skipped: {', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}: {why}")
    for name in failures:
        print(f"FAILED: {name}")
    passed = sum(r.passed for r in results.values())
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped", flush=True)
    return 0 if not failures and passed > 0 and not stopped_early else 1


def main():
    parser = argparse.ArgumentParser(prog="scripts/test.sh")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--check-names", action="store_true", help=argparse.SUPPRESS)  # runs nothing
    parser.add_argument("--jobs", type=int, default=CORES)
    parser.add_argument("--build-dir", default=str(ROOT / "build"))
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{name:15} {what}" for name, (_, what) in GROUPS.items()))
        return 0
    names = [n for n in args.only.split(",") if n] or (
        FAST if args.fast else [n for n in GROUPS if args.all or n not in LONG] if args.all or args.ci else USER)
    for name in names:
        if name not in GROUPS:
            parser.error(f"--only {name}: no such group; there are {', '.join(GROUPS)}")
    if args.check_names:
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    runner = Runner(args)
    try:
        results = run_groups(runner, names)
    finally:
        shutil.rmtree(runner.temporary, ignore_errors=True)
    write_results(ROOT / ".cache" / "test-results.json", results)
    if args.record:
        write_results(TIMES, results, kept=recorded_groups())
    return report(results, stopped_early=len(results) < len(names))


if __name__ == "__main__":
    sys.exit(main())
