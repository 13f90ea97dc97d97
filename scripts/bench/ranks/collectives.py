#!/usr/bin/env python3
"""Collectives between ranks on this machine, side by side: through shared memory, over TCP, and torch.distributed's gloo.

usage: scripts/bench/ranks/collectives.py [--program PATH] [--python PATH] [--ranks N] [--rounds N] [--seconds S]
                                          [--out FILE] [--table FILE]
The three take turns; printed are medians over the rounds, in microseconds per call of the slowest rank, and how many
times as long gloo takes as shared memory. PATH of Python: an interpreter with torch, else gloo is left out.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

ROOT = pathlib.Path(__file__).resolve().parents[3]
SIZES = [1024 * 4 ** k for k in range(9)]  # 1 KiB to 64 MiB
GLOO = """
import json, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
rank, world, file, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=world)
def timed(run, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls): run()
    worst = torch.tensor([(time.perf_counter() - begin) / calls], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)
rows = []
for size in json.loads(sys.argv[5]):
    x = torch.ones(size // 4)
    parts = list(torch.empty_like(x).chunk(world))
    own = torch.ones(size // 4 // world)
    for name, run in (("all_reduce", lambda: dist.all_reduce(x)), ("all_gather", lambda: dist.all_gather(parts, own)),
                      ("broadcast", lambda: dist.broadcast(x, 0))):
        once = timed(run, 2)
        rows.append({"collective": name, "bytes": size, "seconds": timed(run, int(min(max(seconds / once, 1), 1000)))})
if rank == 0: print(json.dumps(rows))
dist.destroy_process_group()
"""


def athanor(args, **environment):
    done = subprocess.run([args.program, "launch", "-n", str(args.ranks), "bench", "comm", "--min-bytes", str(SIZES[0]),
                           "--max-bytes", str(SIZES[-1]), "--seconds", str(args.seconds), "--json"],
                          capture_output=True, text=True, check=True, env={**os.environ, **environment})
    line = next(line for line in done.stdout.splitlines() if '"rows"' in line)
    return json.loads(line[line.index("{"):])["rows"]


def gloo(args):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([args.python, "-c", GLOO, str(r), str(args.ranks), f"{folder}/meet", str(args.seconds),
                                   json.dumps(SIZES)], stdout=subprocess.PIPE, text=True) for r in range(args.ranks)]
        texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("collectives.py: a rank of the gloo benchmark failed; its error is above")
    return json.loads(texts[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "athanor"))
    parser.add_argument("--python", default=str(ROOT / ".cache" / "python" / "bin" / "python"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    sides = {"shared memory": lambda: athanor(args), "TCP": lambda: athanor(args, ATHANOR_SHM_DISABLE="1")}
    if subprocess.run([args.python, "-c", "import torch.distributed"], capture_output=True, check=False).returncode == 0:
        sides["gloo"] = lambda: gloo(args)
    found = {}
    for _ in range(args.rounds):
        for side, run in sides.items():
            for row in run():
                found.setdefault((row["collective"], row["bytes"]), {}).setdefault(side, []).append(row["seconds"])
    lines = [f"| collective | bytes | {' | '.join(f'{side}, µs' for side in sides)} | gloo / shared memory |",
             "|---|---|" + "---|" * (len(sides) + 1)]
    for (collective, size), times in found.items():
        medians = {side: statistics.median(values) for side, values in times.items()}
        ratio = f"{medians['gloo'] / medians['shared memory']:.2f}" if "gloo" in medians else ""
        cells = " | ".join(f"{1e6 * medians[side]:.1f}" if side in medians else "" for side in sides)
        lines.append(f"| `{collective}` | {size:,} | {cells} | {ratio} |")
    print("\n".join(lines))
    report = {**common.describe_machine(), "ranks": args.ranks, "rounds": args.rounds, "rows": [
        {"collective": c, "bytes": size, "seconds": times} for (c, size), times in found.items()]}
    common.write_results(args, report, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
