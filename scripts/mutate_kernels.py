#!/usr/bin/env python3
"""Deletes each synchronising call of the kernels in turn and asks whether the tests on the emulated GPU notice.

usage: mutate_kernels.py [--build-dir DIR] [--only TEXT] [--jobs N] [--list] [--json FILE]
Sources, found by themselves, and the tests that a mutant of each runs:
  src/cuda/NAME.cu          the suites of tests/cuda/NAME_test.cc, or of the file of its family: attention/forward.cu goes
                            with attention_test.cc. A kernel without such a file runs all of test_cuda_emulated.
  src/cuda/NAME.h           those of the kernels that include it, one kernel after the other until one notices
  tests/emulator/tests/*_kernel_test.cc   the suites in it, without the planted bugs
Suites of budgets and tests named *HundredSeeds* are left out. DIR must hold a build of test_cuda_emulated and
test_emulator_check, made with ninja. What goes unnoticed must be listed, with the reason, in
scripts/mutants_explained.txt; and 95 % must be noticed. --json writes {"passed", "failures", "skips"}.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "scripts" / "mutants_explained.txt"
LEAST_NOTICED = 0.95
TIMEOUT = 300  # seconds of one mutant's tests
CALL = re.compile(
    r"(?<![\w:])(?:emu::)?"
    r"(__syncthreads|__syncwarp|__threadfence|grid_wait<B>|ptx::(?:"
    r"cp_async_(?:wait|commit)|bar_(?:sync|arrive)|mbar_\w+|fence_\w+|wgmma_(?:fence|wait|commit)|bulk_(?:wait|wait_read|commit)"
    r"|griddep_wait|cluster_(?:sync|arrive|wait)|registers_\w+))"
    r"(?:<(?:[^<>;]|<[^<>;]*>)*>)?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);")


INCLUDE = re.compile(r'^\s*#\s*include\s*"(cuda/[^"]+)"', re.M)


@dataclass
class Mutant:
    source: Path
    compiled: list  # the sources that it changes: itself, or the kernels that include a header
    program: str
    start: int
    end: int
    text: str  # the call
    line: str  # its source line, spaces normalised
    number: int

    @property
    def name(self):
        return f"{self.source.relative_to(ROOT)}:{self.number}"


def mutants_of(source, compiled, program):
    text = source.read_text()
    body = text
    for match in CALL.finditer(body):
        start = body.rfind("\n", 0, match.start()) + 1
        end = body.find("\n", match.end())
        line = " ".join(body[start:end].split())
        if line.startswith(("//", "#", "__device__", "__global__", "inline")):
            continue
        yield Mutant(source, compiled, program, match.start(), match.end(), match.group(0), line,
                     body.count("\n", 0, match.start()) + 1)


def headers_of(source, seen):
    """Headers of src/cuda that a source includes, directly or not."""
    for name in INCLUDE.findall(source.read_text()):
        header = ROOT / "src" / name
        if header.exists() and header not in seen:
            seen.add(header)
            headers_of(header, seen)
    return seen


def all_mutants():
    found = []
    kernels = sorted((ROOT / "src" / "cuda").rglob("*.cu"))
    includes = {kernel: headers_of(kernel, set()) for kernel in kernels}
    for kernel in kernels:
        found += mutants_of(kernel, [kernel], "test_cuda_emulated")
    for header in sorted(h for h in (ROOT / "src" / "cuda").rglob("*.h") if h.parent.name != "host"):
        if header.name.startswith("ptx"):  # the instructions themselves
            continue
        found += mutants_of(header, [k for k in kernels if header in includes[k]], "test_cuda_emulated")
    for source in sorted((ROOT / "tests" / "emulator" / "tests").glob("*_kernel_test.cc")):
        found += mutants_of(source, [source], "test_emulator_check")
    return found


def read_explained():
    """(file, source line) -> reason. Lines of the list: file | source line | reason."""
    explained = {}
    for line in EXPLAINED.read_text().splitlines():
        if line and not line.startswith("#"):
            file, code, reason = (part.strip() for part in line.split(" | ", 2))
            explained[file, code] = reason
    return explained


class Builder:
    """Knows how the build compiles a source and links a program, from ninja itself."""

    def __init__(self, build):
        self.build = build
        self.commands = {}

    def of(self, program):
        if program not in self.commands:
            out = subprocess.run(["ninja", "-C", self.build, "-t", "commands", program], check=True, text=True,
                                 capture_output=True).stdout
            self.commands[program] = out.splitlines()
        return self.commands[program]

    def compile_command(self, source, program):
        """The last one: of the check variant where a source is built twice."""
        for command in reversed(self.of(program)):
            words = shlex.split(command)
            if str(source) in words and "-c" in words:
                return without_dependencies(words)
        sys.exit(f"mutate_kernels: {self.build} does not build {source}; configure it with CUDA's headers")

    def link_command(self, mutant, original_object, new_object):
        command = self.of(mutant.program)[-1]
        words = shlex.split(command.replace("&& :", "").replace(": &&", "").strip())
        if original_object in words:
            return [new_object if w == original_object else w for w in words]
        first_archive = next(i for i, w in enumerate(words) if w.endswith(".a"))
        return words[:first_archive] + [new_object] + words[first_archive:]  # found before the archive's member


def without_dependencies(words):
    """Drops -MD, -MT x and -MF x."""
    kept, skip = [], False
    for w in words:
        if skip:
            skip = False
        elif w in ("-MT", "-MF"):
            skip = True
        elif w != "-MD":
            kept.append(w)
    return kept


def tests_of(kernel):
    """The file with the tests of src/cuda/a/b_c.cu: b_c_test.cc, a_b_c_test.cc, a_b_test.cc or a_test.cc; none means all of
    the program."""
    words = "_".join(kernel.relative_to(ROOT / "src" / "cuda").with_suffix("").parts).split("_")
    names = [kernel.stem, *("_".join(words[:n]) for n in range(len(words), 0, -1))]
    return next((f for n in names if (f := ROOT / "tests" / "cuda" / f"{n}_test.cc").exists()), None)


def gtest_filter(source):
    """The tests of a source that hold for sound kernels, the long ones left out."""
    tests = tests_of(source) if source.suffix == ".cu" else source
    suites = {"*"} if tests is None else set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", tests.read_text(), re.M))
    kept = sorted(s for s in suites if s != "PlantedBug" and not s.endswith("Budget"))
    return ":".join(f"{s}.*" for s in kept) + "-*HundredSeeds*:*Budget.*"


def run_tests(program, source):
    """What noticed the mutant, or an empty string."""
    try:
        done = subprocess.run([program, f"--gtest_filter={gtest_filter(source)}", "--gtest_fail_fast"], cwd=ROOT,
                              capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    fault = re.search(r"(race|out of bounds|misaligned|uninitialised|async copy in flight|deadlock|barrier|warp|mbarrier"
                      r"|proxy fence|configuration): [^\n]{0,100}", done.stdout)
    return fault.group(0) if fault else "wrong numbers" if done.returncode > 0 else "crash"


def run_mutant(builder, mutant, source, folder):
    """Compiles `source` with the mutant in it, links, tests: what noticed it, or an empty string."""
    text = mutant.source.read_text()
    changed = folder / "include" / mutant.source.relative_to(ROOT / "src") if mutant.source != source else (
        folder / source.name)
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(text[:mutant.start] + "(void)0;" + text[mutant.end:])
    words = builder.compile_command(source, mutant.program)
    original = words[words.index("-o") + 1]
    new_object, program = str(folder / "mutant.o"), folder / "mutant"
    words[words.index("-o") + 1] = new_object
    if mutant.source == source:
        words = [str(changed) if w == str(source) else w for w in words]
    else:
        words.insert(next(i for i, w in enumerate(words) if w.startswith("-I")), f"-I{folder / 'include'}")
    subprocess.run(words + ["-w"], cwd=builder.build, check=True)
    words = builder.link_command(mutant, original, new_object)
    words[words.index("-o") + 1] = str(program)
    subprocess.run(words, cwd=builder.build, check=True)
    return run_tests(program, source)


def examine(builder, mutant):
    for source in mutant.compiled:
        with tempfile.TemporaryDirectory() as folder:
            if verdict := run_mutant(builder, mutant, source, Path(folder)):
                return verdict
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default=ROOT / "build", type=Path)
    parser.add_argument("--only", default="", help="mutants whose file, line or call contains this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    mutants = [m for m in all_mutants() if args.only in f"{m.name} {m.line}"]
    if args.list:
        print("\n".join(f"{m.name}: {m.text}" for m in mutants))
        return 0
    if not mutants:
        sys.exit(f"mutate_kernels: no synchronising call matches {args.only!r}")
    if not shutil.which("ninja"):
        sys.exit("mutate_kernels: ninja is needed, and a build folder made with -G Ninja")
    explained, builder = read_explained(), Builder(args.build_dir.resolve())
    for program in sorted({m.program for m in mutants}):
        builder.of(program)
    unnoticed = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for mutant, verdict in zip(mutants, pool.map(lambda m: examine(builder, m), mutants)):
            reason = explained.get((str(mutant.source.relative_to(ROOT)), mutant.line))
            if not verdict:
                unnoticed.append((mutant, reason))
            print(f"{mutant.name}: {mutant.text[:60]}: {verdict or 'NOT NOTICED: ' + (reason or 'unexplained')}", flush=True)
    noticed = len(mutants) - len(unnoticed)
    surprises = [m for m, reason in unnoticed if reason is None]
    print(f"{len(mutants)} mutants, {noticed} noticed ({noticed / len(mutants):.1%}), {len(unnoticed) - len(surprises)} "
          f"explained, {len(surprises)} unexplained")
    failures = [f"{m.name} {m.text[:60]} goes unnoticed" for m in surprises]
    if not args.only and noticed < LEAST_NOTICED * len(mutants):
        failures.append(f"only {noticed} of {len(mutants)} are noticed, less than {LEAST_NOTICED:.0%}")
    if args.json:
        args.json.write_text(json.dumps({"passed": noticed, "failures": failures,
                                         "skips": [[m.name, r] for m, r in unnoticed if r]}) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
