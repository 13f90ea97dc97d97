#!/usr/bin/env python3
"""Trains one configuration with several precisions on equal seeds and data, and compares their losses with bf16's.

usage: scripts/bench/cpu/precisions.py [--program PATH] [--config FILE] [--data PREFIX] [--steps N] [--seeds N...] [--threads N]
                               [--precisions WORD...] [--json FILE]
The gap of a precision is (its loss - bf16's) / bf16's with the same seed: of the validation loss at the end, and of the
mean training loss of the last tenth of the steps. Data: shards PREFIX_train_*.bin and PREFIX_val_*.bin; by default those
of the quick start, which scripts/corpus.py and `athanor tokenize` make.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ["fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_gw_hp", "fp8_blockwise", "mxfp8"]


def train(args, precision, seed, folder):
    settings = [f"precision={precision}", f"seed={seed}", f"train_iters={args.steps}", f"save={folder}", "device=cpu",
                f"threads={args.threads}", f"train_data={args.data}_train_*.bin", f"valid_data={args.data}_val_*.bin",
                f"eval_interval={args.steps}", "save_interval=0", "progress=off", "log_interval=1000000",
                f"lr_warmup_iters={min(100, args.steps // 10)}"]
    begin = time.monotonic()
    subprocess.run([args.program, "train", args.config, *(w for s in settings for w in ("--set", s))], cwd=ROOT,
                   check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [r["loss"] for r in records if r["event"] == "step"]
    held_out = [r["loss"] for r in records if r["event"] == "eval"][-1]
    return {"precision": precision, "seed": seed, "validation": held_out, "seconds": time.monotonic() - begin,
            "training": statistics.fmean(losses[-max(1, args.steps // 10):]), "losses": losses}


def gaps(runs, precision, key):
    twins = {r["seed"]: r[key] for r in runs if r["precision"] == "bf16"}
    return [100 * (r[key] / twins[r["seed"]] - 1) for r in runs if r["precision"] == precision and r["seed"] in twins]


def table(runs, precisions):
    rows = ["| precision | validation loss | gap, % | training loss, last tenth | gap, % |", "|---|---|---|---|---|"]
    for precision in precisions:
        row = [f"`{precision}`"]
        for key in ("validation", "training"):
            losses = [r[key] for r in runs if r["precision"] == precision]
            row += [" ".join(f"{x:.4f}" for x in losses),
                    " ".join(f"{x:+.2f}" for x in gaps(runs, precision, key)) if precision != "bf16" else ""]
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "athanor"))
    parser.add_argument("--config", default="configs/quickstart.json")
    parser.add_argument("--data", default="runs/quickstart/data/text")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precisions", nargs="+", default=RECIPES)
    parser.add_argument("--json", help="all losses of all runs")
    args = parser.parse_args()
    precisions, runs = ["bf16", *(p for p in args.precisions if p != "bf16")], []
    with tempfile.TemporaryDirectory(prefix="athanor-precisions-") as name:
        for seed in args.seeds:
            for precision in precisions:
                runs.append(train(args, precision, seed, Path(name) / f"{precision}-{seed}"))
                print(f"seed {seed} {precision}: {runs[-1]['validation']:.4f} after {runs[-1]['seconds']:.0f} s",
                      flush=True)
                if args.json:
                    Path(args.json).write_text(json.dumps({"steps": args.steps, "config": args.config, "runs": runs}))
    print(table(runs, precisions))


if __name__ == "__main__":
    main()
