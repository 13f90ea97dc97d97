#!/usr/bin/env python3
"""Proves athanor right on a GPU, part by part; goes on past failures, ends with a table and a JSON report.

usage: verify.py [--call 1|2|3] [--parts A,B|rest] [--out DIR] [--data DIR] [--device cuda|cpu|emulated] [--minutes 9]
                 [--call-minutes M] [--earlier verify.json] [--list]
Runs in the folder that pack.sh makes (program, gpu_test_* programs, tests/golden, data). Each part ends after
--minutes.
Parts that compare with PyTorch run ATHANOR_PYTHON, or the Python that runs this; CUDA libraries beside it are found.
--device cpu and emulated try the script itself, at smaller sizes: in a build folder, with the tests' programs for the
CPU backend or for the emulated GPU. They prove nothing about a GPU, and the report says which device it is of.
A part that did not run is never green: its status is 'not run', with the reason. Exit status, of what the report
holds: 0 all passed, 1 some failed, 3 none failed but some did not run.
DIR (default: $OUT, or verify-out) gets two files, verify.json with the report and verify.log with what the programs
printed; all else lies in a temporary folder.
All parts together take some three quarters of an hour (--list has estimates). --call N runs the Nth of three calls of
nine minutes, each of use if it is the last: (1) environment, instructions, every op, attention; (2) parity with
PyTorch, the time and the roofline limit of each op in a step of gpt2-124m and llama-8b, laws; (3) GEMMs, speed compared
with PyTorch, sanitizer, ranks. A call starts its parts even where their estimates add up to more than nine minutes, and
ends a part at twice its estimate. A fourth call asks for parts by name. --call-minutes starts no part
whose estimate is more than is left of the call, and ends one that does need more; the next call with --parts
rest does what has not passed yet. Reports of calls of one commit on one kind of device are merged: DIR/verify.json,
and the report given by --earlier, bring the parts of the calls before.
"""
import argparse
import datetime
import json
import math
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from parts import CALLS, ESTIMATES, PARTS
from programs import ROOT, Call, Failed, NotRun, suite_of

sys.path.insert(0, str(ROOT / "scripts" / "bench" / "gpu"))
from compare import commit  # noqa: E402
from sides import show_libraries  # noqa: E402

HANGS = 2  # a part of a call that takes so many times its estimate leaves the time to others
CALL_MINUTES = 8.8  # of nine, with what starts and ends it
STATUSES = ("passed", "FAILED", "not run")


def earlier_report(path, head):
    """Results of an earlier call of this commit on the same kind of device, or None."""
    if not path or not path.exists():
        return None
    try:
        report = json.loads(path.read_text())
        for name, entry in report["parts"].items():
            if entry["status"] not in STATUSES or not entry["seconds"] >= 0:
                raise ValueError(f"part {name} has status {entry['status']} after {entry['seconds']} s")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{path}: ignored, since it is no report of an earlier call: {type(error).__name__}: {error}", flush=True)
        return None
    if differs := [key for key, value in head.items() if report.get(key) != value or value == "unknown"]:
        of = {key: report.get(key) for key in differs}
        print(f"{path}: ignored, since it has {of}, expected { {key: head[key] for key in differs} }", flush=True)
        return None
    return report


def load_report(paths, device):
    """Results of all earlier calls; if several ran the same part, the latest counts."""
    head = {"commit": commit() or "unknown", "device": device}
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    report = head | {"date": today, "parts": {}}
    for earlier in filter(None, (earlier_report(path, head) for path in paths)):
        report["date"] = earlier.get("date", today)
        for name, entry in earlier["parts"].items():
            keep(report, name, entry)
    return report


def keep(report, name, entry):
    """Keeps the result of a part that ran, unless it ran again."""
    if entry["status"] != "not run" or name not in report["parts"]:
        report["parts"][name] = entry
    report["parts"] = {n: report["parts"][n] for n in PARTS if n in report["parts"]}


def write_report(path, report):
    """Writes atomically, even if the call is killed meanwhile."""
    path.with_suffix(".part").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".part").replace(path)


