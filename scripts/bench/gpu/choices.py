#!/usr/bin/env python3
"""Compares micro_batch_size "auto" with each size around it, for every model of compare.py.

Steps are timed in turns, or with --gpu modelled by `athanor plan` for that GPU. Goal: 98 % of the best tokens/s.

Results go to DIR/choices.json. A call ends after --minutes; a later call of the same commit on the same device adds
what is missing.

usage: choices.py [--models A,B] [--minutes 9] [--device cuda|cpu] [--gpu h200] [--out DIR]
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import compare
import sides

GOAL = 0.98


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def around(auto, batch):
    """Sizes by hand: those that divide the batch, up to four times as large and an eighth as small."""
    return [d for d in divisors(batch) if auto / 8 <= d <= auto * 4]


def with_size(config, size):
    path = config.with_name(f"{config.stem}-{size}.json")
    path.write_text(json.dumps(json.loads(config.read_text()) | {"micro_batch_size": size}))
    return path


def verdict(speeds, auto, left_out):
    """speeds: {size: tokens/s of its turns}. Turns are compared with those of the same round."""
    median = {size: statistics.median(turns) for size, turns in speeds.items()}
    best = max(median, key=median.get)
    share = statistics.median(a / b for a, b in zip(speeds["auto"], speeds[best]))
    return {"auto": auto, "best": auto if best == "auto" else best, "auto_of_best": round(share, 4),
            "tokens_per_second": {str(size): round(speed, 1) for size, speed in median.items()},
            "left_out": left_out, "goal": GOAL, "met": share >= GOAL}


def micro_batch(name, model, args, folder, deadline):
    config = compare.make_config(name, model, args, folder)
    step = model["tokens"] / model["goal"]
    turn = model.get("seconds", compare.START + compare.SEARCH / args.rounds + (args.steps + 2) * step)
    if deadline.left() < 2 * turn * args.patience:
        raise sides.NotRun(f"{deadline.left():.0f} s were left, {2 * turn:.0f} are needed for auto and one size")
    time = lambda path: sides.Athanor(args.athanor, path, deadline).steps(args.steps, 2)
    first = time(config)
    auto, batch = first["micro_batch_size"], model["tokens"] // model["seq"]
    paths = {"auto": config} | {size: with_size(config, size) for size in around(auto, batch) if size != auto}
    speeds, left_out = {"auto": []}, {}
    for _ in range(args.rounds):
        for size, path in paths.items():
            if size in left_out:
                continue
            if deadline.left() < turn * args.patience:
                left_out[str(size)] = "no time was left"
                continue
            try:
                speeds.setdefault(size, []).append(time(path)["tokens_per_second"])
            except sides.NotRun as why:
                left_out[size] = str(why)
                speeds.pop(size, None)
    whole = {size: turns for size, turns in speeds.items() if len(turns) == len(speeds["auto"])}
    if len(whole) < 2:
        raise sides.NotRun(f"nothing to compare with: {left_out}")
    return verdict(whole, auto, {str(size): why for size, why in left_out.items()})


def modelled_micro_batch(name, model, args, folder, _):
    """The same by the model of `athanor plan --gpu`: nothing runs."""
    config = compare.make_config(name, model, args, folder)

    def plan(path):
        done = subprocess.run([args.athanor, "plan", path, "--gpu", args.gpu], capture_output=True, text=True)
        if done.returncode != 0:
            raise sides.NotRun(sides.tail(done.stderr))
        size = int(re.search(r"micro-batches +\d+ of (\d+) ", done.stdout).group(1))
        milliseconds = float(re.search(r"predicted step +([\d.]+) ms", done.stdout).group(1))
        recompute = re.search(r"recomputation +(\w+)", done.stdout).group(1)
        return size, model["tokens"] / milliseconds * 1e3, recompute

    auto, speed, _ = plan(config)
    speeds, left_out = {"auto": [speed]}, {}
    for size in around(auto, model["tokens"] // model["seq"]):
        if size != auto:
            try:
                speeds[size] = [plan(with_size(config, size))[1]]
            except sides.NotRun as why:
                left_out[str(size)] = str(why)
    return verdict(speeds, auto, left_out) | {"modelled_for": args.gpu}


def line(found):
    return (f"auto takes {found['auto']}, {100 * found['auto_of_best']:.1f} % of the tokens/s of {found['best']}, "
            f"the best of {len(found['tokens_per_second'])} sizes: {'met' if found['met'] else 'MISSED'}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="comma separated; default: all, " + ", ".join(compare.MODELS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "choices-out")))
    parser.add_argument("--earlier", type=Path, help="choices.json of earlier calls, where --out is another folder")
    parser.add_argument("--athanor", type=Path, help="the program; default: beside scripts/, or build/athanor")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models, to try the script")
    parser.add_argument("--gpu", help="by the modelled limits of h200, h100, a100 or b200; runs nothing")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="timed in a turn")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of what a model is thought to need")
    args = parser.parse_args()
    args.athanor = (args.athanor or compare.find_program()).resolve()
    return args


def main():
    args = parse_arguments()
    known = compare.MODELS if args.device == "cuda" else compare.TINY_MODELS
    names = args.models.split(",") if args.models else list(known)
    if unknown := [n for n in names if n not in known]:
        sys.exit(f"choices.py: unknown model {unknown[0]}; known are {', '.join(known)}")
    deadline = sides.Deadline(args.minutes)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "choices.json"
    report = compare.load_report(path, args, {"device": "model", "hardware": args.gpu} if args.gpu else None)
    compare_sizes = modelled_micro_batch if args.gpu else micro_batch
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            row = report["models"].setdefault(name, {})
            if row.get("status") == "measured" and not args.models:
                continue  # by an earlier call
            try:
                found = compare_sizes(name, known[name], args, Path(folder), deadline)
                row |= {"status": "modelled" if args.gpu else "measured"} | found
                row.pop("why", None)
                print(f"{name:14} {line(found)}", flush=True)
            except sides.NotRun as why:
                if not row:
                    row |= {"status": "not run", "why": str(why)}
                print(f"{name:14} not run: {why}", flush=True)
            path.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
