#!/usr/bin/env python3
"""Opens what `athanor export` wrote in FP8 and packed integers with transformers and compressed-tensors, and compares.

Every golden model of a family that has such folders, dense and with experts, is exported in each format. transformers
must read the weights that athanor itself reads from the folder, rounded to bf16, and compute their logits. Needs torch, transformers, compressed-tensors and accelerate.

usage: check_quantized_folders.py [--program build/athanor] [--only NAME...]     exit status 1 if a folder differs
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import compressed_tensors
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("llama", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "dots1")
FORMATS = {"fp8_block": ("hf", "fp8_block"), "fp8_tensor": ("compressed-tensors", "fp8_tensor"),
           "fp8_channel": ("compressed-tensors", "fp8_channel"), "w4a16": ("compressed-tensors", "w4a16"),
           "w8a16": ("compressed-tensors", "w8a16")}


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation="eager").eval()


def compare(plain, quantized, tokens):
    """The number of weights that both hold, and the largest differences of weights and logits, relative to the largest."""
    want, got = plain.state_dict(), quantized.state_dict()
    weights, compared = 0.0, 0
    for name, value in want.items():
        if name not in got or got[name].shape != value.shape:
            continue  # packed integers
        read = got[name].float()
        if got[name].dtype == torch.float8_e4m3fn:
            read *= got[name + "_scale"].float()
        weights = max(weights, ((read - value.float()).abs().max() / value.float().abs().max()).item())
        compared += 1
    with torch.no_grad():
        a, b = plain(tokens).logits.float(), quantized(tokens).logits.float()
    return compared, weights, ((a - b).abs().max() / a.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=ROOT / "build" / "athanor", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=MODELS, choices=MODELS, metavar="NAME")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for model in args.only:
            for name, (form, dtype) in FORMATS.items():
                folder, plain = f"{scratch}/{model}-{name}", f"{scratch}/{model}-{name}-plain"
                group = ["--group-size", "0"] if dtype.startswith("w") else []
                for command in ([ROOT / "tests" / "golden" / model, folder, "--format", form, "--dtype", dtype, *group],
                                [folder, plain, "--dtype", "f32"]):
                    subprocess.run([args.program, "export", *command], check=True, capture_output=True)
                quantized = load(folder)
                tokens = torch.arange(24).reshape(2, 12) % quantized.config.vocab_size
                compared, weights, logits = compare(load(plain), quantized, tokens)
                # The FP8 formats of compressed-tensors also round activations, which moves logits of untrained models far.
                ok = weights < 8e-3 and logits < (0.5 if form == "compressed-tensors" and "fp8" in dtype else 2e-2)
                failed += not ok
                print(f"{model} {name}: {compared} weights differ by {weights:.2g}, logits by {logits:.2g}{'' if ok else ': FAILED'}")
    print(f"compressed-tensors {compressed_tensors.__version__}, transformers {transformers.__version__}, torch {torch.__version__}: "
          f"{failed} folders differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
