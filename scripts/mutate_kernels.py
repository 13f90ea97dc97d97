#!/usr/bin/env python3
"""Deletes each synchronising call of the kernels in turn and asks whether the tests on the emulated GPU notice.

usage: mutate_kernels.py [--build-dir DIR] [--only TEXT] [--jobs N] [--list]
Sources: src/cuda/*.cu with the tests of tests/cuda, and the emulator's own kernels (tests/emulator/tests/*_kernel_test.cc)
with the tests beside them. DIR must hold a build of test_cuda_emulated and test_emulator_check. What goes unnoticed must
be listed, with the reason, in scripts/mutants_explained.txt; and 95 % must be noticed.
"""
import argparse
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
    r"|griddep_wait|cluster_(?:sync|arrive|wait)|registers_\w+|store_release|add_release))"
    r"(?:<(?:[^<>;]|<[^<>;]*>)*>)?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);")


@dataclass
class Mutant:
    source: Path
    program: str
    start: int
    end: int
    text: str  # the call
    line: str  # its source line, spaces normalised
    number: int

    @property
    def name(self):
        return f"{self.source.relative_to(ROOT)}:{self.number}"


def mutants_of(source, program):
    text = source.read_text()
    body = text
    for match in CALL.finditer(body):
        start = body.rfind("\n", 0, match.start()) + 1
        end = body.find("\n", match.end())
        line = " ".join(body[start:end].split())
        if line.startswith(("//", "#", "__device__", "__global__", "inline")):
            continue
        yield Mutant(source, program, match.start(), match.end(), match.group(0), line,
                     body.count("\n", 0, match.start()) + 1)


def all_mutants():
    found = []
    for source in sorted((ROOT / "src" / "cuda").glob("*.cu")):
        found += mutants_of(source, "test_cuda_emulated")
    for source in sorted((ROOT / "tests" / "emulator" / "tests").glob("*_kernel_test.cc")):
        found += mutants_of(source, "test_emulator_check")
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

    def compile_command(self, mutant):
        """The last one: of the check variant where a source is built twice."""
        for command in reversed(self.of(mutant.program)):
            words = shlex.split(command)
            if str(mutant.source) in words and "-c" in words:
                return [w for w in words if w not in ("-MD",)]
        sys.exit(f"mutate_kernels: {self.build} does not build {mutant.source}; configure it with CUDA's headers")

    def link_command(self, mutant, original_object, new_object):
        command = self.of(mutant.program)[-1]
        words = shlex.split(command.replace("&& :", "").replace(": &&", "").strip())
        if original_object in words:
            return [new_object if w == original_object else w for w in words]
        first_archive = next(i for i, w in enumerate(words) if w.endswith(".a"))
        return words[:first_archive] + [new_object] + words[first_archive:]  # found before the archive's member


def without_dependencies(words):
    """Drops -MT x and -MF x."""
    kept, skip = [], False
    for w in words:
        if skip:
            skip = False
        elif w in ("-MT", "-MF"):
            skip = True
        else:
            kept.append(w)
    return kept


def gtest_filter(source):
    """The tests of a source that hold for sound kernels, the long ones left out."""
    if source.suffix == ".cu":
        return "*-*Budget*"
    suites = set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", source.read_text(), re.M)) - {"PlantedBug"}
    return ":".join(f"{s}.*" for s in sorted(suites)) + "-*HundredSeeds*"


def run_mutant(builder, mutant, folder):
    """What noticed the mutant, or an empty string."""
    changed = folder / mutant.source.name
    text = mutant.source.read_text()
    changed.write_text(text[:mutant.start] + "(void)0;" + text[mutant.end:])
    words = without_dependencies(builder.compile_command(mutant))
    original = words[words.index("-o") + 1]
    new_object, program = str(folder / "mutant.o"), folder / "mutant"
    words[words.index("-o") + 1] = new_object
    words = [str(changed) if w == str(mutant.source) else w for w in words] + ["-w"]
    subprocess.run(words, cwd=builder.build, check=True)
    words = builder.link_command(mutant, original, new_object)
    words[words.index("-o") + 1] = str(program)
    subprocess.run(words, cwd=builder.build, check=True)
    try:
        done = subprocess.run([program, f"--gtest_filter={gtest_filter(mutant.source)}", "--gtest_fail_fast"], cwd=ROOT,
                              capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    fault = re.search(r"(race|out of bounds|misaligned|uninitialised|async copy in flight|deadlock|barrier|warp|mbarrier"
                      r"|proxy fence|configuration): [^\n]{0,100}", done.stdout)
    return fault.group(0) if fault else "wrong numbers" if done.returncode > 0 else "crash"


def examine(builder, mutant):
    with tempfile.TemporaryDirectory() as folder:
        return run_mutant(builder, mutant, Path(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default=ROOT / "build", type=Path)
    parser.add_argument("--only", default="", help="mutants whose file, line or call contains this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true")
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
    return 1 if surprises or (not args.only and noticed < LEAST_NOTICED * len(mutants)) else 0


if __name__ == "__main__":
    sys.exit(main())
