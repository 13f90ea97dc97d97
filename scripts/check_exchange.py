#!/usr/bin/env python3
"""Checks athanor's import, logits and export against transformers on tiny random models of every family.

Each case is saved by transformers in its dtype, as one file or as shards, and must
- be imported and computed by athanor with the logits of transformers (float32, --tolerance),
- be exported by athanor, from the import, with the bits of every tensor that transformers had saved,
- give a config.json with which transformers computes the same as before,
- carry the files of a tokenizer along, which transformers opens as before.

usage: check_exchange.py [--program build/athanor] [--only NAME...] [--list]
Needs no network. Exit status 1 if anything disagrees.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import safetensors.torch
import tokenizers
import torch
import transformers
from transformers.utils import logging as transformers_logging

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH = 40  # tokens of a sequence: beyond the context before stretching, and beyond the sliding windows


def llama(**changes):
    config = dict(vocab_size=103, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6,
                  num_key_value_heads=2, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-4, bos_token_id=1,
                  eos_token_id=2, tie_word_embeddings=False)
    config.update(changes)
    return transformers.LlamaConfig(**config)


def wide(kind, **changes):
    """Heads whose width is not hidden / heads, where the family allows it."""
    config = dict(vocab_size=89, hidden_size=40, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
                  tie_word_embeddings=True)
    config.update(changes)
    return kind(**config)


def yarn(**more):
    return dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, **more)


QWEN2, QWEN3, MISTRAL = transformers.Qwen2Config, transformers.Qwen3Config, transformers.MistralConfig
GPT2 = dict(vocab_size=97, n_positions=64, n_embd=36, n_layer=2, n_head=3, bos_token_id=96, eos_token_id=96)
# name: config, dtype of the files, largest file
CASES = {
    "gpt2": (transformers.GPT2Config(**GPT2), torch.float32, "1GB"),
    "gpt2-untied-shards": (transformers.GPT2Config(**GPT2, n_inner=116, tie_word_embeddings=False), torch.float16, "9KB"),
    "llama": (llama(), torch.bfloat16, "1GB"),
    "llama-linear-shards": (llama(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5)), torch.float32,
                            "20KB"),
    "llama3-tied": (llama(hidden_size=48, num_attention_heads=4, num_key_value_heads=1, head_dim=12,
                          tie_word_embeddings=True,
                          rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0, original_max_position_embeddings=32)),
                    torch.bfloat16, "1GB"),
    "llama-yarn": (llama(hidden_size=96, head_dim=16, rope_parameters=yarn()), torch.float32, "1GB"),
    "llama-yarn-factors": (llama(hidden_size=96, head_dim=16,
                                 rope_parameters=yarn(beta_fast=20.0, beta_slow=2.0, attention_factor=1.3)),
                           torch.float32, "1GB"),
    "qwen2": (wide(QWEN2), torch.bfloat16, "1GB"),
    "qwen2-untied-window": (wide(QWEN2, tie_word_embeddings=False, use_sliding_window=True, sliding_window=9,
                                 max_window_layers=0), torch.float32, "15KB"),
    "qwen2-yarn": (wide(QWEN2, rope_parameters=yarn(truncate=False)), torch.float16, "1GB"),
    "qwen3": (wide(QWEN3, head_dim=14), torch.bfloat16, "1GB"),
    "qwen3-untied-yarn": (wide(QWEN3, head_dim=22, tie_word_embeddings=False,
                               rope_parameters=yarn(mscale=1.1, mscale_all_dim=0.7)), torch.float32, "25KB"),
    "mistral-window": (wide(MISTRAL, sliding_window=7, tie_word_embeddings=False, head_dim=8), torch.bfloat16, "1GB"),
    "mixtral-shards": (wide(transformers.MixtralConfig, sliding_window=None, tie_word_embeddings=False, head_dim=12,
                            num_local_experts=4, num_experts_per_tok=2), torch.float32, "30KB"),
    "qwen2-moe-dense-layers": (wide(transformers.Qwen2MoeConfig, moe_intermediate_size=20,
                                    shared_expert_intermediate_size=36, num_experts=6, num_experts_per_tok=2,
                                    num_hidden_layers=4, decoder_sparse_step=2), torch.float32, "1GB"),
    "qwen3-moe-dense-layer": (wide(transformers.Qwen3MoeConfig, head_dim=14, moe_intermediate_size=20, num_experts=6,
                                   num_experts_per_tok=3, num_hidden_layers=3, mlp_only_layers=[1]), torch.float32, "1GB"),
    "qwen3-moe": (wide(transformers.Qwen3MoeConfig, head_dim=14, moe_intermediate_size=20, num_experts=6,
                       num_experts_per_tok=3, norm_topk_prob=True), torch.bfloat16, "1GB"),
    "olmoe": (wide(transformers.OlmoeConfig, num_key_value_heads=4, num_experts=5, num_experts_per_tok=2,
                   tie_word_embeddings=False), torch.float16, "1GB"),
    "deepseek-v2": (wide(transformers.DeepseekV2Config, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=10,
                         qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, moe_intermediate_size=20, n_group=4,
                         topk_group=2, topk_method="group_limited_greedy", num_experts_per_tok=3,
                         routed_scaling_factor=1.7, first_k_dense_replace=1, num_key_value_heads=4,
                         rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.7)), torch.float32, "1GB"),
    "deepseek-v2-greedy": (wide(transformers.DeepseekV2Config, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=10,
                                qk_rope_head_dim=8, v_head_dim=18, n_routed_experts=6, moe_intermediate_size=20,
                                num_experts_per_tok=2, num_key_value_heads=4), torch.bfloat16, "1GB"),
    "deepseek-v3": (wide(transformers.DeepseekV3Config, num_key_value_heads=4, num_hidden_layers=3, q_lora_rank=20,
                         kv_lora_rank=16, qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8,
                         moe_intermediate_size=20, n_group=2, topk_group=1, num_experts_per_tok=3,
                         first_k_dense_replace=1, tie_word_embeddings=False,
                         rope_parameters=yarn(mscale=1.0, mscale_all_dim=0.7)), torch.bfloat16, "1GB"),
    "deepseek-v3-no-query-rank": (wide(transformers.DeepseekV3Config, num_key_value_heads=4, q_lora_rank=None,
                                       kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=14,
                                       rope_interleave=False, n_routed_experts=4, moe_intermediate_size=20, n_group=1,
                                       topk_group=1, num_experts_per_tok=2, first_k_dense_replace=0, n_shared_experts=2,
                                       tie_word_embeddings=False), torch.float32, "30KB"),
    "gpt-oss": (wide(transformers.GptOssConfig, head_dim=10, num_local_experts=5, num_experts_per_tok=2,
                     sliding_window=7, swiglu_limit=1.5, tie_word_embeddings=False,
                     rope_parameters=yarn(truncate=False)), torch.bfloat16, "1GB"),
    "gpt-oss-shards": (wide(transformers.GptOssConfig, head_dim=12, num_local_experts=4, num_experts_per_tok=3,
                            sliding_window=9, layer_types=["full_attention", "sliding_attention", "full_attention"],
                            tie_word_embeddings=True), torch.float32, "30KB"),
    "mistral-full": (wide(MISTRAL, sliding_window=None, tie_word_embeddings=False, head_dim=12), torch.float16, "1GB"),
}


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{arguments} ended with {done.returncode}: {done.stderr}")


def random_model(name, config):
    """Weights far from their initial values, so that no term of the model can be missing unseen."""
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape)
            p.copy_(noise / max(min(p.shape), 8) ** 0.5 if p.dim() > 1 else 1.0 + 0.3 * noise)
    return model


def stored(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(key):
            fail(f"{folder}: {key}: {sorted(map(str, info[key]))[:8]}")
    return model.eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def tokenizer_of(config):
    """A byte-level tokenizer that fits the model's vocabulary: its ids are of a small alphabet."""
    letters = sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    vocab = {letter: i for i, letter in enumerate(letters)} | {"ab": 256, "Ġab": 257}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("a", "b"), ("Ġ", "ab")]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")


