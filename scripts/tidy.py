#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over src/ and the emulated GPU of tests/emulator, several files at once; a file whose text,
headers and flags are unchanged since it was clean is not checked again.

Of a unity build the sources are checked as they are compiled, several as one: a fifth of the time.

usage: tidy.py [--analyze] [--build-dir DIR] [--jobs N] [--json FILE] [FILE...]
--analyze adds clang's static analyzer, which takes twice as long. DIR must be configured, for its compile_commands.json.
Kernels are left out (*.cu, and *kernel* in tests/emulator): for clang they are full of names that CUDA reserves. Exit
status 1 if a file has findings. --json writes {"passed", "failed", "cached", "failures"}. What was clean is remembered in
~/.cache/athanor-tidy.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "athanor-tidy"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def closure(path, seen):
    """The file and all project headers that it includes, directly or not."""
    if path in seen or not path.exists():
        return seen
    seen.add(path)
    for name in INCLUDE.findall(path.read_text()):
        for base in (ROOT / "src", ROOT / "tests", ROOT / "tests" / "emulator", path.parent):
            if (base / name).exists():
                closure((base / name).resolve(), seen)
                break
    return seen


ANALYZER = "clang-analyzer-*,-clang-analyzer-optin.performance.Padding"


def key_of(entry, tool):
    digest = hashlib.sha256()
    flags = entry["command"].replace(entry["directory"], "BUILD").replace(str(ROOT), "ROOT")
    for part in (*tool, (ROOT / ".clang-tidy").read_text(), re.sub(r"\S*/Unity/", "", flags)):
        digest.update(part.encode() + b"\0")
    for path in sorted(set().union(*(closure(Path(f), set()) for f in sources_of(entry)))):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def check(entry, build_dir, tool):
    """(file, findings or "", from the cache)."""
    stamp = CACHE / key_of(entry, tool)
    name = " ".join(str(Path(f).relative_to(ROOT)) for f in sources_of(entry))
    if stamp.exists():
        stamp.touch()  # the oldest are forgotten first
        return name, "", True
    more = [f"--checks={checks}" for checks in tool[1:]]
    done = subprocess.run(["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wunsequenced",
                           *more, "-p", build_dir, entry["file"]], capture_output=True, text=True)
    if done.returncode == 0:
        stamp.touch()
        return name, "", False
    return name, done.stdout or done.stderr, False


UNITY = re.compile(r'^#include "([^"]+)"', re.M)


def sources_of(entry):
    """What is compiled: the sources of a unity build's file, else the file."""
    path = Path(entry["file"])
    if path.parent.name == "Unity":
        return UNITY.findall(path.read_text()) if path.exists() else []
    return [entry["file"]]


def is_checked(file):
    path = Path(file)
    if path.suffix != ".cc" or not path.is_relative_to(ROOT):
        return False
    name = path.relative_to(ROOT).as_posix()
    return name.startswith("src/") or (name.startswith(("tests/emulator/device/", "tests/emulator/runtime/",
                                                        "tests/emulator/libraries/", "tests/emulator/tests/"))
                                       and "kernel" not in path.name)


def forget_oldest(most=5000):
    stamps = sorted(CACHE.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in stamps[most:]:
        path.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build-dir", default=str(ROOT / "build"))
    parser.add_argument("--analyze", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    database = Path(args.build_dir) / "compile_commands.json"
    if not database.exists():
        sys.exit(f"tidy.py: {database} is missing: configure first (scripts/build.sh)")
    wanted = {str(Path(f).resolve()) for f in args.files}
    entries = {}  # of a source compiled twice, the last
    for e in json.loads(database.read_text()):
        sources = sources_of(e)
        if any(f in wanted if wanted else is_checked(f) for f in sources):
            entries[tuple(sources)] = e
    if not entries:
        sys.exit(f"tidy.py: no such file in {database}")
    CACHE.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    tool = [version] + ([ANALYZER] if args.analyze else [])
    failures, cached = [], 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(check, e, args.build_dir, tool) for _, e in sorted(entries.items())]
        for future in concurrent.futures.as_completed(futures):
            name, findings, known = future.result()
            cached += known and len(name.split())
            if findings:
                named = [f for f in name.split() if f in findings]
                failures += named or [name]
                print(findings.replace(str(ROOT) + "/", ""), flush=True)
    forget_oldest()
    total = sum(len(sources) for sources in entries)
    passed = total - len(failures)
    print(f"{passed} of {total} files are clean ({cached} unchanged since they were)")
    if args.json:
        Path(args.json).write_text(json.dumps({"passed": passed, "failed": len(failures), "cached": cached,
                                               "failures": sorted(failures)}) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
