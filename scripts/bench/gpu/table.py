#!/usr/bin/env python3
"""Makes the README's table of speeds on a GPU from the output of compare.py.

usage: table.py compare.json                    prints it
       table.py compare.json --readme README.md  writes it between the two marks there
Refuses results that no GPU measured. Nothing that was not run is in the table. Below it, for every model that misses a
goal: which, and the ops that lose most time.
"""
import argparse
import json
import re
import sys
from pathlib import Path

BEGIN, END = "<!-- made by scripts/bench/gpu/table.py -->", "<!-- end of table.py -->"
PEERS = ("torch", "llm.c", "LLMQ", "bf16")
OPS_SHOWN = 8
TITLES = {"torch": "PyTorch", "llm.c": "llm.c", "LLMQ": "LLMQ", "bf16": "its own bf16"}


def thousands(x):
    return f"{x / 1e3:.0f}k" if x >= 99.5e3 else f"{x / 1e3:.1f}k"


def number(x):
    return thousands(x) if x >= 1000 else f"{x:.3g}"


def gap(name, row):
    """Lines about the goals that a model misses."""
    missed = [f"{what}: {number(reached)} of {number(goal)}" for what, goal, reached, met in row["goals"] if not met]
    if not missed:
        return []
    lines = ["", f"{name} misses its goals ({'; '.join(missed)})."]
    found = row["gap"]
    idle = f", the GPU is idle {100 * found['times']['idle']:.1f} % of it" if "idle" in found["times"] else ""
    lines += [f"Of a step of {found['profiled_ms']:.1f} ms ops explain {100 * found['explained']:.1f} %{idle}:", "",
              "| op | ms | limit, ms | lost, ms |", "|---|---|---|---|"]
    return lines + [f"| {op['op']} | {op['ms']:.2f} | {op['limit_ms']:.2f} | {op['ms'] - op['limit_ms']:.2f} |"
                    for op in found["ops"][:OPS_SHOWN]]


def table(report):
    if report["device"] != "cuda":
        raise ValueError(f"measured on {report['hardware']}, not on a GPU: there is nothing to show")
    rows = {name: r for name, r in report["models"].items() if r["status"] == "measured"}
    if not rows:
        raise ValueError("no model was measured")
    peers = [p for p in PEERS if any(p in r["sides"] for r in rows.values())]
    head = ["model", "tokens", "athanor, tokens/s", "of the goal", "of the modelled limit",
            *(f"beside {TITLES[p]}" for p in peers)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, r in rows.items():
        ours = r["sides"]["athanor"]["tokens_per_second"]
        cells = [name, str(r["model"]["seq"]), thousands(ours),
                 *(f"{100 * ours / r['model'][k]:.0f} %" if r["model"][k] else "" for k in ("goal", "limit"))]
        for p in peers:
            side = r["sides"].get(p)
            cells.append(f"{side['athanor_is_faster_by']:.2f}× ({thousands(side['tokens_per_second'])})"
                         if side else "")
        lines.append("| " + " | ".join(cells) + " |")
    about = (f"{report['hardware']}, {report['date']}, commit {report['commit'][:12]}, "
             f"{report['settings']['precision']} where the row names nothing else, whole optimizer steps on random "
             "tokens; the limit is modelled for an H200.")
    return "\n".join([*lines, "", about, *(line for name, r in rows.items() for line in gap(name, r))])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--readme", type=Path)
    args = parser.parse_args()
    try:
        text = table(json.loads(args.report.read_text()))
    except ValueError as error:
        sys.exit(f"table.py: {args.report}: {error}")
    if not args.readme:
        print(text)
        return
    readme = args.readme.read_text()
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        sys.exit(f"table.py: {args.readme}: expected one pair of the marks {BEGIN} and {END}")
    args.readme.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", readme))


if __name__ == "__main__":
    main()
