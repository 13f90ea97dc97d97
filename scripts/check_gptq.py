#!/usr/bin/env python3
"""Opens what `athanor export --format gptq` wrote with GPTQModel, on the CPU, and compares.

Random models of several families, dense and with experts, are exported in 4 and 8 bits, with and without --act-order.
GPTQModel must dequantize the weights that athanor itself reads from the folder, up to rounding to f16, and compute their
logits. Needs gptqmodel (its file requirements.txt), torch, transformers and tokenizers.

usage: check_gptq.py [--program build/athanor] [--only NAME...]     exit status 1 if a folder differs
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import gptqmodel
import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
WIDTH = dict(moe_intermediate_size=64)
MODELS = {"llama": {}, "qwen3": {"head_dim": 32},
          "qwen2_moe": {**EXPERTS, **WIDTH, "shared_expert_intermediate_size": 96},
          "qwen3_moe": {**EXPERTS, **WIDTH, "head_dim": 32, "norm_topk_prob": True}}
FORMATS = {"w4a16": ["w4a16"], "w4a16, act-order": ["w4a16", "--act-order"], "w8a16": ["w8a16"]}


def make_model(family, folder):
    config = transformers.AutoConfig.for_model(family, **SHAPE, **MODELS[family])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                value *= 20  # so that rounding to f16 does not change the experts of a token
    model.save_pretrained(folder)


def add_tokenizer(folder):
    """GPTQModel opens no folder without one."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2",
                                         pad_token="w3").save_pretrained(folder)


def compare(plain, quantized):
    """The number of quantized layers, and the largest differences of weights and logits, relative to the largest."""
    want = dict(plain.named_parameters())
    layers, weights = 0, 0.0
    for name, module in quantized.named_modules():
        if not hasattr(module, "qweight"):
            continue
        layers += 1
        if (value := want.get(name + ".weight")) is not None:  # transformers joins the matrices of experts
            read = module.dequantize_weight().T.float()
            weights = max(weights, ((read - value).abs().max() / value.abs().max()).item())
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        a, b = plain(tokens).logits, quantized(input_ids=tokens).logits.float()
    return layers, weights, ((a - b).abs().max() / a.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=ROOT / "build" / "athanor", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=MODELS, metavar="NAME")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        run = lambda *words: subprocess.run([args.program, *words], check=True, capture_output=True)
        run("tokenize", ROOT / "README.md", "--output-prefix", f"{scratch}/text", "--separator", r"\n\n")
        for family in args.only:
            make_model(family, f"{scratch}/{family}")
            for name, words in FORMATS.items():
                folder, plain = f"{scratch}/{family}-{name}", f"{scratch}/{family}-{name}-plain"
                run("export", f"{scratch}/{family}", folder, "--format", "gptq", "--group-size", "32", "--calibrate",
                    f"{scratch}/text_train_*.bin", "--dtype", *words)
                run("export", folder, plain, "--dtype", "f32")
                add_tokenizer(folder)
                quantized = gptqmodel.GPTQModel.load(folder, device="cpu", backend=gptqmodel.BACKEND.TORCH, dtype=torch.float16)
                layers, weights, logits = compare(
                    transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval(), quantized.model)
                ok = layers > 0 and weights < 1e-3 and logits < 5e-3
                failed += not ok
                print(f"{family} {name}: {layers} quantized layers, weights differ by {weights:.2g}, logits by {logits:.2g}"
                      f"{'' if ok else ': FAILED'}", flush=True)
    print(f"gptqmodel {gptqmodel.__version__}, transformers {transformers.__version__}, torch {torch.__version__}: "
          f"{failed} folders differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
