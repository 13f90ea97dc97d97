#!/usr/bin/env python3
"""A ladder of recipes: each rung changes one thing of the rung before, and all have one text, width and depth.

usage: scripts/quickstart.sh; scripts/bench/ladder.py --out scripts/bench/results/ladder.json --table table.md
on a larger text: scripts/corpus.py --large runs/large/text; athanor tokenize --input runs/large/text --output-prefix runs/large/data/text
--valid-every 250; scripts/bench/ladder.py --train-data 'runs/large/data/*_train_*.bin' --valid-data 'runs/large/data/*_val_*.bin' ...

Losses are bits per byte of the whole held-out text after the last step of a finished schedule, the mean over --seeds: after
--steps steps (equal tokens), and after as many steps as take the time of the first rung's (equal time, of step times measured
in runs of --timed steps, one after the other). Each rung has the better of two learning rates, by the first seed, or with
--rates-of the one that a ladder measured before chose. Runs of one thread, --jobs at once; finished ones are kept in --work and
not repeated.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import statistics

from common import ROOT, add_run_flags, describe_machine, finished_run, with_options, write_results

ADAMW = {"optimizer": "adamw", "rates": (2e-3, 4e-3)}
MUON = {"optimizer": "muon", "rates": (4e-3, 8e-3)}
NORMUON = {"optimizer": "normuon", "cautious_weight_decay": True, "rates": (4e-3, 8e-3)}


def rungs(layers, hidden):
    """{name: (model, recipe)}, from the first rung to the last. Feed-forward layers with and without a gate have as many weights."""
    llama = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_attention_heads": hidden // 64,
             "max_position_embeddings": 256, "rope_theta": 10000, "tie_word_embeddings": True}
    gpt2 = {"model_type": "gpt2", "n_embd": hidden, "n_inner": 9 * hidden // 2, "n_head": hidden // 64, "n_positions": 256}
    qk_norm = llama | {"model_type": "qwen3"}
    speedrun = llama | {
        "model_type": "athanor", "intermediate_size": 9 * hidden // 2, "hidden_act": "relu2", "gated_mlp": False, "qk_norm": True,
        "qk_norm_elementwise_affine": False, "norm_elementwise_affine": False, "embedding_norm": True, "tie_word_embeddings": False,
        "final_logit_softcapping": 15,
        "initializer_ranges": {"lm_head.weight": 0, "*.o_proj.weight": 0, "*.down_proj.weight": 0}}
    skips = speedrun | {"resid_lambdas": [1.0], "x0_lambdas": [0.0], "skip_lambdas": [1.0],
                        "skip_from": [None if i < layers / 2 or i == layers else layers - 1 - i for i in range(layers + 1)]}
    tables = [i if 2 * i < layers else layers - 1 - i for i in range(layers)]
    values = skips | {"value_embeddings": tables, "value_embedding_lambdas": [0.5], "value_lambdas": [0.5]}
    return {"GPT-2, `adamw`": (gpt2, ADAMW),
            "Llama: RMSNorm, RoPE, SwiGLU": (llama, ADAMW),
            "and QK-norm": (qk_norm, ADAMW),
            "and `muon` (the quick start)": (qk_norm, MUON),
            "ReLU^2, norms without gain, zero output layers, logits below 15": (speedrun, MUON),
            "and factors of the stream, skips": (skips, MUON),
            "and value embeddings": (values, MUON),
            "and `normuon`, cautious decay": (values, NORMUON)}


class Ladder:
    def __init__(self, args):
        self.args = args
        self.base = json.loads(args.config.read_text())
        self.layers = args.layers or self.base["model"]["num_hidden_layers"]
        self.rungs = rungs(self.layers, args.hidden)
        self.numbers = {rung: i for i, rung in enumerate(self.rungs)}
        if args.rates_of:
            for row in json.loads(args.rates_of.read_text())["rows"]:
                model, recipe = self.rungs[row["rung"]]
                self.rungs[row["rung"]] = model, recipe | {"rates": (row["learning_rate"],)}
        if args.rungs:
            self.rungs = {rung: self.rungs[rung] for rung, number in self.numbers.items() if number in args.rungs}

    def name(self, rung, rate, steps, seed):
        return f"rung{self.numbers[rung]}-{rate:g}-{steps}-{seed}"

    def config(self, rung, rate, steps, seed):
        model, recipe = self.rungs[rung]
        tokens = {k: self.base["model"][k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}
        tokens["num_hidden_layers"] = self.layers
        if model["model_type"] == "gpt2":
            tokens["n_layer"] = tokens.pop("num_hidden_layers")
        config = with_options(self.base, {k: v for k, v in recipe.items() if k != "rates"})
        return with_options(config | {"model": model | tokens}, {
            "train_iters": steps, "learning_rate": rate, "schedule": {"lr_warmup_iters": max(1, steps // 20)},
            "seed": seed, "save_interval": 0})

    def loss(self, rung, rate, steps, seed):
        return finished_run(self.args, self.name(rung, rate, steps, seed), self.config(rung, rate, steps, seed)) / math.log(2)

    def all(self, runs):
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            return list(pool.map(lambda run: self.loss(*run), runs))

    def step_ms(self, rung):
        rate, seed = self.rungs[rung][1]["rates"][0], self.args.seeds[0]
        self.loss(rung, rate, self.args.timed, seed)
        path = self.args.work / self.name(rung, rate, self.args.timed, seed) / "run" / "metrics.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        times = [e["time"] for e in events if e["event"] == "step"]
        return statistics.median(b - a for a, b in zip(times, times[1:])) * 1e3

    def climb(self):
        steps, seeds = self.args.steps, self.args.seeds
        trials = [(rung, rate) for rung, (_, recipe) in self.rungs.items() for rate in recipe["rates"]]
        tried = dict(zip(trials, self.all([(*trial, steps, seeds[0]) for trial in trials])))
        best = {rung: min((rate for r, rate in trials if r == rung), key=lambda rate, r=rung: tried[r, rate]) for rung in self.rungs}
        found = iter(self.all([(rung, best[rung], steps, seed) for seed in seeds for rung in self.rungs]))
        found = {(seed, rung): next(found) for seed in seeds for rung in self.rungs}
        losses = {rung: [found[seed, rung] for seed in seeds] for rung in self.rungs}
        ms = {rung: self.step_ms(rung) for rung in self.rungs}
        fastest = ms[next(iter(self.rungs))]
        then = {rung: max(1, round(steps * fastest / ms[rung])) if self.args.equal_time else 0 for rung in self.rungs}
        rows = [{"rung": rung, "learning_rate": best[rung], "step_ms": ms[rung],
                 "tried": {rate: tried[r, rate] for r, rate in trials if r == rung},
                 "steps": steps, "losses": losses[rung], "steps_in_equal_time": then[rung],
                 "losses_in_equal_time": self.all([(rung, best[rung], then[rung], seed) for seed in seeds if then[rung]])}
                for rung in self.rungs]
        return {**describe_machine(), "seeds": seeds, "steps": steps, "hidden_size": self.args.hidden,
                "num_hidden_layers": self.layers, "rows": rows}


def table(report):
    def cell(losses):
        return f"{statistics.mean(losses):.3f} ({min(losses):.3f} .. {max(losses):.3f})"
    def in_equal_time(row):
        losses = row["losses_in_equal_time"]
        return f"{cell(losses)}, {row['steps_in_equal_time']} steps" if losses else "not run"
    lines = [f"| {r['rung']} | {r['learning_rate']:g} | {r['step_ms']:.0f} | {cell(r['losses'])} | {in_equal_time(r)} |"
             for r in report["rows"]]
    return "\n".join([f"| rung | rate | ms per step | bits per byte after {report['steps']} steps, mean of {len(report['seeds'])} "
                      "(least .. most) | in equal time |", "|---|--:|--:|--:|--:|", *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser, "runs/ladder")
    parser.set_defaults(threads=1)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=256, help="width of the models, a multiple of 64")
    parser.add_argument("--layers", type=int, default=0, help="0: as many as --config has")
    parser.add_argument("--rungs", type=int, nargs="+", default=[], help="numbers of the rungs that run, counted from 0; default: all")
    parser.add_argument("--rates-of", type=pathlib.Path, help="results of another ladder: each rung has the rate chosen there")
    parser.add_argument("--timed", type=int, default=40, help="steps of the runs that measure the time of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--no-equal-time", dest="equal_time", action="store_false", help="compare at equal tokens alone")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    report = Ladder(args).climb()
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
