#!/usr/bin/env python3
"""Compares optimizers by what they learn: one model, one text, the same tokens, each optimizer at the best of its rates.

usage: scripts/quickstart.sh; scripts/bench/learning.py --out scripts/bench/results/learning.json --table learning.md

For each optimizer the rates of RATES are tried with the first seed; the best one is run with the other seeds too. Whoever
beats AdamW is then trained anew with shorter schedules (--shares of the steps), so that the steps it needs for AdamW's
loss are those of a schedule that was finished: a loss read in the middle of one says little. Losses are those of the
whole held-out text after the last step. Finished runs are kept in --work and not repeated; a run that was stopped goes on.
"""
import argparse
import hashlib
import json
import statistics
import subprocess

from common import add_seed_flags, describe_machine, parse_seed_flags, with_options, write_results

# Peak learning rates that are tried. Those of Muon and NorMuon are for the scale match_rms; AdamW's part of the weights has them
# as well.
RATES = {
    "adamw": [1e-3, 2e-3, 4e-3, 8e-3],
    "adam": [1e-3, 2e-3, 4e-3, 8e-3],
    "lion": [3e-4, 1e-3, 3e-3, 10e-3],
    "adamw_8bit": [1e-3, 2e-3, 4e-3, 8e-3],
    "adafactor": [1e-3, 2e-3, 4e-3, 8e-3],
    "lamb": [8e-3, 16e-3, 32e-3, 64e-3],
    "sgd": [0.01, 0.03, 0.1, 0.3],
    "muon": [4e-3, 8e-3, 16e-3, 32e-3],
    "normuon": [4e-3, 8e-3, 16e-3, 32e-3],
    "schedule_free_adamw": [2e-3, 4e-3, 8e-3, 16e-3],
}
# What an optimizer gets besides: SGD and Adam couple their decay to the gradient, where 0.1 is far too much; Lion's rates
# are smaller, and its decay as much larger; schedule-free AdamW keeps the rate after the warm-up.
SETTINGS = {"sgd": {"weight_decay": 0}, "adam": {"weight_decay": 0}, "lion": {"weight_decay": 0.5},
            "schedule_free_adamw": {"schedule": {"lr_decay_style": "constant"}}}
RIVAL = "adamw"

# The model is small so that all runs take minutes on two cores.
MODEL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
SHORT_MODEL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
               "max_position_embeddings": 32}


