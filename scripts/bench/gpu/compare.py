#!/usr/bin/env python3
"""Times whole training steps of athanor, PyTorch and, where built, llm.c and LLMQ: same model, batch, sequence, steps.

The sides take turns, so that a device that slows down slows all; medians, and the median over the turns of the ratio of
neighbours, go to DIR/compare.json. A call ends after --minutes: models that then have no times are 'not run', and a
later call of the same commit on the same device adds them. README.md beside this file says what is compared.

usage: compare.py [--models A,B] [--precisions bf16,fp8_tensorwise] [--minutes 9] [--peers FOLDER] [--device cuda|cpu]
                  [--out DIR]
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import sides

ROOT = sides.HERE.parents[2]

# config: in configs/. seq, tokens: of a sequence, of a step. micro: sequences that PyTorch computes at once, halved
# when its memory does not suffice. goal, limit: tokens/s that are aimed at, and modelled for an H200 (docs/speed.md).
# state bf16: masters and moments of PyTorch in bf16, where f32 does not fit on one GPU; its process then lives for one
# turn alone. rounds: at most; starts take most of the time of large models. llmc, llmq: flags of those programs.
# gain: of 8 bits over our own bf16, at least: what LLMQ (Qwen) and torchao (Llama 8B, "tensorwise") publish for an H100,
# for 1B between them.
MODELS = {
    "gpt2-124m": dict(seq=1024, tokens=262144, micro=64, goal=620e3, limit=693e3,
                      llmc=["-e", "d12", "-b", 64, "-ge", 0]),
    "llama-1b": dict(seq=4096, tokens=65536, micro=8, goal=70e3, limit=80e3, gain=1.2),
    "qwen2.5-0.5b": dict(seq=1024, tokens=131072, micro=32, goal=175e3, limit=196e3, gain=1.1,
                         llmq=["--model=Qwen2.5-0.5B", "--batch-size=32", "--grad-accumulation=4"]),
    "gpt2-1558m": dict(seq=1024, tokens=65536, micro=16, goal=57e3, limit=64e3,
                       llmc=["-e", "d48", "-b", 16, "-ge", 1]),
    "qwen2.5-1.5b": dict(seq=1024, tokens=65536, micro=32, goal=66e3, limit=73e3, gain=1.24,
                         llmq=["--model=Qwen2.5-1.5B", "--batch-size=32", "--grad-accumulation=2",
                               "--lmhead-chunks=4"]),
    "gpt2-350m": dict(seq=1024, tokens=131072, micro=32, goal=235e3, limit=260e3,
                      llmc=["-e", "d24", "-b", 32, "-ge", 0]),
    "gpt2-774m": dict(seq=1024, tokens=65536, micro=32, goal=109e3, limit=121e3,
                      llmc=["-e", "d36", "-b", 32, "-ge", 1]),
    "llama-8b": dict(seq=8192, tokens=32768, micro=1, goal=12e3, limit=13.9e3, gain=1.25, state="bf16", rounds=1),
    "qwen2.5-7b": dict(seq=1024, tokens=32768, micro=8, goal=15.6e3, limit=17.3e3, gain=1.36, state="bf16", rounds=1,
                       llmq=["--model=Qwen2.5-7B", "--batch-size=4", "--grad-accumulation=8", "--lmhead-chunks=2",
                             "--attn-bwd-chunks=2"]),
}
# How much faster than others athanor is meant to be, and how soon its first step is meant to end.
FASTER_THAN = {"torch": 1.3, "llm.c": 1.15, "LLMQ": 1.15}
FIRST_STEP_SECONDS = 3
# Seconds that a start takes on a GPU, thought, not measured: libraries, plans and weights; the search for GEMMs,
# once for each model; PyTorch with its compiler.
START, SEARCH, TORCH_START = 3.5, 7, 25
TINY = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64}
# Models in 8 bits, beside bf16: the modelled limits (limits.py), in tokens/s. GPT-2 has no published figures. With a scale
# per row the goal is two fifths of the gain, as torchao's.
EIGHT_BITS = ("fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp", "fp8_blockwise")
OF_ROWS = 0.4
LIMITS = {
    "llama-1b": (1.028e5, 1.061e5, 1.005e5, 9.31e4, 1.058e5),
    "llama-8b": (2.04e4, 2.09e4, 2.02e4, 1.76e4, 2.08e4),
    "qwen2.5-0.5b": (2.256e5, 2.391e5, 2.162e5, 2.106e5, 2.381e5),
    "qwen2.5-1.5b": (9.71e4, 1.024e5, 9.34e4, 8.52e4, 1.02e5),
    "qwen2.5-7b": (2.74e4, 2.83e4, 2.62e4, 2.25e4, 2.83e4),
}
TINY_MODELS = {
    "tiny-gpt2": dict(seq=32, tokens=256, micro=4, goal=1e9, limit=2e9, seconds=5, model=TINY | {"model_type": "gpt2"},
                      llmc=["-e", "d1", "-b", 4], llmq=["--model=tiny"]),
    "tiny-llama": dict(seq=32, tokens=256, micro=4, goal=1, limit=2e9, seconds=5, gain=0.01, model=TINY | {
        "model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 128}),
}


def in_precisions(known, names, precisions):
    """Rows to measure: (name, model). In 8 bits those of which a gain is known, with goals and limits of their own."""
    rows = []
    for name in names:
        for precision in precisions:
            model = known[name]
            if precision in EIGHT_BITS and "gain" in model:
                gain = 1 + (model["gain"] - 1) * (OF_ROWS if "rowwise" in precision else 1)
                limits = dict(zip(EIGHT_BITS, LIMITS.get(name, ())))
                rows.append((f"{name} {precision}", model | {"config": name, "precision": precision, "gain": gain,
                                                             "goal": gain * model["goal"],
                                                             "limit": limits.get(precision)}))
            elif precision == "bf16":
                rows.append((name, model))
    return rows


def rounds_of(model, args):
    return min(args.rounds, model.get("rounds", args.rounds))


def seconds_needed(model, args):
    """Estimated time of a model at its target speed, with the maximum number of sides."""
    if "seconds" in model:
        return model["seconds"]
    step, rounds = model["tokens"] / model["goal"], rounds_of(model, args)
    if "precision" in model:  # ours in two precisions, and LLMQ
        bf16, peer = model["gain"] * step, args.peers and "llmq" in model
        turns = [step, bf16] + ([1.15 * step] if peer else [])
        return 2 * SEARCH + rounds * sum(START + (args.steps + max(args.warmup, 2)) * s for s in turns)
    turn = START + (args.steps + max(args.warmup, 2)) * step
    ours = rounds * (turn + (args.steps + 2) * step) + SEARCH  # two prepare those whose ops are timed
    starts = rounds if model.get("state") == "bf16" else 1
    torch = starts * TORCH_START + rounds * (args.steps + args.warmup) * FASTER_THAN["torch"] * step
    return ours + torch + (1.15 * rounds * turn if args.peers and ("llmc" in model or "llmq" in model) else 0)


def make_config(name, model, args, folder):
    if "model" in model:
        config = {"model": model["model"]}
    else:
        config = json.loads((ROOT / "configs" / f"{model.get('config', name)}.json").read_text())
        for key in ("train_tokens", "train_data", "valid_data", "save", "recompute_granularity"):
            config.pop(key, None)
    config |= {"seq_length": model["seq"], "global_batch_size": model["tokens"] // model["seq"], "train_iters": 1000,
               "schedule": {"lr_warmup_iters": 10}, "learning_rate": 3e-4, "device": args.device,
               "micro_batch_size": "auto", "precision": model.get("precision", "fp32" if args.device == "cpu" else "bf16")}
    if args.device == "cuda":  # one search for all turns, in the first
        config |= {"autotune_seconds": 60, "tuning_cache": str(folder / "tuning")}
    if model.get("state") == "bf16":
        config["master_weights"] = "bf16"
    if args.threads:
        config["threads"] = args.threads
    path = folder / f"{name.replace(' ', '-')}.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def sides_of(name, model, args, folder, data, deadline):
    config = make_config(name, model, args, folder)
    if "precision" in model:
        plain = make_config(f"{name} beside", model | {"precision": "bf16"}, args, folder)
        return [sides.Athanor(args.athanor, config, deadline), sides.Athanor(args.athanor, plain, deadline, "bf16"),
                *sides.peers(args.peers, model, data, deadline)]
    state = model.get("state", "f32")
    options = ["--device", args.device, "--micro", model["micro"], "--compile", args.torch_compile, "--state", state]
    if args.threads:
        options += ["--threads", args.threads]
    return [sides.Athanor(args.athanor, config, deadline),
            sides.Torch(args.python, config, options, state == "f32", deadline),
            *sides.peers(args.peers, model, data, deadline)]


def summarize(turns):
    steps = [ms for t in turns for ms in t["step_ms"]]
    median = statistics.median(steps)
    out = {"median_ms": round(median, 4), "fastest_ms": round(min(steps), 4), "slowest_ms": round(max(steps), 4),
           "turn_medians_ms": [round(statistics.median(t["step_ms"]), 4) for t in turns], "steps": len(steps),
           "tokens_per_second": round(turns[0]["tokens_per_step"] / median * 1e3, 1)}
    return out | {k: turns[-1][k] for k in ("micro_batch_size", "memory_bytes", "attention", "torch") if k in turns[-1]}


def check_same_work(model, turns_of):
    for name, turns in turns_of.items():
        for t in turns:
            if t["tokens_per_step"] != model["tokens"]:
                raise ValueError(f"{name}: {t['tokens_per_step']} tokens a step, {model['tokens']} were asked for")
    counts = {t["parameters"] for turns in turns_of.values() for t in turns if "parameters" in t}
    if len(counts) > 1:
        raise ValueError(f"the sides differ in parameters: {sorted(counts)}")
    return counts.pop()


def judge(row):
    """The goals of a row: [name, goal, reached, met]."""
    goals = [["tokens/s", row["model"]["goal"], row["sides"]["athanor"]["tokens_per_second"]]]
    if "precision" in row["model"] and "bf16" in row["sides"]:
        goals.append(["times its own bf16", row["model"]["gain"], row["sides"]["bf16"]["athanor_is_faster_by"]])
    goals += [[f"times {side}", least, row["sides"][side]["athanor_is_faster_by"]]
              for side, least in FASTER_THAN.items() if side in row["sides"]]
    judged = [[*goal, goal[2] >= goal[1]] for goal in goals]
    if "start_seconds" in row:
        judged.append(["seconds to the first step", FIRST_STEP_SECONDS, row["start_seconds"],
                       row["start_seconds"] <= FIRST_STEP_SECONDS])
    return judged


def compare_model(name, model, args, folder, data, deadline):
    """One row of the report. A failing side is left out with its reason; without athanor's times there is no row."""
    needed = seconds_needed(model, args)
    if deadline.left() < needed * args.patience:
        return {"status": "not run", "why": f"{deadline.left():.0f} s were left, about {needed:.0f} are needed"}
    all_sides = sides_of(name, model, args, folder, data, deadline)
    turns, out = {s.name: [] for s in all_sides}, {"status": "measured", "model": model, "not_run": {}}
    try:
        if name == "gpt2-124m" or (args.device == "cpu" and "precision" not in model):
            out["start_seconds"] = round(all_sides[0].start_seconds(), 3)
        for round_ in range(rounds_of(model, args)):
            first = round_ % len(all_sides)
            for side in all_sides[first:] + all_sides[:first]:  # nobody is always first
                if side.name in out["not_run"]:
                    continue
                try:
                    turns[side.name].append(side.turn(args.steps, args.warmup))
                except sides.NotRun as why:
                    if not turns[side.name]:
                        out["not_run"][side.name] = str(why)
            if deadline.left() < needed / 2:
                break
    except sides.NotRun as why:
        out["not_run"]["athanor"] = str(why)
    finally:
        for side in all_sides:
            side.close()
    turns = {side: t for side, t in turns.items() if t}
    if "athanor" not in turns:
        return {"status": "not run", "why": out["not_run"].get("athanor", "no turn ended"), "not_run": out["not_run"]}
    out["parameters"] = check_same_work(model, turns)
    out["sides"] = {side: summarize(t) for side, t in turns.items()}
    ours = out["sides"]["athanor"]["turn_medians_ms"]
    for side, numbers in out["sides"].items():
        ratios = [theirs / mine for mine, theirs in zip(ours, numbers["turn_medians_ms"])]
        numbers["athanor_is_faster_by"] = round(statistics.median(ratios), 3)
    out["gap"], out["goals"] = turns["athanor"][-1]["gap"], judge(out)
    return out


