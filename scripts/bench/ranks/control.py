#!/usr/bin/env python3
"""The host's control plane with many ranks, simulated on this machine: threads as ranks, each with its own connections
over loopback, and one rank that is a process of its own, which is killed, and in a second run stopped.

usage: scripts/bench/ranks/control.py [--program PATH] [--ranks N ...] [--json FILE]
Prints per number of ranks: seconds until all have met and agreed once; the time of a decision of all, as every step has
one, and its messages; seconds from the signal until the last rank names the lost one.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FAN_OUT = int(re.search(r"kFanOut = (\d+)", (ROOT / "src" / "comm" / "tree.h").read_text())[1])


def simulate(program, ranks):
    done = subprocess.run([program, "--gtest_filter=Tree.ManyRanksConnectAgreeAndDetectALostRank"], cwd=ROOT,
                          env={**os.environ, "ATHANOR_RANKS": str(ranks)}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{ranks} ranks:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    killed, stopped = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    # tests/comm/tree_test.cc counts them: one up and one down per rank, where the exchange of all with all would take
    # 2 (ranks - 1) of each rank.
    return {"ranks": ranks, "start_s": max(killed["start_s"], stopped["start_s"]),
            "decision_ms": max(killed["step_ms"], stopped["step_ms"]), "messages": 2 * (ranks - 1),
            "most_peers": min(ranks - 1, FAN_OUT + 1), "killed_named_s": killed["named_s"],
            "stopped_named_s": stopped["named_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "tests" / "test_comm"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = [simulate(args.program, n) for n in args.ranks]
    print(f"{'ranks':>6} {'start s':>8} {'decision ms':>12} {'messages':>9} {'most peers':>11} {'killed: named s':>16} "
          f"{'stopped: named s':>17}")
    for r in rows:
        print(f"{r['ranks']:6} {r['start_s']:8.2f} {r['decision_ms']:12.1f} {r['messages']:9} {r['most_peers']:11} "
              f"{r['killed_named_s']:16.2f} {r['stopped_named_s']:17.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
