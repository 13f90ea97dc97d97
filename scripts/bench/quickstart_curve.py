#!/usr/bin/env python3
"""Measures what loss the quick start reaches in fewer steps than configs/quickstart.json has.

usage: scripts/quickstart.sh; scripts/bench/quickstart_curve.py [--threads N] --out scripts/bench/results/quickstart-curve.json

Each number of steps is a finished schedule of its own. scripts/quickstart_summary.py compares a slow machine's run with this curve.
"""
import argparse
import json

from common import ROOT, add_run_flags, call, describe_machine, finished_run, write_results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser, "runs/quickstart-curve")
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 200, 400, 800, 1600])
    args = parser.parse_args()
    config = json.loads((ROOT / "configs" / "quickstart.json").read_text())
    losses = {steps: finished_run(args, f"steps-{steps}", config | {"train_iters": steps}) for steps in args.steps}
    write_results(args, {**describe_machine(), "program": call(args, ["--version"]).strip(), "loss_by_steps": losses},
                  "".join(f"| {steps} | {loss:.3f} |\n" for steps, loss in losses.items()))


if __name__ == "__main__":
    main()
