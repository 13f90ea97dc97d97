#!/usr/bin/env python3
"""Compares precisions of 8 and 4 bits by what they learn: each against bf16, with the same seeds, batches and steps.

usage: scripts/quickstart.sh; scripts/bench/curves.py --out scripts/bench/results/curves.json --table curves.md

For each seed `athanor compare` trains the model in bf16 once and in every precision. Losses are those of the whole held-out
text after the last step; a gap is a precision's loss over bf16's with the same seed. PRECISION:KEY=VALUE,... sets options
of that precision's runs alone, so that its gap is that of both to bf16 without them; bf16:KEY=VALUE,... is bf16 with options
against bf16 without. Finished runs are kept in --work and
not repeated; a run that was stopped goes on. The exit code is 1 where the mean gap of a precision is beyond its limit.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from common import add_seed_flags, describe_machine, parse_seed_flags, with_options, write_results

# Largest mean gap that passes.
LIMITS = {"bf16": 0.005, "fp8_tensorwise": 0.005, "fp8_delayed": 0.005, "fp8_rowwise": 0.005, "fp8_rowwise_gw_hp": 0.005,
          "fp8_blockwise": 0.005, "mxfp8": 0.005, "nvfp4": 0.015}

# With 257 tokens and tied embeddings 10.7 million parameters.
MODEL = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}
SHORT_MODEL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
               "max_position_embeddings": 32}


def make_config(args):
    config = json.loads(args.config.read_text())
    config["model"].update(SHORT_MODEL if args.short else MODEL)
    if args.short:
        config["seq_length"] = config["model"]["max_position_embeddings"]
    return with_options(config, {
        "optimizer": "adamw", "learning_rate": args.rate, "train_iters": args.steps,
        "schedule": {"lr_warmup_iters": max(1, args.steps // 20), "lr_decay_style": "cosine", "min_lr": 0},
        "global_batch_size": args.sequences, "micro_batch_size": args.sequences,
        "train_data": args.train_data, "valid_data": args.valid_data, "eval_interval": 0, "save_interval": 0,
        "checkpoint": {"interval_minutes": 1, "keep_latest_k": 1}, "log_interval": 100,
        "logging": {"tensorboard": False, "progress": "off", "peak_tflops": 0.1}})


def call(args, words, codes=(0,)):
    done = subprocess.run([str(args.athanor), *map(str, words)], capture_output=True, text=True)
    if done.returncode not in codes:
        raise SystemExit(f"athanor {' '.join(map(str, words))} ended with status {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def split_entry(entry):
    """(precision, ["KEY=VALUE", ...]) of PRECISION or PRECISION:KEY=VALUE,..."""
    name, colon, options = entry.partition(":")
    return name, options.split(",") if colon else []


def entry_of(text):
    name, options = split_entry(text)
    if name not in LIMITS or (name == "bf16" and not options) or not all(key and equals for key, equals, _ in (o.partition("=") for o in options)):
        raise argparse.ArgumentTypeError(f"expected PRECISION or PRECISION:KEY=VALUE,... with one of {', '.join(LIMITS)}, got {text}")
    return text


def late_training_loss(run):
    """The mean of the last 50 steps."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return statistics.mean([r["loss"] for r in records if r["event"] == "step"][-50:])


def train_pair(args, path, folder, seed, entry):
    """Trains both, or goes on with them. Returns the folder of the run, and the gap of its training loss."""
    name, options = split_entry(entry)
    if name == "bf16":
        run, reference = folder / name_of(entry) / name, folder / "bf16"
        for where, extra in ((reference, []), (run, options)):
            if not (where / "held_out.json").is_file():
                call(args, ["train", path, *of_run(where, [f"seed={seed}", "precision=bf16", *extra])])
        return run, late_training_loss(run) / late_training_loss(reference) - 1
    run, comparison = train_both(args, path, folder, seed, entry)
    return run, comparison["steps"][-1]["gap"]


def name_of(entry):
    return entry.replace(":", "-").replace("=", "-").replace(",", "-")


