#!/usr/bin/env python3
"""Compares a student that learns from a teacher with one that learns from the text alone, at whole and shorter schedules.

usage: scripts/quickstart.sh; scripts/bench/distillation.py --out scripts/bench/results/distillation.json --table table.md

The teacher is the quick start's model, trained once. The student has a quarter of its width and half of its blocks. Losses are
those of the whole held-out text after the last step of a finished schedule, the mean over --seeds. Finished runs are kept in
--work and not repeated.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

from common import describe_machine, write_results

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUDENT = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
SHORT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
         "max_position_embeddings": 32}


def call(args, words):
    done = subprocess.run([str(args.athanor), *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"athanor {' '.join(map(str, words))} ended with status {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def run(args, name, steps, changes, model):
    """The folder of a finished run and its held-out loss."""
    folder = args.work / name
    result = folder / "result.json"
    if not result.is_file():
        config = json.loads(args.config.read_text())
        config["model"].update(model | (SHORT if args.short else {}))
        config |= {"train_iters": steps, "lr_warmup_iters": max(1, steps // 20), "save": str(folder / "run"),
                   "train_data": args.train_data, "valid_data": args.valid_data, "eval_interval": 0, "save_interval": 0,
                   "keep_latest_k": 1, "tensorboard": False, "progress": "off", "peak_tflops": 0.1} | changes
        if args.short:
            config["seq_length"] = SHORT["max_position_embeddings"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        call(args, ["train", folder / "config.json"])
        found = json.loads(call(args, ["eval", folder / "run", "--data", args.valid_data, "--json"]).strip().splitlines()[-1])
        part = result.with_suffix(".part")
        part.write_text(json.dumps({"loss": found["loss"]}) + "\n")
        part.rename(result)
    loss = json.loads(result.read_text())["loss"]
    print(f"  {name}: {loss:.4f}", flush=True)
    return folder / "run", loss


def compare(args):
    teacher, of_teacher = run(args, f"teacher-{args.teacher_steps}", args.teacher_steps, {"seed": 1}, {})
    rows = []
    for kind in ("alone", *args.losses):
        for share in args.shares:
            steps = max(1, round(args.steps * share))
            changes = {} if kind == "alone" else {"teacher": str(teacher), "distill_loss": kind,
                                                  "distill_temperature": args.temperature,
                                                  "distill_ce_weight": args.ce_weight}
            losses = [run(args, f"{kind}-{steps}-{seed}", steps, changes | {"seed": seed}, STUDENT)[1] for seed in args.seeds]
            rows.append({"student": kind, "steps": steps, "losses": losses, "loss": statistics.mean(losses)})
    return {**describe_machine(), "program": call(args, ["--version"]).strip(), "seeds": args.seeds,
            "temperature": args.temperature, "ce_weight": args.ce_weight,
            "teacher": {"steps": args.teacher_steps, "loss": of_teacher}, "rows": rows}


def table(report):
    lines = [f"| {r['student']} | {r['steps']} | {r['loss']:.4f} ({min(r['losses']):.4f} .. {max(r['losses']):.4f}) |"
             for r in report["rows"]]
    return "\n".join([f"| student | steps | held-out loss, mean of {len(report['seeds'])} (least .. most) |", "|---|---|---|",
                      *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--athanor", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--train-data", default="runs/quickstart/data/*_train_*.bin")
    parser.add_argument("--valid-data", default="runs/quickstart/data/*_val_*.bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/distillation"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--teacher-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.6])
    parser.add_argument("--losses", nargs="+", choices=["kl", "reverse_kl"], default=["kl"])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--ce-weight", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--short", action="store_true", help="a tiny model: to try the script")
    args = parser.parse_args()
    report = compare(args)
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
