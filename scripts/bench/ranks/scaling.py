#!/usr/bin/env python3
"""One global batch on the same cores, turn by turn: one process of two threads, two processes of one thread, and both
with rank-invariant sums over four leaves.

usage: scripts/bench/ranks/scaling.py [--program PATH] [--rounds N] [--steps N] [--hidden N] [--json FILE]
Prints the median time of a step of each, and what ranks and rank-invariant sums cost: the losses must agree, those of
rank-invariant sums to the bit, or nothing is printed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "system"))
from harness import TINY, random_tokens, write_shard  # noqa: E402  (the synthetic data of the tests)

ONE, TWO = ([], ["threads=2"]), (["launch", "--ranks", "2"], ["threads=1"])
INVARIANT = ["deterministic_reduction=rank_invariant", "logical_shards=4"]
WAYS = {"1 process x 2 threads": ONE, "2 processes x 1 thread": TWO,
        "1 process, rank-invariant": (ONE[0], ONE[1] + INVARIANT),
        "2 processes, rank-invariant": (TWO[0], TWO[1] + INVARIANT)}


def run(program, folder, config, way, name):
    before, settings = way
    command = [program, *before, "train", config, *(w for s in (*settings, f"save={name}") for w in ("--set", s))]
    subprocess.run([str(c) for c in command], cwd=folder, check=True, capture_output=True)
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    return [r["loss"] for r in steps], [r["step_ms"] for r in steps[2:]]


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "athanor"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=256)
    return parser


def write_run(folder, args, layers, micro_batch_size):
    """config.json and its data."""
    write_shard(folder / "data.bin", random_tokens(200_000))
    config = dict(TINY, train_data="data.bin", train_iters=args.steps, schedule={"lr_warmup_iters": 1}, save_interval=0,
                  global_batch_size=16, micro_batch_size=micro_batch_size, device="cpu")
    config["model"] = dict(TINY["model"], hidden_size=args.hidden, num_hidden_layers=layers, num_attention_heads=4,
                           max_position_embeddings=128)
    (folder / "config.json").write_text(json.dumps(config))


def take_turns(args, folder, ways):
    """The median time of a step of each way in each round, and the losses of each, which must agree with the first's."""
    times, losses = {way: [] for way in ways}, {}
    for turn in range(args.rounds):
        for way in ways:
            losses[way], steps = run(args.program, folder, "config.json", ways[way], f"{turn}-{way}".replace(" ", "-"))
            times[way].append(statistics.median(steps))
    first = losses[next(iter(ways))]
    if not all(abs(a - b) <= 1e-5 * a for way in ways for a, b in zip(first, losses[way], strict=True)):
        sys.exit(f"{Path(sys.argv[0]).name}: the losses differ: {losses}")
    return times, losses


def main():
    parser = arguments(__doc__)
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="athanor-scaling-") as name:
        folder = Path(name)
        write_run(folder, args, layers=4, micro_batch_size=4)
        times, losses = take_turns(args, folder, WAYS)
    threads, ranks, one, two = WAYS
    if losses[one] != losses[two]:
        sys.exit(f"scaling.py: the losses differ: {losses}")
    # Of runs that followed one another: what disturbs the machine for longer disturbs both.
    ratio = {name: round(statistics.median(b / a for a, b in zip(times[of], times[what])), 3)
             for name, of, what in (("ranks_over_threads", threads, ranks), ("invariant_over_plain_1", threads, one),
                                    ("invariant_over_plain_2", ranks, two))}
    result = {"hidden_size": args.hidden, "rounds": args.rounds, "steps": args.steps,
              "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], **ratio,
              "median_step_ms": {w: round(statistics.median(t), 2) for w, t in times.items()},
              "step_ms_of_rounds": times}
    for way, ms in result["median_step_ms"].items():
        print(f"{way:28} {ms:8.2f} ms per step")
    print(f"two ranks take {ratio['ranks_over_threads']:.2f} times as long as two threads; rank-invariant sums "
          f"{ratio['invariant_over_plain_1']:.2f} times on one rank, {ratio['invariant_over_plain_2']:.2f} on two")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
