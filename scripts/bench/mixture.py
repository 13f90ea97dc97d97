#!/usr/bin/env python3
"""Compares a mixture of experts with a dense model of the same active parameters by what they learn.

usage: scripts/quickstart.sh; scripts/bench/mixture.py --out scripts/bench/results/mixture.json --table mixture.md

The mixture is configs/moe-small.json; a token passes two of eight experts of half the dense model's width: as many
multiplications for each token, but for the router's. Both have the quick start's text, optimizer and rates, and the same seeds.
Losses are those of the whole held-out text after the last step of a finished schedule.
"""
import argparse
import json
import statistics

from common import ROOT, add_run_flags, call, describe_machine, finished_run, with_options, write_results

MODELS = {"dense": ("quickstart.json", {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 768}),
          "mixture": ("moe-small.json", {})}


def compare(args):
    rows = []
    for steps in args.steps:
        for model, (file, sizes) in MODELS.items():
            config = json.loads((ROOT / "configs" / file).read_text())
            config["model"] |= sizes
            config = with_options(config, {"train_iters": steps, "learning_rate": 0.004,
                                           "schedule": {"lr_warmup_iters": max(1, min(50, steps // 20))}})
            if args.short:
                config["model"] |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            losses = [finished_run(args, f"{model}-{steps}-{seed}", config | {"seed": seed}) for seed in args.seeds]
            rows.append({"model": model, "steps": steps, "losses": losses, "loss": statistics.mean(losses)})
    return {**describe_machine(), "program": call(args, ["--version"]).strip(), "seeds": args.seeds, "rows": rows}


def table(report):
    by = {(r["model"], r["steps"]): r for r in report["rows"]}
    lines = [f"| held-out loss, mean of {len(report['seeds'])} seeds (least .. most) | dense | mixture |", "|---|---|---|"]
    for steps in sorted({r["steps"] for r in report["rows"]}):
        cells = [by[model, steps] for model in MODELS]
        lines.append(f"| {steps} steps | " + " | ".join(
            f"{r['loss']:.4f} ({min(r['losses']):.4f} .. {max(r['losses']):.4f})" for r in cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser, "runs/mixture")
    parser.add_argument("--steps", type=int, nargs="+", default=[300, 900])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--short", action="store_true", help="tiny models: to try the script")
    args = parser.parse_args()
    report = compare(args)
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
