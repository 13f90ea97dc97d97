#!/usr/bin/env python3
"""Runs the system tests: the built program as users meet it. Uses Python's standard library only.

usage: run.py [--folder DIR] [--program PATH] [--repeat FACTOR] [--seed N] [--json FILE] [NAME...]
--folder names another folder of such tests, as ../ranks. NAME selects tests, for instance test_resume or
test_resume.KillTest. Exit status 1 if a test fails. --json writes
{"passed", "failed", "skipped", "skips", "failures", "seconds"}.
"""
import argparse
import json
import os
import signal
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


class TimedResult(unittest.TextTestResult):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.seconds, self.passed = {}, 0

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.passed += 1
        super().addSuccess(test)

    def stopTest(self, test):
        self.seconds[test.id()] = round(time.monotonic() - self.began, 2)
        super().stopTest(test)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", default=str(HERE))
    parser.add_argument("--program", default=str(HERE.parents[1] / "build" / "athanor"))
    parser.add_argument("--repeat", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=20260821)
    parser.add_argument("--json")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if not os.access(args.program, os.X_OK):
        sys.exit(f"run.py: no program at {args.program}: run scripts/build.sh first, or give --program")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # tests then end what they started
    os.environ.update(ATHANOR_PROGRAM=args.program, ATHANOR_REPEAT=str(args.repeat), ATHANOR_SEED=str(args.seed))
    folder = Path(args.folder).resolve()
    sys.path[:0] = [str(folder), str(HERE)]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(args.names) if args.names else loader.discover(str(folder))
    begin = time.monotonic()
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=TimedResult).run(suite)
    failures = [test.id() for test, _ in result.failures + result.errors] + \
               [test.id() for test in result.unexpectedSuccesses]
    summary = {"passed": result.passed, "failed": len(failures), "skipped": len(result.skipped),
               "skips": [[test.id(), why] for test, why in result.skipped], "failures": failures,
               "seconds": round(time.monotonic() - begin, 1), "tests": result.seconds}
    if args.json:
        Path(args.json).write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(0 if not failures and result.passed > 0 else 1)


if __name__ == "__main__":
    main()