def run_part(name, call):
    begin = time.monotonic()
    call.begin_part(HANGS * ESTIMATES[name] if call.hurried and call.device == "cuda" else math.inf)
    entry = {"device": call.device, "gpu": call.gpu}
    if begin + (1 if call.hurried else ESTIMATES[name]) > call.call_end:
        why = (f"{call.call_end - begin:.0f} s were left of the call, about {ESTIMATES[name]} are needed: call again "
               "with --parts rest")
        return entry | {"status": "not run", "seconds": 0.0, "why": why}
    try:
        entry |= {"status": "passed", "found": PARTS[name](call)}
    except (NotRun, Failed) as why:
        entry |= {"status": "not run" if isinstance(why, NotRun) else "FAILED", "why": str(why)}
        entry |= {"found": why.found} if why.found else {}
    except Exception as error:  # of this script or of what a program wrote; the other parts go on
        entry |= {"status": "FAILED", "why": f"{type(error).__name__}: {error}"}
    entry["seconds"] = round(time.monotonic() - begin, 1)
    return entry


def failed_tests(entry):
    found = entry.get("found")
    return found.get("failed") or [] if isinstance(found, dict) else []


def run_parts(names, call, report, path):
    for name in names:
        print(f"{name} ...", flush=True)
        begun = {"device": call.device, "status": "not run", "seconds": 0.0, "why": "begun, but the call was ended"}
        call.progress = lambda found, name=name, begun=begun: write_report(
            path, report | {"parts": report["parts"] | {name: begun | ({"found": found} if found else {})}})
        call.progress(None)
        call.red = {suite_of(test) for entry in report["parts"].values() for test in failed_tests(entry)}
        keep(report, name, run_part(name, call))
        write_report(path, report)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--parts", default=",".join(PARTS))
    what.add_argument("--call", type=int, choices=CALLS, help="one of three calls of nine minutes, by its number")
    parser.add_argument("--out", default=os.environ.get("OUT", "verify-out"))
    parser.add_argument("--device", choices=("cuda", "cpu", "emulated"), default="cuda")
    parser.add_argument("--data", default=ROOT / "data", help="folder with text_train_*.bin, tokens of bytes")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--call-minutes", type=float, default=math.inf, help="of all parts together; default: no limit")
    parser.add_argument("--earlier", type=Path, help="report of earlier calls, where --out is another folder")
    parser.add_argument("--list", action="store_true", help="the parts and the seconds that they may take")
    args = parser.parse_args()
    args.names = args.parts.split(",")
    if args.call:
        args.names, args.call_minutes = list(CALLS[args.call]), min(args.call_minutes, CALL_MINUTES)
    if args.names != ["rest"] and (unknown := [n for n in args.names if n not in PARTS]):
        parser.error(f"unknown part {unknown[0]}; --list names them")
    return args


def main():
    args = parse_arguments()
    if args.list:
        for name, function in PARTS.items():
            print(f"{name:16} {ESTIMATES[name]:4} s  {function.__doc__.strip().splitlines()[0]}")
        print(f"{'together':16} {sum(ESTIMATES.values()):4} s")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # programs that run are then ended, files removed
    with tempfile.TemporaryDirectory(prefix="athanor-verify-") as work:
        if args.device == "cuda":  # elsewhere they are of no use, and some crash without a driver
            show_libraries(os.environ.get("ATHANOR_PYTHON", sys.executable))
        call = Call(args, work, commit())
        path = call.out / "verify.json"
        report = load_report([args.earlier, path], args.device)
        passed = [n for n, entry in report["parts"].items() if entry["status"] == "passed"]
        run_parts(args.names if args.names != ["rest"] else [n for n in PARTS if n not in passed], call, report, path)
    return show(report)


def show(report):
    print(f"\n{'part':16} {'status':8} {'seconds':>8}  remark")
    asked_for, others = report["parts"], {"status": "not run", "seconds": 0.0, "why": "no call has asked for it"}
    for name in PARTS:
        entry = asked_for.get(name, others)
        lines = entry.get("why", "").splitlines()
        remark = " ... ".join(line[:100] for line in dict.fromkeys(lines[:1] + lines[-1:]))
        print(f"{name:16} {entry['status']:8} {entry['seconds']:8.1f}  {remark}")
    statuses = [entry["status"] for entry in asked_for.values()]
    counts = {status: statuses.count(status) for status in STATUSES}
    counts["not run"] += len(PARTS) - len(statuses)
    print(", ".join(f"{n} {status}" for status, n in counts.items()), f"of {len(PARTS)} parts on {report['device']}, "
          f"commit {report['commit'][:12]}")
    return 1 if counts["FAILED"] else 3 if "not run" in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