def check_tokenizer(name, original, imported, exported):
    text = "ab abba\n  Ünï 世界 <|endoftext|>x"
    tokenizer = lambda folder: transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = tokenizer(original)(text).input_ids
    for folder in (imported, exported):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / file).is_file() or (folder / file).read_bytes() != (original / file).read_bytes():
                fail(f"{name}: {folder.name}/{file} is not the original's")
        if tokenizer(folder)(text).input_ids != expected:
            fail(f"{name}: transformers reads another tokenizer from {folder.name}")


def check(name, program, tolerance, folder):
    config, dtype, shard = CASES[name]
    original, imported, exported = folder / "original", folder / "imported", folder / "exported"
    random_model(name, config).to(dtype).save_pretrained(original, max_shard_size=shard)
    tokenizer_of(config).save_pretrained(original)
    files = len(list(original.glob("*.safetensors")))
    if (shard != "1GB") != (files > 1):
        expected = "one" if shard == "1GB" else "several"
        fail(f"{name}: transformers saved {files} files with max_shard_size {shard}, expected {expected}")
    run(program, "import", original, imported)
    run(program, "logits", imported, folder / "logits.safetensors", "--seq-length", LENGTH, "--threads", "1")
    run(program, "export", imported, exported, "--max-shard-size", shard)

    check_tokenizer(name, original, imported, exported)
    before, after = stored(original), stored(exported)
    if before.keys() != after.keys():
        fail(f"{name}: exported tensors differ: {sorted(before.keys() ^ after.keys())[:8]}")
    for key in before:
        if before[key].dtype != after[key].dtype or not torch.equal(before[key], after[key]):
            fail(f"{name}: {key} is not bit-exact after import and export")
    ours = safetensors.torch.load_file(folder / "logits.safetensors")
    tokens = ours["tokens"].long()
    theirs, again = logits_of(load(original), tokens), logits_of(load(exported), tokens)
    if not torch.equal(theirs, again):
        fail(f"{name}: transformers computes other logits from the exported folder, by {(theirs - again).abs().max():.1e}")
    difference = (ours["logits"] - theirs).abs().max().item()
    print(f"{name}: {len(before)} tensors in {files} file(s) bit-exact, logits {list(theirs.shape)} "
          f"up to {theirs.abs().max():.1f} differ by {difference:.1e}")
    if not difference <= tolerance:
        fail(f"{name}: logits differ by {difference:.1e}, more than --tolerance {tolerance:.0e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES))
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference of logits (default 1e-4)")
    parser.add_argument("--list", action="store_true", help="names of the cases")
    args = parser.parse_args()
    if args.list:
        print("\n".join(CASES))
        return
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in args.only or CASES:
        with tempfile.TemporaryDirectory(prefix="athanor-exchange-") as folder:
            check(name, args.program, args.tolerance, pathlib.Path(folder))
    print("OK")


if __name__ == "__main__":
    sys.exit(main())
