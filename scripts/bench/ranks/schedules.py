#!/usr/bin/env python3
"""Schedules of a pipeline beside what its simulator says: two processes of one thread each, and one of one thread.

usage: scripts/bench/ranks/schedules.py [--program PATH] [--rounds N] [--steps N] [--hidden N] [--out FILE] [--table FILE]
The ways take turns. Predicted is half of what one process takes, over the share of a step in which stages do not wait
(`athanor plan`). Printed are the medians over the rounds of a step's time over the prediction of the same round.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common
from scaling import arguments, take_turns, write_run

ALONE, DATA = "1 process", "data parallel"
SCHEDULES = ["gpipe", "1f1b", "zb1p", "zbv"]
TWO = ["launch", "--ranks", "2"]


def settings(schedule):
    return ["threads=1", "pipeline_parallel_size=2", f"pipeline.schedule={schedule}"]


def share_of_waits(program, folder, schedule):
    """The share of a step in which stages wait, by the simulator."""
    command = [program, "plan", "config.json", *(w for s in settings(schedule) for w in ("--set", s))]
    plan = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"stages wait ([\d.]+) %", plan)[1]) / 100


def main():
    parser = arguments(__doc__)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    ways = {ALONE: ([], ["threads=1"]), DATA: (TWO, ["threads=1"]), **{s: (TWO, settings(s)) for s in SCHEDULES}}
    with tempfile.TemporaryDirectory(prefix="athanor-schedules-") as name:
        folder = pathlib.Path(name)
        write_run(folder, args, layers=8, micro_batch_size=2)
        waits = {s: share_of_waits(args.program, folder, s) for s in SCHEDULES}
        times, _ = take_turns(args, folder, ways)
    rows = []
    for way in list(ways)[1:]:
        predicted = [alone / 2 / (1 - waits.get(way, 0)) for alone in times[ALONE]]
        ratio = statistics.median(ms / p for ms, p in zip(times[way], predicted))
        rows.append({"way": way, "waits": waits.get(way, 0), "step_ms": statistics.median(times[way]),
                     "predicted_ms": statistics.median(predicted), "over_predicted": ratio})
    table = "| way | stages wait, simulated | ms per step | predicted | measured over predicted |\n|---|---|---|---|---|\n"
    for r in rows:
        table += (f"| {r['way']} | {100 * r['waits']:.1f} % | {r['step_ms']:.1f} | {r['predicted_ms']:.1f} "
                  f"| {r['over_predicted']:.2f} |\n")
    print(table, end="")
    report = {**common.describe_machine(), "hidden_size": args.hidden, "rounds": args.rounds, "steps": args.steps,
              "load": os.getloadavg()[0], "rows": rows, "step_ms_of_rounds": times}
    common.write_results(args, report, table)


if __name__ == "__main__":
    main()
