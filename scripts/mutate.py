#!/usr/bin/env python3
"""Mutation testing: makes small changes in src/, one at a time, and checks whether any test fails.

usage: mutate.py [--count 40] [--seed 1] [--jobs N] [--folder cpu,...] [--json FILE]
A mistake changes one operator, one constant, or drops one statement. Which ones are planted follows from the seed and the
text of the line alone, so that other changes do not shift the choice. They are made in a copy of the tracked files under
.cache/mutants, built there, and run against the test programs of that folder; what does not compile does not count.
Survivors that change nothing a test could see are explained in tests/mutants.json ("file: before -> after": why); any
other survivor is a failure. --json writes {"passed", "failed", "failures", "skips"}.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / ".cache" / "mutants"
EXPLAINED = ROOT / "tests" / "mutants.json"
PROGRAMS = {  # folder of src/ -> test programs that answer for it, quickest first
    "base": ["base"], "tensor": ["tensor", "cpu"], "config": ["config"], "device": ["device", "train"],
    "ops": ["ops", "train"], "reference": ["ops"], "cpu": ["cpu", "ops"], "tape": ["train"], "param": ["train"],
    "nn": ["train"], "model": ["train"], "optim": ["train"], "data": ["data", "train"], "metrics": ["metrics"],
    "analysis": ["analysis", "report"], "report": ["report"], "checkpoint": ["checkpoint", "train"],
    "engine": ["engine", "train"], "perf": ["perf", "train"], "infer": ["infer", "train"], "train": ["train"],
    "plan": ["plan", "command"],
}
SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " * "), (" && ", " || "), (" || ", " && "),
         (" += ", " -= "), ("++", "--"), (" = 0;", " = 1;"), (" = 1;", " = 2;"), ("true", "false"), ("false", "true")]
STATEMENT = re.compile(r"^\s+[a-z_][\w.\->\[\]]*(\(.*\)| [+*-]?= .*);$")  # a call or an assignment, in one line
NOT_BEHAVIOUR = re.compile(r"CHECK|Error\(|throw|log::|cat\(|printf|static_assert|#|^\s*//|using |template|constexpr")
BUILD_SECONDS, TEST_SECONDS = 900, 300


def variants(line):
    """All mistakes of one line of code, without its comment."""
    code = line.split("  //")[0].rstrip()
    for old, new in SWAPS:
        for at in (m.start() for m in re.finditer(re.escape(old), code)):
            yield code[:at] + new + code[at + len(old):]
    if STATEMENT.match(code):
        yield ""


def sites(folders):
    """(rank, file, line number, mutated line); rank depends on nothing but the texts."""
    for folder in folders:
        for path in sorted((ROOT / "src" / folder).rglob("*.cc")):
            name = str(path.relative_to(ROOT))
            for number, line in enumerate(path.read_text().splitlines()):
                if NOT_BEHAVIOUR.search(line):
                    continue
                for mutated in variants(line):
                    yield hashlib.sha256(f"{name}\0{line.strip()}\0{mutated.strip()}".encode()).hexdigest(), name, number, mutated


def choose(folders, count, seed):
    """The same number from every folder, as far as it has them."""
    chosen = []
    for folder in folders:
        ranked = sorted(((hashlib.sha256(f"{seed}{s[0]}".encode()).hexdigest(), *s[1:]) for s in sites([folder])))
        chosen += ranked[:max(1, count // len(folders))]
    return [c[1:] for c in chosen]


def copy_tree():
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    keep = TREE / "build"
    for old in TREE.glob("*"):
        if old != keep:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)


def run(command, seconds):
    """(whether it succeeded, whether it ended in time)."""
    try:
        done = subprocess.run(command, cwd=TREE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds,
                              env=dict(os.environ, GTEST_FAIL_FAST="1"))
    except subprocess.TimeoutExpired:
        return False, False
    return done.returncode == 0, True


def build(programs, jobs):
    return run(["ninja", "-C", "build", "-j", str(jobs), *(f"test_{p}" for p in programs)], BUILD_SECONDS)[0]


def verdict(name, number, mutated, jobs):
    """"noticed by ...", "does not compile" or "survived"."""
    path = TREE / name
    text = path.read_text()
    lines = text.splitlines()
    lines[number] = mutated
    programs = PROGRAMS[name.split("/")[1]]
    path.write_text("\n".join(lines) + "\n")
    try:
        if not build(programs, jobs):
            return "does not compile"
        for program in programs:
            passed, ended = run([f"build/tests/test_{program}"], TEST_SECONDS)
            if not passed:
                return f"noticed by test_{program}" + ("" if ended else ", which hung")
        return "survived"
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", default=",".join(PROGRAMS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folders = args.folder.split(",")
    for folder in folders:
        if folder not in PROGRAMS:
            parser.error(f"--folder {folder}: expected some of {', '.join(PROGRAMS)}")
    copy_tree()
    configure = [TREE / "scripts" / "build.sh", "--tests", "--build-dir", TREE / "build", "--jobs", str(args.jobs)]
    if not run(configure, 3600)[0]:
        sys.exit("mutate.py: the unchanged tree does not build")
    explained = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    passed, failures, skips = 0, [], []
    for name, number, mutated in choose(folders, args.count, args.seed):
        before = (ROOT / name).read_text().splitlines()[number].split("  //")[0].strip()
        key = f"{name}: {before} -> {mutated.strip() or '(dropped)'}"
        begin = time.monotonic()
        result = verdict(name, number, mutated, args.jobs)
        print(f"{time.monotonic() - begin:5.1f} s  {result:28} {key}", flush=True)
        if result == "does not compile":
            continue
        if result == "survived" and key in explained:
            skips.append([f"mutant {key}", explained[key]])
        elif result == "survived":
            failures.append(f"mutant survived: {key}")
        else:
            passed += 1
    print(f"{passed} noticed, {len(skips)} explained, {len(failures)} survived")
    if args.json:
        args.json.write_text(json.dumps({"passed": passed, "failed": len(failures), "failures": failures, "skips": skips}) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