def hardware(args):
    devices = json.loads(subprocess.run([args.athanor, "devices", "--json"], capture_output=True, text=True,
                                        check=True).stdout)
    if args.device == "cpu":
        return devices["cpu"]
    usable = [g for g in devices["gpus"] if not g["problem"]]
    if not usable:
        sys.exit(f"compare.py: no usable GPU: {devices['why_no_gpu'] or devices['gpus']}")
    return usable[0]["name"]


def commit():
    stamp = ROOT / "COMMIT"
    if stamp.exists():
        return stamp.read_text().strip()
    return subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def load_report(path, args, place=None):
    """What earlier calls of this commit left there; place: the device, where it is not that of the arguments."""
    head = {"commit": commit()} | (place or {"device": args.device, "hardware": hardware(args)})
    for earlier in (path, args.earlier):
        if earlier and earlier.exists():
            report = json.loads(earlier.read_text())
            if all(report.get(k) == v for k, v in head.items()):
                return report
    return head | {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "models": {}}


def find_program():
    places = [ROOT / "athanor", ROOT / "build" / "athanor"]
    return next((p for p in places if os.access(p, os.X_OK)), places[0])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="comma separated; default: all, " + ", ".join(MODELS))
    parser.add_argument("--precisions", default="bf16", help="comma separated; with 8 bits: Llama and Qwen models alone, "
                        "beside their own bf16 and LLMQ's e4m3: " + ", ".join(EIGHT_BITS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "compare-out")))
    parser.add_argument("--earlier", type=Path, help="compare.json of earlier calls, where --out is another folder")
    parser.add_argument("--athanor", type=Path, help="the program; default: beside scripts/, or build/athanor")
    parser.add_argument("--python", default=os.environ.get("ATHANOR_PYTHON", sys.executable), help="one with PyTorch")
    parser.add_argument("--peers", type=Path, help="folder with train_gpt2cu (llm.c) and train (LLMQ)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models, to try the script")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="timed in a turn")
    parser.add_argument("--warmup", type=int, default=1, help="before them")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU")
    parser.add_argument("--patience", type=float, default=1.0,
                        help="factor of the time that a model is thought to need")
    parser.add_argument("--torch-compile", default="default", help="none, default or a mode of torch.compile")
    args = parser.parse_args()
    args.peers = args.peers.resolve() if args.peers else None
    args.athanor = args.athanor or find_program()
    return args


