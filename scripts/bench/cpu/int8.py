#!/usr/bin/env python3
"""What --weights int8 and llm_int8 cost and gain on the CPU, beside fp32 and bf16: held-out loss of a model, seconds of that
evaluation (GEMMs of many rows), and tokens per second of decoding (GEMMs of one row, which memory bounds).

  scripts/bench/cpu/int8.py --model runs/mine --data 'data/mine_val_*.bin' --config configs/gpt2-124m.json --rounds 3

The forms take turns; medians are reported. Only an idle machine says something about the rates; --loss-only asks for none.
"""
import argparse
import pathlib
import statistics
import sys
import json
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

FORMS = [("fp32", "precision"), ("bf16", "precision"), ("fp32", "int8"), ("fp32", "llm_int8"), ("bf16", "int8")]


def record_of(args, words):
    """The JSON object that a call prints last."""
    return json.loads(common.call(args, words).strip().splitlines()[-1])


def measure(args, precision, weights):
    found = {}
    keys = ["--set", f"precision={precision}", "--set", "device=cpu", "--set", f"threads={args.threads}"]
    if args.model:
        begin = time.perf_counter()
        found["loss"] = record_of(args, ["eval", args.model, "--data", args.data, "--samples", args.samples, "--weights", weights,
                                         "--json", *keys])["loss"]
        found["eval_seconds"] = time.perf_counter() - begin
    if args.config and not args.loss_only:
        decoded = record_of(args, ["bench", "decode", args.config, "--weights", weights, "--json", "--rounds", 3, *keys])
        found |= {"tokens_per_second": decoded["tokens_per_second"], "weight_bytes": decoded["weight_bytes"]}
    return found


def table_of(rows):
    text = "| precision | `--weights` | weights, MiB | held-out loss | evaluation, s | decoding, tokens/s |\n|---|---|---|---|---|---|\n"
    for r in rows:
        cell = lambda key, form, scale=1: form.format(r[key] / scale) if key in r else ""
        text += (f"| {r['precision']} | {r['weights']} | {cell('weight_bytes', '{:.1f}', 2**20)} | {cell('loss', '{:.5f}')} | "
                 f"{cell('eval_seconds', '{:.2f}')} | {cell('tokens_per_second', '{:.1f}')} |\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--athanor", type=pathlib.Path, default=common.ROOT / "build" / "athanor")
    parser.add_argument("--model", help="checkpoint, run or model's folder whose loss is evaluated")
    parser.add_argument("--data", help="token shards of held-out text, for --model")
    parser.add_argument("--samples", type=int, default=0, help="windows of it; 0: all")
    parser.add_argument("--config", help="configuration whose model is decoded, with random weights")
    parser.add_argument("--threads", type=int, default=0, help="0: every core")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loss-only", action="store_true", help="one round, and no rates in the table")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    if not args.model and not args.config or bool(args.model) != bool(args.data):
        parser.error("expected --model with --data, or --config, or all three")
    turns = [[measure(args, *form) for form in FORMS] for _ in range(1 if args.loss_only else args.rounds)]
    rows = []
    for i, (precision, weights) in enumerate(FORMS):
        row = {"precision": precision, "weights": weights}
        for key in turns[0][i]:
            if not (args.loss_only and key == "eval_seconds"):
                row[key] = statistics.median(turn[i][key] for turn in turns)
        rows.append(row)
    table = table_of(rows)
    print(table, end="")
    common.write_results(args, {"machine": common.describe_machine(), "command": sys.argv, "rows": rows}, table)


if __name__ == "__main__":
    main()
