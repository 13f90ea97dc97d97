#!/usr/bin/env python3
"""Says how good the quick start's model is: its loss beside n-gram models, whether it writes words, whether it copies.

usage: quickstart_summary.py RUN [--short] [--program PATH] PROMPT...
RUN holds what scripts/quickstart.sh made, sample-N.txt for the N-th prompt. A run of fewer steps than the configuration says, on
a slow machine, is compared with what as many steps reach: CURVE, by scripts/bench/quickstart_curve.py. Exit status 1 if a run is
not as good as it should be; with --short it only tells.
"""
import argparse
import json
import math
import re
import sys
from pathlib import Path

GOAL = 1.12            # nats per byte on held-out text
LEAST_WORDS = 0.85     # share of the words written that the corpus has; random letters score 0.2 to 0.4
MOST_COPIED = 80       # bytes in a row that stand in the corpus too; common phrases of its style have 30 to 50
ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "quickstart.json"
CURVE = ROOT / "scripts" / "bench" / "results" / "quickstart-curve-2026-12-01.json"
MARGIN = 0.03          # of the curve's loss: seeds and precisions differ by less


def words_of(text):
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def longest_copied(text, corpus):
    """Length of the longest part of text that stands in corpus."""
    best = begin = 0
    while begin + best < len(text):
        if text[begin:begin + best + 1] in corpus:
            best += 1
        else:
            begin += 1
    return best


def read_steps(path):
    """The effective series of step records, as configs/LOGS.md says how to read it."""
    steps = {}
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        since = record.get("supersedes_from")
        if since is not None:
            steps = {s: r for s, r in steps.items() if s < since}
        if record["event"] == "step":
            steps[record["step"]] = record
    return [steps[s] for s in sorted(steps)]


def goal_of(steps):
    """Loss that a finished schedule of so many steps should reach: on a line through the curve's points, by log(steps), which
    ends with the goal of a whole run."""
    curve = sorted((int(n), (1 + MARGIN) * loss) for n, loss in json.loads(CURVE.read_text())["loss_by_steps"].items())
    curve.append((json.loads(CONFIG.read_text())["train_iters"], GOAL))
    below = max((p for p in curve if p[0] <= steps), default=curve[0])
    above = min((p for p in curve if p[0] >= steps), default=curve[-1])
    share = math.log(steps / below[0]) / math.log(above[0] / below[0]) if above[0] > below[0] else 0
    return below[1] + share * (above[1] - below[1])


def read_ngrams(path):
    line = next(line for line in path.read_text().splitlines() if line.startswith("n-grams:"))
    return [(name, float(value)) for name, value in re.findall(r"([a-z ]+?) ([0-9.]+)(?:,| nats)", line[8:])]


def read_samples(run, prompts):
    """What the model added to each prompt, the last word left out, which may be cut."""
    texts = []
    for number, prompt in enumerate(prompts):
        text = (run / f"sample-{number}.txt").read_text(errors="replace")[len(prompt):]
        texts.append(text[:max(text.rfind(" "), 0)])
    return texts


def machine_of(run):
    """Processor, kernel and cores, as the program saw them."""
    found = json.loads((run / "environment.json").read_text())
    return ", ".join(str(found[key]) for key in ("cpu_model", "kernel") if found.get(key)) + f", {found['cores_online']} cores"


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--program", default="build/athanor")
    args = parser.parse_args()
    run, prompts, program = args.run, args.prompts, args.program
    steps = read_steps(run / "metrics.jsonl")
    count = steps[-1]["step"]
    whole = not args.short and count >= json.loads(CONFIG.read_text())["train_iters"]
    goal = GOAL if whole else goal_of(count)
    loss = json.loads((run / "valid.json").read_text())["loss"]
    ngrams = [(name.strip(), value) for name, value in read_ngrams(run / "ngrams.txt")]
    corpus = (run / "corpus.txt").read_text()
    vocabulary = set(words_of(corpus))
    samples = read_samples(run, prompts)
    words = [w for text in samples for w in words_of(text)]
    real = sum(w in vocabulary for w in words) / max(len(words), 1)
    copied = max(longest_copied(text, corpus) for text in samples)
    seconds = sum(r["step_ms"] for r in steps) * 1e-3
    tokens = steps[-1]["consumed_tokens"]

    print(f"\ntrained on {tokens / 1e6:.1f} million bytes in {len(steps)} steps, {duration(seconds)}: "
          f"{tokens / seconds / 1e3:.1f} thousand bytes a second, {steps[-1]['memory_used'] / 1e6:.0f} MB of memory")
    print("\nheld-out text, nats per byte (less is better)")
    for name, value in [*ngrams, ("this model", loss)]:
        print(f"  {name:24} {value:6.3f}  {'#' * round(value * 8)}")
    of_steps = "" if whole else f" for {count} steps"
    checks = [(loss <= goal, f"held-out loss {loss:.3f} nats per byte, goal {goal:.3f}{of_steps}"),
              (copied <= MOST_COPIED, f"the longest part copied from the corpus has {copied} bytes, at most {MOST_COPIED}")]
    if whole:
        checks += [(loss < min(value for _, value in ngrams), "better than every n-gram model"),
                   (real >= LEAST_WORDS, f"{100 * real:.0f} % of the {len(words)} words it wrote are words of the corpus, "
                                         f"goal {100 * LEAST_WORDS:.0f} %")]
    print()
    for ok, text in checks:
        print(f"  {'yes' if ok else 'NO '}  {text}")
    latest = (run / "latest").read_text().strip()
    print(f"""
in {run}
  {latest}/   the model (model.safetensors, config.json: Hugging Face's format) and the optimizer, checksummed
  metrics.jsonl    every step and evaluation; tensorboard/ has the same as TensorBoard scalars
  config.resolved.json, environment.json    what was run, and on what

what to try next
  {program} report {run}    a page with its curves: open {run}/report.html in a browser
  {program} sample --checkpoint {run} --prompt "And it came to pass "
  {program} eval {run}
  {program} train {run}/config.resolved.json --set train_iters={2 * steps[-1]["step"]}    goes on from here, at the
      learning rate that it ended with
  {program} plan configs/gpt2-124m.json    memory and operations of a real run, before it runs
  {program} bench ops configs/quickstart.json    where the time goes on this machine
configs/README.md lists every option, docs/your-data.md says how to bring your own text.
""")
    if not whole and not args.short:
        print(f"{count} steps were what this machine ({machine_of(run)}) trains in the time; {CONFIG.name} has more")
    if not all(ok for ok, _ in checks):
        print("not every goal was reached")
        sys.exit(0 if args.short else 1)


if __name__ == "__main__":
    main()
