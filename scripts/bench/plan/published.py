#!/usr/bin/env python3
"""Published training steps beside what `athanor plan` predicts of them: one table, one error for each row, the median and
the largest.

usage: scripts/bench/plan/published.py [--program PATH] [--only WORD] [--assume NAME=VALUE] [--out FILE.json] [--table FILE.md]
rows.py has the rows and their sources. Nothing is tuned for a row: each gives model, GPU, mesh, precision, batch and
sequence length as published, and the program does the rest. "fit" rows are those that constants of the model were chosen
by (src/perf/assumptions.cc); "held out" ones were not looked at for that.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from common import describe_machine, write_results  # noqa: E402
from rows import LEFT_OUT, ROWS  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def predict(program, row, assume=()):
    """The row with what the program says of it, or with the reason why it says nothing."""
    with tempfile.TemporaryDirectory(prefix="athanor-published-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(row.config(), indent=1))
        done = subprocess.run([program, "plan", config, "--gpu", row.gpu, "--ranks", str(row.ranks), "--json",
                               *(word for a in assume for word in ("--assume", a))],
                              capture_output=True, text=True)
    result = {"name": row.name, "software": row.software, "gpu": row.gpu, "ranks": row.ranks, "fit": row.fit,
              "published": row.published, "unit": row.unit, "source": row.source,
              "keys": {k: v for k, v in row.config().items() if k not in ("model", "save", "train_data")}}
    if done.returncode != 0:
        return dict(result, refused=why(done.stderr))
    plan = json.loads(done.stdout)
    seconds = row.seconds(plan)
    error = lambda predicted: round(100 * (predicted / seconds - 1), 1)  # of the time of a step
    return dict(result, published_seconds=seconds, bound_seconds=plan["bound_seconds"],
                expected_seconds=plan["expected_seconds"], range_seconds=plan["range_seconds"],
                bound_error=error(plan["bound_seconds"]), error=error(plan["expected_seconds"]),
                within=plan["range_seconds"][0] <= seconds <= plan["range_seconds"][1],
                **{key: plan[key] for key in ("parts_seconds", "micro_batch_size", "recompute", "memory_bytes", "mfu", "bound_by")})


def why(stderr):
    """The first line of the error, without what it announces."""
    line = next((line.split(" error ", 1)[1] for line in stderr.splitlines() if " error " in line), stderr.strip())
    return line.removesuffix(" Largest parts:")


def summary(rows, key):
    errors = [abs(r[key]) for r in rows]
    return {"rows": len(errors), "median": round(statistics.median(errors), 1), "worst": max(errors),
            "mean_signed": round(statistics.mean(r[key] for r in rows), 1)} if errors else {"rows": 0}


def table_of(results, left_out):
    lines = ["| run | software | GPUs | rows | published | s/step | predicted s/step | error | bound's error |",
             "|---|---|---|---|--:|--:|--:|--:|--:|"]
    for r in (r for r in results if "error" in r):
        lines.append(f"| {r['name']} | {r['software']} | {r['ranks']} {r['gpu']} | {'fit' if r['fit'] else 'held out'} | "
                     f"{r['published']:,} {r['unit']} | {r['published_seconds']:.3g} | {r['expected_seconds']:.3g} | "
                     f"{r['error']:+.1f} % | {r['bound_error']:+.1f} % |")
    lines += ["", "| rows | number | median error | worst | mean, with its sign | bound: median, worst |",
              "|---|--:|--:|--:|--:|--:|"]
    groups = [("all", lambda r: True), ("fit", lambda r: r["fit"]), ("held out", lambda r: not r["fit"])]
    groups += [(name, lambda r, name=name: r["software"] == name) for name in dict.fromkeys(r["software"] for r in results)]
    for words, which in groups:
        of = [r for r in results if "error" in r and which(r)]
        if of:
            s, bound = summary(of, "error"), summary(of, "bound_error")
            lines.append(f"| {words} | {s['rows']} | {s['median']} % | {s['worst']} % | {s['mean_signed']:+} % | "
                         f"{bound['median']} %, {bound['worst']} % |")
    within = [r["within"] for r in results if "error" in r]
    lines += ["", f"{sum(within)} of {len(within)} published times lie within the range that the plan states.", "",
              "| left out | why |", "|---|---|"]
    lines += [f"| {r['name']} | refused: {r['refused']} |" for r in results if "refused" in r]
    lines += [f"| {name} | {why} |" for name, why in left_out]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--assume", action="append", default=[], help="name=value, as of athanor plan; may repeat")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    rows = [row for row in ROWS if args.only.lower() in f"{row.software} {row.name}".lower()]
    if not rows:
        sys.exit(f"published.py: no row has {args.only!r} in its name")
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda row: predict(args.program.resolve(), row, args.assume), rows))
    done = [r for r in results if "error" in r]
    version = subprocess.run([args.program, "--version"], capture_output=True, text=True).stdout.splitlines()[:2]
    report = {**describe_machine(), "program": version, "rows": results,
              "errors": {"all": summary(done, "error"), "fit": summary([r for r in done if r["fit"]], "error"),
                         "held_out": summary([r for r in done if not r["fit"]], "error"),
                         "bound": summary(done, "bound_error")},
              "left_out": [{"name": name, "why": why} for name, why in LEFT_OUT]}
    table = table_of(results, LEFT_OUT if not args.only else [])
    print(table)
    write_results(args, report, table)


if __name__ == "__main__":
    main()
