#!/usr/bin/env python3
"""A ladder of recipes: each rung changes one thing of the rung before, and all have the quick start's text, width and depth.

usage: scripts/quickstart.sh; scripts/bench/ladder.py --out scripts/bench/results/ladder.json --table table.md

Losses are bits per byte of the whole held-out text after the last step of a finished schedule, the mean over --seeds: after
--steps steps (equal tokens), and after as many steps as take the time of the first rung's (equal time, of step times measured
first, in runs of --timed steps, one after the other). Each rung has the better of two learning rates, by the first seed. Runs of one thread, --jobs at once; finished
ones are kept in --work and not repeated.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import statistics

from common import ROOT, add_run_flags, describe_machine, finished_run, write_results

GATED, NOT_GATED = 768, 1152  # widths of feed-forward layers with as many weights
LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": GATED, "num_attention_heads": 4,
         "max_position_embeddings": 256, "rope_theta": 10000, "tie_word_embeddings": True}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_inner": NOT_GATED, "n_head": 4, "n_positions": 256}
QK_NORM = LLAMA | {"model_type": "qwen3"}
SPEEDRUN = LLAMA | {"model_type": "athanor", "intermediate_size": NOT_GATED, "hidden_act": "relu2", "gated_mlp": False, "qk_norm": True,
                    "qk_norm_elementwise_affine": False, "norm_elementwise_affine": False, "embedding_norm": True,
                    "tie_word_embeddings": False, "final_logit_softcapping": 15,
                    "initializer_ranges": {"lm_head.weight": 0, "*.o_proj.weight": 0, "*.down_proj.weight": 0}}
ADAMW = {"optimizer": "adamw", "rates": (2e-3, 4e-3)}
MUON = {"optimizer": "muon", "rates": (4e-3, 8e-3)}
NORMUON = {"optimizer": "normuon", "cautious_weight_decay": True, "rates": (4e-3, 8e-3)}


def rungs(layers):
    """{name: (model, recipe)}, from the first rung to the last."""
    skips = SPEEDRUN | {"resid_lambdas": [1.0], "x0_lambdas": [0.0], "skip_lambdas": [1.0],
                        "skip_from": [None if i < layers / 2 or i == layers else layers - 1 - i for i in range(layers + 1)]}
    tables = [i if 2 * i < layers else layers - 1 - i for i in range(layers)]
    values = skips | {"value_embeddings": tables, "value_embedding_lambdas": [0.5], "value_lambdas": [0.5]}
    return {"GPT-2, `adamw`": (GPT2, ADAMW),
            "Llama: RMSNorm, RoPE, SwiGLU": (LLAMA, ADAMW),
            "and QK-norm": (QK_NORM, ADAMW),
            "and `muon` (the quick start)": (QK_NORM, MUON),
            "ReLU^2, norms without gain, zero output layers, logits below 15": (SPEEDRUN, MUON),
            "and factors of the stream, skips": (skips, MUON),
            "and value embeddings": (values, MUON),
            "and `normuon`, cautious decay": (values, NORMUON)}


class Ladder:
    def __init__(self, args):
        self.args = args
        self.base = json.loads(args.config.read_text())
        self.layers = self.base["model"]["num_hidden_layers"]
        self.rungs = rungs(self.layers)

    def name(self, rung, rate, steps, seed):
        return f"rung{list(self.rungs).index(rung)}-{rate:g}-{steps}-{seed}"

    def config(self, rung, rate, steps, seed):
        model, recipe = self.rungs[rung]
        tokens = {k: self.base["model"][k] for k in ("vocab_size", "bos_token_id", "eos_token_id", "num_hidden_layers")}
        if model["model_type"] == "gpt2":
            tokens["n_layer"] = tokens.pop("num_hidden_layers")
        return self.base | {k: v for k, v in recipe.items() if k != "rates"} | {
            "model": model | tokens, "train_iters": steps, "learning_rate": rate, "lr_warmup_iters": max(1, steps // 20),
            "seed": seed, "save_interval": 0}

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
        steps, first = self.args.steps, self.args.seeds[0]
        ms = {rung: self.step_ms(rung) for rung in self.rungs}
        trials = [(rung, rate) for rung, (_, recipe) in self.rungs.items() for rate in recipe["rates"]]
        tried = dict(zip(trials, self.all([(*trial, steps, first) for trial in trials])))
        best = {rung: min((rate for r, rate in trials if r == rung), key=lambda rate, r=rung: tried[r, rate]) for rung in self.rungs}
        fastest = ms[next(iter(self.rungs))]
        rows = []
        for rung in self.rungs:
            then = max(1, round(steps * fastest / ms[rung]))
            runs = [(rung, best[rung], n, seed) for n in (steps, then) for seed in self.args.seeds]
            losses = self.all(runs)
            count = len(self.args.seeds)
            rows.append({"rung": rung, "learning_rate": best[rung], "step_ms": ms[rung], "tried": {
                rate: tried[rung, rate] for r, rate in trials if r == rung}, "steps": steps, "losses": losses[:count],
                         "steps_in_equal_time": then, "losses_in_equal_time": losses[count:]})
        return {**describe_machine(), "seeds": self.args.seeds, "steps": steps, "jobs": self.args.jobs, "rows": rows}


def table(report):
    def cell(losses):
        return f"{statistics.mean(losses):.3f} ({min(losses):.3f} .. {max(losses):.3f})"
    lines = [f"| {r['rung']} | {r['learning_rate']:g} | {r['step_ms']:.0f} | {cell(r['losses'])} | {cell(r['losses_in_equal_time'])}, "
             f"{r['steps_in_equal_time']} steps |" for r in report["rows"]]
    return "\n".join([f"| rung | rate | ms per step | bits per byte after {report['steps']} steps, mean of {len(report['seeds'])} "
                      "(least .. most) | in equal time |", "|---|--:|--:|--:|--:|", *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser, "runs/ladder")
    parser.set_defaults(threads=1)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--timed", type=int, default=40, help="steps of the runs that measure the time of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    report = Ladder(args).climb()
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