def make_config(args, optimizer, rate, steps, seed):
    config = json.loads(args.config.read_text())
    config["model"].update(SHORT_MODEL if args.short else MODEL)
    config = with_options(config, {
        "optimizer": optimizer, "learning_rate": rate, "train_iters": steps, "seed": seed,
        "schedule": {"lr_warmup_iters": max(1, steps // 20), "lr_decay_style": "cosine", "min_lr": 0},
        "seq_length": config["model"]["max_position_embeddings"] if args.short else args.tokens // args.sequences,
        "global_batch_size": args.sequences, "micro_batch_size": args.sequences, "precision": args.precision,
        "train_data": args.train_data, "valid_data": args.valid_data,
        "eval_interval": 0, "save_interval": 0, "checkpoint": {"interval_minutes": 1, "keep_latest_k": 1},
        "log_interval": 100, "logging": {"tensorboard": False, "progress": "off", "peak_tflops": 0.1}})
    return with_options(config, SETTINGS.get(optimizer, {}))


class Bench:
    """Runs of the program, each in a folder of its own whose name says what it is."""

    def __init__(self, args):
        self.args = args
        self.version = self.call(["--version"]).strip()
        self.kept = self.made = 0
        self.known = {}  # results by name

    def call(self, words):
        done = subprocess.run([str(self.args.athanor), *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"athanor {' '.join(map(str, words))} ended with status {done.returncode}: {done.stderr[-800:]}")
        return done.stdout

    def run(self, optimizer, rate, steps, seed):
        """{loss, ...} of a finished schedule; loss null where it diverged."""
        config = make_config(self.args, optimizer, rate, steps, seed)
        text = json.dumps([config, self.version], sort_keys=True)
        name = f"{optimizer}-{rate:g}-{steps}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        if name not in self.known:
            self.known[name] = self.find_or_make(self.args.work / name, config)
        return self.known[name]

    def find_or_make(self, folder, config):
        result = folder / "result.json"
        if result.is_file():
            self.kept += 1
            return json.loads(result.read_text())
        folder.mkdir(parents=True, exist_ok=True)
        config["save"] = str(folder / "run")
        path = folder / "config.json"
        path.write_text(json.dumps(config, indent=2) + "\n")
        done = subprocess.run([str(self.args.athanor), "train", str(path)], capture_output=True, text=True)
        if done.returncode not in (0, 3):
            raise SystemExit(f"training {path} ended with status {done.returncode}: {done.stderr[-800:]}")
        loss = None
        if done.returncode == 0:
            evaluated = self.call(["eval", folder / "run", "--data", self.args.valid_data, "--json"])
            loss = json.loads(evaluated.strip().splitlines()[-1])["loss"]
        found = {key: config[key] for key in ("optimizer", "learning_rate", "train_iters", "seed")} | {"loss": loss}
        part = result.with_suffix(".part")
        part.write_text(json.dumps(found) + "\n")
        part.rename(result)
        self.made += 1
        print(f"  {config['optimizer']:20} rate {config['learning_rate']:<8g} {config['train_iters']:6} steps, "
              f"seed {config['seed']}: " + ("diverged" if loss is None else f"{loss:.4f}"), flush=True)
        return found

    def tune(self, optimizer):
        """The runs of all rates with the first seed, and the best rate."""
        runs = [self.run(optimizer, rate, self.args.steps, self.args.seeds[0]) for rate in self.args.rates(optimizer)]
        finished = [r for r in runs if r["loss"] is not None]
        if not finished:
            raise SystemExit(f"{optimizer}: diverged at every rate of {self.args.rates(optimizer)}; add smaller ones to RATES")
        return runs, min(finished, key=lambda r: r["loss"])["learning_rate"]

    def at(self, optimizer, rate, steps):
        """Runs of all seeds, and the mean of their losses; infinite if one diverged."""
        runs = [self.run(optimizer, rate, steps, seed) for seed in self.args.seeds]
        losses = [r["loss"] for r in runs]
        return runs, statistics.mean(losses) if None not in losses else float("inf")

    def compare(self):
        results = {}
        for optimizer in self.args.optimizers:
            tried, rate = self.tune(optimizer)
            runs, loss = self.at(optimizer, rate, self.args.steps)
            rates = self.args.rates(optimizer)
            results[optimizer] = {
                "learning_rate": rate, "loss": loss, "losses": [r["loss"] for r in runs],
                "rates": {f"{r['learning_rate']:g}": r["loss"] for r in tried},
                "best_rate_is_at_the_edge": len(rates) > 1 and rate in (rates[0], rates[-1])}
        goal = results[RIVAL]["loss"]
        for optimizer, found in results.items():
            found["shorter"] = {}
            if optimizer == RIVAL or not found["loss"] <= goal:
                continue
            for share in sorted(self.args.shares, reverse=True):  # until one no longer reaches it
                steps = max(1, round(self.args.steps * share))
                found["shorter"][steps] = self.at(optimizer, found["learning_rate"], steps)[1]
                if found["shorter"][steps] > goal:
                    break
            reached = [s for s, loss in found["shorter"].items() if loss <= goal]
            found["steps_to_rival"] = min([*reached, self.args.steps])
        return results


def table(report):
    """Markdown; the least loss first."""
    steps, lines = report["steps"], []
    for name, r in sorted(report["results"].items(), key=lambda item: item[1]["loss"]):
        spread = f"{r['loss']:.3f} ({min(r['losses']):.3f} .. {max(r['losses']):.3f})" if None not in r["losses"] else "diverged"
        needed = r.get("steps_to_rival")
        reach = "100 %" if name == RIVAL else f"{needed} ({100 * needed / steps:.0f} %)" if needed else "not reached"
        edge = ", the edge" if r["best_rate_is_at_the_edge"] else ""
        lines.append(f"| {name} | {', '.join(r['rates'])} | {r['learning_rate']:g}{edge} | {spread} | {reach} |")
    return "\n".join([
        f"| optimizer | rates tried | best | held-out loss, mean of {len(report['seeds'])} (least .. most) | steps to AdamW's loss |",
        "|---|---|---|---|---|", *lines]) + "\n"


def describe(args, bench):
    shape = make_config(args, RIVAL, 1, 1, 0)
    return {**describe_machine(), "program": bench.version, "model": shape["model"], "precision": args.precision,
            "tokens_a_step": args.sequences * shape["seq_length"], "steps": args.steps, "seeds": args.seeds,
            "settings": {name: SETTINGS[name] for name in args.optimizers if name in SETTINGS}}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seed_flags(parser, work="runs/learning", model="smaller", steps=600)
    parser.add_argument("--optimizers", nargs="+", choices=RATES, default=list(RATES), help=f"{RIVAL} always is one of them")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=8, help="of a step (default: %(default)s)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.8, 0.65, 0.5, 0.4, 0.3],
                        help="lengths of shorter schedules, parts of --steps (default: %(default)s)")
    parser.add_argument("--precision", default="fp32")
    args = parse_seed_flags(parser)
    if args.tokens % args.sequences != 0:
        parser.error(f"--tokens {args.tokens} do not divide among {args.sequences} sequences")
    if args.short:
        args.steps, args.seeds, args.shares, args.sequences = 8, args.seeds[:1], [0.5], 4
    if RIVAL not in args.optimizers:
        args.optimizers.insert(0, RIVAL)
    args.rates = lambda optimizer: RATES[optimizer][:1] if args.short else RATES[optimizer]
    return args


def main():
    args = parse_arguments()
    bench = Bench(args)
    report = describe(args, bench)
    print(f"{args.steps} steps of {report['tokens_a_step']} tokens, seeds {args.seeds}; finished runs in {args.work} are kept")
    report["results"] = bench.compare()
    print(f"\n{bench.made} runs made, {bench.kept} were there\n\n{table(report)}", end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
