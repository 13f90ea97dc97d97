#!/usr/bin/env python3
"""Checks that `athanor eval --choices` scores multiple-choice questions as transformers does.

Saves a GPT-2 of random weights with transformers (or takes --folder), asks athanor and transformers the same questions in
both formats, and compares the log probability of every choice and the three accuracies. Needs torch, transformers and
tokenizers, and no network. Exit status 1 if anything disagrees.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
WORDS = "the of a man's 123 träumt 世界 it's Hello, walks home. and then sits down on an old chair, 日本".split()


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def random_model(folder, tokenizer_file):
    torch.manual_seed(5)
    vocabulary = tokenizers.Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=128, n_embd=64, n_layer=3, n_head=4,
                                     initializer_range=0.15, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    shutil.copy(tokenizer_file, folder / "tokenizer.json")


def random_questions(count, seed):
    rng = random.Random(seed)

    def text(least, most):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))

    lines = []
    for i in range(count):
        if i % 2:
            lines.append({"ind": i, "activity_label": "Test", "ctx_a": "", "ctx_b": "", "ctx": text(1, 25),
                          "endings": [text(1, 12) for _ in range(4)], "label": rng.randrange(4)})
        else:  # the second of these is longer than the model sees
            lines.append({"context": text(1, 90 if i == 2 else 20), "choices": [" " + text(1, 9) for _ in range(3)],
                          "label": rng.randrange(3)})
    return lines


def reference(model, tokenizer, line):
    """Per choice: summed log probability, tokens, characters."""
    hellaswag = "endings" in line
    context = tokenizer.encode(line["ctx" if hellaswag else "context"], add_special_tokens=False).ids
    out = []
    for choice in line["endings" if hellaswag else "choices"]:
        ids = tokenizer.encode(" " + choice if hellaswag else choice, add_special_tokens=False).ids
        whole = (context + ids)[-(model.config.n_positions + 1):]
        with torch.no_grad():
            logits = model(torch.tensor([whole[:-1]])).logits[0].double()
        log_probability = torch.log_softmax(logits, dim=-1)
        score = sum(log_probability[len(whole) - len(ids) - 1 + i, token].item() for i, token in enumerate(ids))
        out.append((score, len(ids), len(choice)))
    return out


def accuracy(questions, answers, size):
    right = 0
    for line, answer in zip(questions, answers):
        scores = [a[0] / size(a) for a in answer]
        right += scores.index(max(scores)) == line["label"]
    return right / len(questions)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build" / "athanor", type=Path)
    parser.add_argument("--tokenizer", default=ROOT / "tests" / "tokenizer" / "fixtures" / "gpt2.json", type=Path)
    parser.add_argument("--folder", type=Path, help="a GPT-2 of your own with its tokenizer.json")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of a token's log probability")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="athanor-choices-") as scratch:
        folder = arguments.folder or Path(scratch) / "model"
        if not arguments.folder:
            random_model(folder, arguments.tokenizer)
        questions = random_questions(arguments.questions, seed=1)
        path, scores = Path(scratch) / "questions.jsonl", Path(scratch) / "scores.jsonl"
        path.write_text("".join(json.dumps(q, ensure_ascii=i % 3 == 0) + "\n" for i, q in enumerate(questions)))
        done = subprocess.run([arguments.program, "eval", folder, "--choices", path, "--scores", scores, "--json"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"{arguments.program} eval: exit status {done.returncode}\n{done.stderr}")
        ours = json.loads(done.stdout)["choices"]
        lines = [json.loads(line) for line in scores.read_text().splitlines()]
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        theirs = [reference(model, tokenizer, q) for q in questions]
    worst = 0.0
    for number, (line, want) in enumerate(zip(lines, theirs)):
        if line["tokens"] != [w[1] for w in want] or line["characters"] != [w[2] for w in want]:
            fail(f"question {number}: tokens {line['tokens']}, characters {line['characters']}, expected {want}")
        worst = max(worst, *(abs(a - w[0]) / w[1] for a, w in zip(line["log_probability"], want)))
    if len(lines) != len(theirs) or worst > arguments.tolerance:
        fail(f"{len(lines)} questions of {len(theirs)}; log probabilities differ by up to {worst:.2e} per token")
    for key, size in (("accuracy", lambda a: 1), ("accuracy_per_token", lambda a: a[1]),
                      ("accuracy_per_character", lambda a: a[2])):
        if abs(ours[key] - accuracy(questions, theirs, size)) > 1e-9:
            fail(f"{key}: athanor {ours[key]}, transformers {accuracy(questions, theirs, size)}")
    print(f"{len(lines)} questions: log probabilities agree to {worst:.1e} per token, accuracies are equal "
          f"({ours['accuracy']:.3f}, {ours['accuracy_per_token']:.3f}, {ours['accuracy_per_character']:.3f})")


if __name__ == "__main__":
    sys.exit(main())
