#!/usr/bin/env python3
"""Checks that transformers opens a model folder saved by athanor and computes the same as athanor did.

FOLDER holds config.json and model.safetensors (or shards with their index). It must load with no weight missing, unknown
or of another shape. --logits names a safetensors file with `tokens` int32 [B, T] and `logits` float32 [B, T, V] that are
compared with those of transformers in float32. Greedy continuations are printed, and each token of them is checked
against a forward pass without key/value cache. Needs no network. Exit status 1 if anything disagrees.
"""

import argparse
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import safetensors.torch
import torch
import transformers
from transformers.utils import logging as transformers_logging


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def load(folder):
    if not (folder / "config.json").is_file():
        fail(f"{folder}: has no config.json")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(key):
            fail(f"{folder}: {key.replace('_', ' ')}: {sorted(map(str, info[key]))[:8]}")
    model.eval()
    # As it was trained: every token attends to those before it, nothing stops a continuation early.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=None)
    count = sum(p.numel() for p in model.parameters())
    print(f"{folder}: {type(model).__name__}, {count:,} parameters, all weights present")
    return model


def read_logits(path, vocab):
    tensors = safetensors.torch.load_file(path)
    for name in ("tokens", "logits"):
        if name not in tensors:
            fail(f"{path}: has no tensor {name}; it has {sorted(tensors)[:8]}")
    tokens, logits = tensors["tokens"], tensors["logits"]
    if tokens.dim() == 3:  # a file of tests/golden: the logits are those of step 0
        tokens = tokens[0]
    if logits.shape != (*tokens.shape, vocab):
        fail(f"{path}: logits {list(logits.shape)} do not match tokens {list(tokens.shape)} and vocabulary {vocab}")
    return tokens.long(), logits.float()


def compare(path, ours, theirs, tolerance):
    """ours: athanor's. The limit is relative to the size of the logits where these exceed 1."""
    if not torch.isfinite(ours).all():
        fail(f"{path}: {(~torch.isfinite(ours)).sum()} logits are not finite")
    absolute = (ours - theirs).abs()
    relative = absolute / theirs.abs().clamp(min=1.0)
    agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    where = [int(i) for i in torch.unravel_index(relative.argmax(), relative.shape)]
    print(f"logits {list(ours.shape)}: largest difference {absolute.max():.2e} absolute, {relative.max():.2e} relative "
          f"at [batch, time, token] {where}; same top token at {agree:.1%} of places")
    if relative.max() > tolerance:
        fail(f"{path}: logits differ by {relative.max():.2e}, more than --tolerance {tolerance:.0e}")


def check_generation(model, prompts, count):
    with torch.no_grad():
        # Without a mask token 0, the padding, would be hidden where a prompt has it.
        texts = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count,
                               min_new_tokens=count)
        logits = model(input_ids=texts, use_cache=False).logits
    start = prompts.shape[1]
    for prompt, text, scores in zip(prompts, texts, logits):
        print(f"greedy {prompt.tolist()} -> {text[start:].tolist()}")
        for t in range(start, len(text)):
            chosen = scores[t - 1, text[t]]
            if scores[t - 1].max() - chosen > 1e-3 * max(1.0, chosen.abs().item()):
                fail(f"token {t} of a continuation is not the most likely one without cache")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--logits", type=pathlib.Path, help="safetensors file with tokens and logits of athanor")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference of logits (default 1e-4)")
    parser.add_argument("--tokens", type=int, default=16, help="length of the greedy continuations (0 = none)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    args = parser.parse_args()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(min(2, os.cpu_count() or 1))

    model = load(args.folder)
    vocab, limit = model.config.vocab_size, model.config.max_position_embeddings
    prompts = torch.randint(0, vocab, (3, 8), generator=torch.Generator().manual_seed(args.seed))
    if args.logits:
        tokens, ours = read_logits(args.logits, vocab)
        if tokens.min() < 0 or tokens.max() >= vocab:
            fail(f"{args.logits}: tokens {tokens.min()} .. {tokens.max()} are outside the vocabulary of {vocab}")
        with torch.no_grad():
            compare(args.logits, ours, model(input_ids=tokens, use_cache=False).logits, args.tolerance)
        prompts = tokens[:3, :8]
    if args.tokens:
        check_generation(model, prompts, min(args.tokens, limit - prompts.shape[1]))
    print("OK")


if __name__ == "__main__":
    sys.exit(main())
