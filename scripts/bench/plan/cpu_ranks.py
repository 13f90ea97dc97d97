#!/usr/bin/env python3
"""Steps of one and of two CPU ranks, processes of one thread, beside what `athanor plan --ranks` predicts of them.

usage: scripts/bench/plan/cpu_ranks.py [--program PATH] [--rounds N] [--steps N] [--hidden N] [--out FILE] [--table FILE]
Predictions and runs take turns; a prediction measures the machine's rates, so what disturbs the machine for longer
disturbs both. Printed are the medians over the rounds of each, and of the error in the same round. The share of the
cores that other programs took stands beside them: above 5 % the figures say more of those programs.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[1] / "ranks")]
import common  # noqa: E402
from scaling import arguments, run, write_run  # noqa: E402

WAYS = {1: [], 2: ["launch", "--ranks", "2"]}
THREADS = ["threads=1"]
MOST_TAKEN = 0.05


def ticks():
    """(idle ticks, all ticks) of the machine's cores."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def own_ticks():
    return sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")


def taken_by_others(work):
    """What `work` returns, and the share of the cores that programs other than it took meanwhile."""
    idle, everything, own = *ticks(), own_ticks()
    result = work()
    idle_then, everything_then = ticks()
    spent = everything_then - everything
    return result, max(0.0, (spent - (idle_then - idle) - (own_ticks() - own)) / max(1, spent))


def predict(program, folder, ranks):
    command = [program, "plan", "config.json", "--ranks", str(ranks), "--json", *(w for s in THREADS for w in ("--set", s))]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["expected_seconds"] * 1e3


def main():
    parser = arguments(__doc__)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    args.program = str(pathlib.Path(args.program).resolve())
    rounds, taken = {ranks: [] for ranks in WAYS}, 0.0
    with tempfile.TemporaryDirectory(prefix="athanor-plan-") as name:
        folder = pathlib.Path(name)
        write_run(folder, args, layers=4, micro_batch_size=4)
        for turn in range(args.rounds):
            for ranks, before in WAYS.items():
                predicted, others = taken_by_others(lambda: predict(args.program, folder, ranks))
                (_, steps), more = taken_by_others(
                    lambda: run(args.program, folder, "config.json", (before, THREADS), f"{turn}-{ranks}"))
                taken = max(taken, others, more)
                rounds[ranks].append((predicted, statistics.median(steps)))
    rows = [{"ranks": ranks, "predicted_ms": statistics.median(p for p, _ in pairs),
             "step_ms": statistics.median(ms for _, ms in pairs),
             "error": statistics.median(p / ms - 1 for p, ms in pairs)} for ranks, pairs in rounds.items()]
    table = "| ranks of one thread | predicted ms per step | measured | error |\n|---|--:|--:|--:|\n"
    for r in rows:
        table += f"| {r['ranks']} | {r['predicted_ms']:.1f} | {r['step_ms']:.1f} | {100 * r['error']:+.1f} % |\n"
    print(table, end="")
    print(f"other programs took up to {100 * taken:.0f} % of the cores"
          + (": run it again on a quiet machine" if taken > MOST_TAKEN else ""))
    report = {**common.describe_machine(), "hidden_size": args.hidden, "rounds": args.rounds, "steps": args.steps,
              "load": os.getloadavg()[0], "taken_by_others": round(taken, 3), "rows": rows, "rounds_ms": rounds}
    common.write_results(args, report, table)


if __name__ == "__main__":
    main()
