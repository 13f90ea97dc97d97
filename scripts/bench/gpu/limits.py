#!/usr/bin/env python3
"""Prints the modelled limits of the models of compare.py on a described GPU, from `athanor plan --gpu`, as Markdown.

usage: limits.py [--gpu h200] [--athanor PROGRAM]       docs/speed.md describes the model
       limits.py --precisions bf16,fp8_tensorwise,...   of 8 and 4 bits, with memory; docs/precision.md holds its output.
                                                        fp8_tensorwise:fp8.lm_head=true sets options, too
"""
import argparse
import re
import subprocess
from pathlib import Path

from compare import MODELS, ROOT, find_program

TOKENS = 524288  # of a step
KINDS = {"gemm": "GEMMs", "scaled_gemm": "GEMMs", "quantize": "quantize", "attention_fwd": "attention",
         "attention_bwd": "attention"}


def limit(program, gpu, name, model, precision="bf16"):
    sets = ["recompute_granularity=none", f"seq_length={model['seq']}", f"global_batch_size={TOKENS // model['seq']}",
            *f"precision={precision}".split(":")]
    sets += ["master_weights=bf16"] if model.get("state") == "bf16" else []
    flags = [word for s in sets for word in ("--set", s)]
    done = subprocess.run([program, "plan", ROOT / "configs" / f"{name}.json", "--gpu", gpu, *flags],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"limits.py: {name}: {done.stderr.strip()}")
    find = lambda pattern: re.search(pattern, done.stdout, re.M).group(1)
    ms, shares = float(find(r"predicted step +([\d.]+) ms")), {}
    for op, least in re.findall(r"^(\w+) +\d+ +\S+ +\S+ +([\d.]+)$", done.stdout, re.M):
        kind = KINDS.get(op, "rest")
        shares[kind] = shares.get(kind, 0.0) + float(least)
    return {"tokens": TOKENS / ms * 1e3, "micro": find(r"of (\d+) sequences of"), "memory": find(r"^  total +(\S+ \S+)"),
            "recompute": find(r"recomputation +(\w+)"), "shares": {k: 100 * v / ms for k, v in shares.items()}}


def print_models(args):
    print("| model, tokens | micro-batch, recomputation | limit, tokens/s | target model | of it | GEMMs | "
          "attention | rest |\n|---|---|---|---|---|---|---|---|")
    for name, model in sorted(MODELS.items()):
        row = limit(args.athanor, args.gpu, name, model)
        shares = " | ".join(f"{row['shares'].get(k, 0):.0f} %" for k in ("GEMMs", "attention", "rest"))
        print(f"| {name}, {model['seq']} | {row['micro']}, {row['recompute']} | {row['tokens'] / 1e3:.1f}k | "
              f"{model['limit'] / 1e3:.1f}k | {100 * row['tokens'] / model['limit']:.0f} % | {shares} |")


def print_precisions(args, precisions):
    print("| model, tokens | `precision` | micro-batch, recomputation | memory | limit, tokens/s | ratio to bf16 | GEMMs | "
          "quantize | attention | rest |\n|---|---|---|---|---|---|---|---|---|---|")
    for name, model in sorted(MODELS.items()):
        if "gain" not in model:
            continue
        bf16 = None
        for precision in precisions:
            row = limit(args.athanor, args.gpu, name, model, precision)
            bf16 = bf16 or row["tokens"]
            shares = " | ".join(f"{row['shares'].get(k, 0):.0f} %"
                                for k in ("GEMMs", "quantize", "attention", "rest"))
            print(f"| {name}, {model['seq']} | {precision.replace(':', ', ')} | {row['micro']}, {row['recompute']} | {row['memory']} | "
                  f"{row['tokens'] / 1e3:.1f}k | {row['tokens'] / bf16:.2f} | {shares} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--athanor", type=Path, default=find_program(),
                        help="the program; default: beside scripts/, or build/athanor")
    parser.add_argument("--precisions", help="comma separated, the first is compared with")
    args = parser.parse_args()
    print_precisions(args, args.precisions.split(",")) if args.precisions else print_models(args)


if __name__ == "__main__":
    main()