def main():
    args = parse_arguments()
    known = MODELS if args.device == "cuda" else TINY_MODELS
    names = args.models.split(",") if args.models else list(known)
    if unknown := [n for n in names if n not in known]:
        sys.exit(f"compare.py: unknown model {unknown[0]}; known are {', '.join(known)}")
    precisions = args.precisions.split(",")
    if unknown := [p for p in precisions if p not in ("bf16", *EIGHT_BITS)]:
        sys.exit(f"compare.py: unknown precision {unknown[0]}; known are bf16, {', '.join(EIGHT_BITS)}")
    rows = in_precisions(known, names, precisions)
    if not rows:
        sys.exit(f"compare.py: nothing to compare: {args.precisions} is compared only for Llama and Qwen models, "
                 f"not {args.models}")
    deadline = sides.Deadline(args.minutes)
    if args.device == "cuda":  # elsewhere they are of no use, and some crash without a driver
        sides.show_libraries(args.python)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "compare.json"
    report = load_report(path, args)
    report["settings"] = {"rounds": args.rounds, "steps": args.steps, "warmup": args.warmup,
                          "torch": args.torch_compile, "precision": "fp32" if args.device == "cpu" else "bf16"}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        data = sides.write_tokens(folder) if args.peers else None
        for name, model in rows:
            row = compare_model(name, model, args, folder, data, deadline)
            if row["status"] == "measured" or report["models"].get(name, {}).get("status") != "measured":
                report["models"][name] = row
            path.write_text(json.dumps(report, indent=1) + "\n")
            if row["status"] != "measured":
                print(f"{name:14} not run: {row['why']}", flush=True)
                continue
            for side, s in row["sides"].items():
                print(f"{name:14} {side:8} {s['median_ms']:10.2f} ms {s['tokens_per_second']:12.0f} tokens/s   "
                      f"athanor is {s['athanor_is_faster_by']:.2f} times as fast", flush=True)
            for what, goal, reached, met in row["goals"]:
                print(f"{name:14} {'met' if met else 'MISSED':8} {what}: {reached:,.6g}, goal {goal:,.6g}", flush=True)
            for side, why in row["not_run"].items():
                print(f"{name:14} {side:8} not run: {why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
