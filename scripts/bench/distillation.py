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

from common import ROOT, add_run_flags, call, describe_machine, finished_run, with_options, write_results

STUDENT = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
SHORT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
         "max_position_embeddings": 32}


def run(args, name, steps, changes, model):
    """Held-out loss of a finished run."""
    config = json.loads(args.config.read_text())
    config["model"].update(model | (SHORT if args.short else {}))
    config = with_options(config, {"train_iters": steps, "schedule": {"lr_warmup_iters": max(1, steps // 20)}} | changes)
    if args.batch and model:
        config["global_batch_size"] = args.batch
    if args.short:
        config["seq_length"] = SHORT["max_position_embeddings"]
    return finished_run(args, name, config)


def cached_logits(args, teacher):
    """The teacher's logits on the text, made once."""
    folder = args.work / f"{teacher}-top-{args.top_k}-{args.temperature:g}"
    if args.top_k:
        call(args, ["cache-logits", args.work / teacher / "config.json", args.work / teacher / "run", "--set",
                    f"distillation.teacher_logits={folder}", "--set", f"distillation.temperature={args.temperature}", "--top-k", args.top_k])
    return {"teacher_logits": str(folder)} if args.top_k else {"teacher": str(args.work / teacher / "run")}


def compare(args):
    name = f"teacher-{args.teacher_steps}"
    of_teacher = run(args, name, args.teacher_steps, {"seed": 1}, {})
    of = cached_logits(args, name)
    rows = []
    for kind in ("alone", *args.losses):
        for share in args.shares:
            steps = max(1, round(args.steps * share))
            changes = {} if kind == "alone" else {"distillation": of | {
                "loss": kind, "temperature": args.temperature, "ce_weight": args.ce_weight}}
            variant = "alone" if kind == "alone" else f"{kind}-{args.temperature:g}-{args.ce_weight:g}-{args.top_k}"
            rate = args.rate_alone if kind == "alone" else args.rate
            changes |= {"learning_rate": rate} if rate else {}
            variant += f"-batch{args.batch}" * (args.batch > 0) + f"-rate{rate:g}" * (rate > 0)
            losses = [run(args, f"{variant}-{steps}-{seed}", steps, changes | {"seed": seed}, STUDENT) for seed in args.seeds]
            rows.append({"student": kind, "steps": steps, "losses": losses, "loss": statistics.mean(losses)})
    return {**describe_machine(), "program": call(args, ["--version"]).strip(), "seeds": args.seeds,
            "temperature": args.temperature, "ce_weight": args.ce_weight, "top_k": args.top_k, "batch": args.batch,
            "rate": args.rate, "rate_alone": args.rate_alone,
            "teacher": {"steps": args.teacher_steps, "loss": of_teacher}, "rows": rows}


def table(report):
    lines = [f"| {r['student']} | {r['steps']} | {r['loss']:.4f} ({min(r['losses']):.4f} .. {max(r['losses']):.4f}) |"
             for r in report["rows"]]
    return "\n".join([f"| student | steps | held-out loss, mean of {len(report['seeds'])} (least .. most) |", "|---|---|---|",
                      *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_flags(parser, "runs/distillation")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--teacher-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.6])
    parser.add_argument("--losses", nargs="+", choices=["kl", "reverse_kl"], default=["kl"])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--ce-weight", type=float, default=0.5)
    parser.add_argument("--top-k", type=int, default=0, help="students read so many cached logits of the teacher; 0: they run it")
    parser.add_argument("--batch", type=int, default=0, help="global_batch_size of the students; 0: that of --config")
    parser.add_argument("--rate", type=float, default=0, help="learning rate of students with a teacher; 0: that of --config")
    parser.add_argument("--rate-alone", type=float, default=0, help="learning rate of students alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--short", action="store_true", help="a tiny model: to try the script")
    args = parser.parse_args()
    report = compare(args)
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