def train_both(args, path, folder, seed, entry):
    """Of 8 or 4 bits: the folder of the run, and what compare.json says."""
    name, options = split_entry(entry)
    words = ["--set", f"precision={name}", "--set", f"seed={seed}"]
    if not options:
        told = folder / f"{name}.json"
        if not told.is_file():  # what the limits of `compare` say is in its report: 1 is no failure here
            call(args, ["compare", path, *words, "-o", folder], (0, 1))
            (folder / "compare.json").rename(told)
        return folder / name, json.loads(told.read_text())
    apart = folder / name_of(entry)
    told = apart / "compare.json"
    if not told.is_file():
        apart.mkdir(parents=True, exist_ok=True)
        call(args, ["train", path, *of_run(f"{folder}/bf16", [f"seed={seed}", "precision=bf16"])])
        words += of_run(f"{apart}/{name}", [f"logging.quantization_interval={max(1, args.steps // 100)}", *options])
        call(args, ["train", path, *words])
        if not (apart / "bf16").exists():
            (apart / "bf16").symlink_to(pathlib.Path("..") / "bf16")
        call(args, ["compare", path, *words, "-o", apart, "--summary"], (0, 1))
    return apart / name, json.loads(told.read_text())


def of_run(folder, options):
    options = [f"save={folder}", "load=auto", "logging.jsonl=true", *options]
    return [word for option in options for word in ("--set", option)]


def held_out(args, run):
    kept = run / "held_out.json"
    if not kept.is_file():
        kept.write_text(call(args, ["eval", run, "--data", args.valid_data, "--json"]).strip().splitlines()[-1] + "\n")
    return json.loads(kept.read_text())["loss"]


def compare(args, path):
    """{entry: {losses, gaps, training_gaps}} with one number for each seed, and bf16's losses."""
    results = {entry: {"losses": [], "gaps": [], "training_gaps": []} for entry in args.precisions}
    reference = []
    for seed in args.seeds:
        folder = args.work / f"seed-{seed}"
        for name, found in results.items():
            run, training_gap = train_pair(args, path, folder, seed, name)
            loss, of_reference = held_out(args, run), held_out(args, folder / "bf16")
            found["losses"].append(loss)
            found["gaps"].append(loss / of_reference - 1)
            found["training_gaps"].append(training_gap)
            print(f"  seed {seed}  {name:18} {loss:.4f}  bf16 {of_reference:.4f}  gap {100 * found['gaps'][-1]:+.2f} %", flush=True)
        reference.append(of_reference)
    for name, found in results.items():
        found |= {"mean_gap": statistics.mean(found["gaps"]), "limit": LIMITS[split_entry(name)[0]]}
    return {"bf16": reference, "precisions": results}


def table(report):
    lines = []
    for name, r in report["precisions"].items():
        gaps = [100 * gap for gap in r["gaps"]]
        lines.append(f"| `{name}` | {statistics.mean(r['losses']):.4f} | {100 * r['mean_gap']:+.2f} % ({min(gaps):+.2f} .. {max(gaps):+.2f}) | "
                     f"{100 * statistics.mean(r['training_gaps']):+.2f} % | {100 * r['limit']:.1f} % |")
    return "\n".join([
        f"| precision | held-out loss, mean of {len(report['seeds'])} | gap to bf16 (least .. most) | of the training loss | limit |",
        "|---|---|---|---|---|", f"| bf16 | {statistics.mean(report['bf16']):.4f} | | | |", *lines]) + "\n"


def describe(args, config):
    return {**describe_machine(), "program": call(args, ["--version"]).strip(), "model": config["model"],
            "learning_rate": args.rate, "tokens_a_step": args.sequences * config["seq_length"], "steps": args.steps,
            "seeds": args.seeds}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seed_flags(parser, work="runs/curves", model="larger", steps=3000)
    parser.add_argument("--precisions", nargs="+", type=entry_of, metavar="PRECISION[:KEY=VALUE,...]",
                        default=["fp8_tensorwise", "fp8_rowwise", "fp8_blockwise", "mxfp8", "nvfp4"])
    parser.add_argument("--sequences", type=int, default=2, help="of a step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate (default: %(default)s)")
    args = parse_seed_flags(parser)
    if args.short:
        args.steps, args.seeds = 6, args.seeds[:1]
    return args


def main():
    args = parse_arguments()
    config = make_config(args)
    args.work.mkdir(parents=True, exist_ok=True)
    path, text = args.work / "config.json", json.dumps(config, indent=2) + "\n"
    if path.is_file() and path.read_text() != text:
        raise SystemExit(f"{path} belongs to another comparison; give another --work, or remove {args.work}")
    path.write_text(text)
    report = describe(args, config)
    print(f"{args.steps} steps of {report['tokens_a_step']} tokens, seeds {args.seeds}; finished runs in {args.work} are kept")
    report |= compare(args, path)
    print(f"\n{table(report)}", end="")
    write_results(args, report, table(report))
    return any(r["mean_gap"] > r["limit"] for r in report["precisions"].values())


if __name__ == "__main__":
    sys.exit(main())
