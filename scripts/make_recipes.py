#!/usr/bin/env python3
"""Writes configs/recipes/: published recipes as configurations. Those of nanochat follow from one number, the depth.

usage: make_recipes.py            write the files that are shipped
       make_recipes.py --check    exit with an error if a file is not what this script writes
       make_recipes.py --depth 16 print nanochat of another depth
"""

import argparse
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "configs" / "recipes"
EPS = 1.1920929e-07  # of float32: torch's rms_norm() without an epsilon
STEP_TOKENS = 524288


def fixed(value):
    return float(f"{value:.7g}")


def nanochat_model(vocab, length, head, width, depth, *, x0, values=None, deviations=None, tokens=None):
    """nanochat's model, of full attention in every fourth layer and the last one, with what its descendants add."""
    assert width % -(-width // head) == 0, "heads of one size"
    return {
        "model_type": "athanor",
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": -(-width // head),
        "intermediate_size": 4 * width,
        "max_position_embeddings": length,
        "norm_eps": EPS,
        "rope_theta": 10000.0,
        "hidden_act": "relu2",
        "gated_mlp": False,
        "norm_elementwise_affine": False,
        "embedding_norm": True,
        "qk_norm": True,
        "qk_norm_elementwise_affine": False,
        "sliding_window": length // 2 + 1,
        "layer_types": ["full_attention" if i % 4 == 3 or i == depth - 1 else "sliding_attention" for i in range(depth)],
        "resid_lambdas": [1.0],
        "x0_lambdas": [x0],
        **(values or {}),
        "tie_word_embeddings": False,
        "final_logit_softcapping": 15,
        "initializer_range": fixed(width**-0.5),
        "initializer_ranges": {
            "model.embed_tokens.weight": 1.0,
            "lm_head.weight": 0.001,
            "*.o_proj.weight": 0,
            "*.down_proj.weight": 0,
            **(deviations or {}),
        },
        **(tokens or {}),
    }


def nanochat_optimizer(steps, length, rate, *, decay, decay_share):
    """nanochat's batch and optimizer, whose rate falls to 0 in the last share of the steps."""
    return {
        "train_iters": steps,
        "global_batch_size": STEP_TOKENS // length,
        "micro_batch_size": "auto",
        "seq_length": length,
        "optimizer": "normuon",
        "muon.scale": "original",
        "muon.coefficients": "polar_express",
        "learning_rate": rate,
        "schedule.min_lr": 0,
        "schedule.lr_decay_style": "WSD",
        "schedule.lr_wsd_decay_style": "linear",
        "schedule.lr_wsd_decay_iters": round(decay_share * steps),
        "adam.beta1": 0.8,
        "adam.beta2": 0.95,
        "adam.eps": 1e-10,
        "weight_decay": decay,
        "cautious_weight_decay": True,
    }


def nanochat(depth):
    """nanochat at commit 8203efa (2026-01-16), scripts/base_train.py --depth: everything follows from the depth."""
    vocab, length, head = 32768, 2048, 128
    width = 64 * depth
    adamw = (width / 768) ** -0.5  # learning rates of embedding and head were found at 768
    rate = 0.02
    parameters = depth * 12 * width**2 + 2 * vocab * width + 2 * depth
    steps = 8 * parameters // STEP_TOKENS
    return {
        "model": nanochat_model(vocab, length, head, width, depth, x0=0.0),
        "save": f"runs/recipes/nanochat-d{depth}",
        "train_data": "data/nanochat/*_train_*.bin",
        "valid_data": "data/nanochat/*_val_*.bin",
        **nanochat_optimizer(steps, length, rate, decay=fixed(0.2 * (12 / depth) ** 2), decay_share=0.4),
        "schedule.weight_decay_style": "linear",
        "schedule.end_weight_decay": 0,
        "clip_grad": 0,
        "param_groups": [
            {"match": "model.embed_tokens.weight", "optimizer": "adamw", "lr_factor": fixed(0.3 / rate * adamw),
             "weight_decay": 0},
            {"match": "lm_head.weight", "optimizer": "adamw", "lr_factor": fixed(0.004 / rate * adamw),
             "weight_decay": 0},
            {"match": "*.resid_lambda", "optimizer": "adamw", "lr_factor": 0.005 / rate, "weight_decay": 0},
            {"match": "*.x0_lambda", "optimizer": "adamw", "lr_factor": 0.5 / rate, "weight_decay": 0},
        ],
        "precision": "bf16",
        "eval_interval": 250,
        "eval_iters": 20,
        "save_interval": 1000,
    }


def speedrun():
    """modded-nanogpt, records/track_3_optimization/train_gpt_simple.py, result 36 (2026-06-11): 3.28 in 3,250 steps."""
    width, depth, head, steps, rate = 768, 12, 128, 3250, 0.025
    turning = head // 4  # pairs; their frequencies go from 1 to 1 / 1024 in equal ratios
    return {
        "model": {
            "model_type": "athanor",
            "vocab_size": 50304,
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": width // head,
            "intermediate_size": 4 * width,
            "max_position_embeddings": 1024,
            "norm_eps": EPS,
            "rope_theta": fixed(1024 ** (head / 2 / (turning - 1))),
            "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
            "hidden_act": "relu2",
            "gated_mlp": False,
            "embedding_norm": True,
            "attention_bias": True,
            "mlp_bias": True,
            "lm_head_bias": True,
            "qk_norm": True,
            "qk_norm_elementwise_affine": False,
            "attention_multiplier": 0.12,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 15,
            "initializer_range": fixed((0.33 / width) ** 0.5),
            "initializer_ranges": {
                "model.embed_tokens.weight": 1.0,
                "lm_head.weight": 0,
                "*.o_proj.weight": 0,
                "*.down_proj.weight": 0,
            },
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        "save": "runs/recipes/speedrun-track3-muon",
        "train_data": "data/fineweb10B/fineweb_train_*.bin",
        "valid_data": "data/fineweb10B/fineweb_val_*.bin",
        "train_iters": steps,
        "global_batch_size": STEP_TOKENS // 1024,
        "micro_batch_size": "auto",
        "seq_length": 1024,
        "optimizer": "muon",
        "muon.scale": "original",
        "muon.coefficients": "polar_express",
        "learning_rate": rate,
        "schedule.min_lr": 0,
        "schedule.lr_decay_style": "WSD",
        "schedule.lr_wsd_decay_style": "linear",
        "schedule.lr_wsd_decay_iters": round(0.7 * steps),
        "adam.beta1": 0.8,
        "adam.beta2": 0.95,
        "adam.eps": 1e-10,
        "weight_decay": 0.05,
        "clip_grad": 0,
        "param_groups": [
            {"match": "model.embed_tokens.weight", "optimizer": "adamw", "lr_factor": fixed(0.7 / rate),
             "weight_decay": 0.001},
            {"match": "lm_head.weight", "optimizer": "adamw", "lr_factor": fixed(0.004 / rate), "weight_decay": 0.001},
            {"role": "vector", "optimizer": "adamw", "lr_factor": fixed(0.015 / rate), "weight_decay": 0.001},
        ],
        "precision": "bf16",
        "eval_interval": 125,
        "eval_iters": 20,
        "save_interval": 1000,
    }


def track1(name, *, model, steps, rate, decay, length, run):
    """modded-nanogpt, track 1: what records 11 and 19 share. Rates of Adam are 0.6, 0.008 and 0.04."""
    width, depth, head = 768, 12, 128
    half = depth // 2
    groups = [("model.embed_tokens.weight", 0.6), ("lm_head.weight", 0.008)]
    if "value_embeddings" in model:
        groups.insert(1, ("model.value_embeddings.*.weight", 0.6))
    return {
        "model": {
            "model_type": "athanor",
            "vocab_size": 50304,
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": width // head,
            "intermediate_size": 4 * width,
            "max_position_embeddings": length,
            "norm_eps": EPS,
            "hidden_act": "relu2",
            "gated_mlp": False,
            "norm_elementwise_affine": False,
            "embedding_norm": True,
            "qk_norm": True,
            "qk_norm_elementwise_affine": False,
            "tie_word_embeddings": False,
            "resid_lambdas": [1.0],
            "x0_lambdas": [0.0],
            "skip_from": [None] * half + list(reversed(range(half))) + [None],
            "skip_lambdas": [1.0],
            **model,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        "save": f"runs/recipes/{name}",
        "train_data": "data/fineweb10B/fineweb_train_*.bin",
        "valid_data": "data/fineweb10B/fineweb_val_*.bin",
        "train_iters": steps,
        "global_batch_size": STEP_TOKENS // length,
        "micro_batch_size": "auto",
        "seq_length": length,
        "optimizer": "muon",
        "muon.scale": "original",
        "learning_rate": rate,
        "schedule.lr_decay_style": "WSD",
        "schedule.lr_wsd_decay_style": "linear",
        "schedule.lr_wsd_decay_iters": decay,
        "adam.eps": 1e-8,
        "weight_decay": 0,
        "clip_grad": 0,
        **run,
        "param_groups": [{"match": match, "optimizer": "adamw", "lr_factor": fixed(own / rate)} for match, own in groups]
        + [{"role": "vector", "optimizer": "adamw", "lr_factor": fixed(0.04 / rate)}],
        "precision": "bf16",
        "eval_interval": 125,
        "eval_iters": 20,
        "save_interval": 1000,
    }


def record11():
    """records/track_1_short/2024-11-10_UNetDoubleLr: 3.28 in 3,000 steps."""
    model = {
        "rope_theta": 10000.0,
        "value_residual_lambdas": [0.5],
        "value_lambdas": [0.5],
        "final_logit_softcapping": 30,
        "initializer_range": fixed((3 * 768) ** -0.5),
        "initializer_ranges": {"model.embed_tokens.weight": 1.0, "lm_head.weight": 0, "*.o_proj.weight": 0,
                               "*.down_proj.weight": 0},
    }
    return track1("speedrun-record-11", model=model, steps=3000, rate=0.04, decay=900, length=1024,
                  run={"schedule.min_lr": 0, "adam.beta1": 0.9, "adam.beta2": 0.95})


def record19():
    """records/track_1_short/2025-01-13_Fp8LmHead: 3.28 in 1,395 steps of sequences of 65,536 tokens."""
    turning, blocks, steps = 128 // 4, 14, 1395
    # The window is the next multiple of 128 tokens above 1,728 times the share of the steps that are done.
    grows = [[0 if b == 0 else 128 * b * steps // 1728 + 1, 128 * (b + 1)] for b in range(blocks)]
    model = {
        "rope_theta": fixed(1024 ** (128 / 2 / (turning - 1))),
        "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        "sliding_window": 128 * blocks,
        "value_embeddings": [0, 1, 2] + [None] * 6 + [0, 1, 2],
        "value_embedding_lambdas": [0.5],
        "value_lambdas": [0.5],
        "final_logit_softcapping": 15,
        "initializer_range": fixed(0.5 * 768**-0.5),
        "initializer_ranges": {"model.embed_tokens.weight": 1.0, "model.value_embeddings.*.weight": 1.0,
                               "lm_head.weight": 0, "*.o_proj.weight": 0, "*.down_proj.weight": 0},
    }
    return track1("speedrun-record-19", model=model, steps=steps, rate=0.05, decay=round(0.4 * steps), length=65536,
                  run={"sliding_window_schedule": grows, "schedule.min_lr": 0.005, "adam.beta1": 0.8, "adam.beta2": 0.95,
                       "documents.reset_attention_mask": True, "documents.eod_token_id": 50256})


def slowrun(name, *, epochs=12, decay=1.6, multiplier=0.25, run=None):
    """NanoGPT slowrun at commit 106a2906 (2026-02-28), train.py, the second record of its track of one hour: 3.376."""
    width, depth, head, length, vocab = 1792, 30, 128, 2048, 50304
    rate, steps = 0.08 * multiplier, round(epochs * 100e6 / STEP_TOKENS)
    return {
        "model": nanochat_model(
            vocab, length, head, width, depth, x0=0.1,
            values={"value_embeddings": [i // 2 if i % 2 == 1 else None for i in range(depth)], "value_gate_channels": 32},
            deviations={"*.value_gate.weight": 0}, tokens={"bos_token_id": 50256, "eos_token_id": 50256}),
        "save": f"runs/recipes/{name}",
        "train_data": "data/slowrun/fineweb_train_*.bin",
        "valid_data": "data/slowrun/fineweb_val_*.bin",
        **nanochat_optimizer(steps, length, fixed(rate), decay=decay, decay_share=0.5),
        "clip_grad": 0,
        **(run or {}),
        "param_groups": [
            {"match": "model.embed_tokens.weight", "optimizer": "adamw", "lr_factor": fixed(0.3 * multiplier / rate)},
            {"match": "model.value_embeddings.*.weight", "optimizer": "adamw",
             "lr_factor": fixed(0.3 * multiplier / rate)},
            {"match": "lm_head.weight", "optimizer": "adamw", "lr_factor": fixed(0.004 * multiplier / rate)},
            {"match": "*.resid_lambda", "optimizer": "adamw", "lr_factor": fixed(0.005 * multiplier / rate),
             "weight_decay": 0},
            {"match": "*.x0_lambda", "optimizer": "adamw", "lr_factor": fixed(0.5 * multiplier / rate),
             "weight_decay": 0},
        ],
        "precision": "bf16",
        "eval_interval": round(100e6 / STEP_TOKENS),
        "eval_iters": 20,
        "save_interval": 1000,
    }


def muloco():
    """MuLoCo with one worker over the slow run's model (github bentherien/muloco-slowrun-analysis at fece39e6,
    2026-03-01, and its best result, 3.3666): an outer step of Nesterov momentum after every three steps of Muon."""
    return slowrun("slowrun-muloco", decay=1.3, multiplier=0.23,
                   run={"local_updates.steps": 3, "local_updates.outer_learning_rate": 0.5, "local_updates.outer_momentum": 0.5})


def mlperf():
    """MLPerf Training's small language model at commit 416de68d, small_llm_pretraining/nemo/config_H200_1x8x1_8b.sh."""
    batch, length, samples_between = 32, 8192, 12288
    return {
        "model": json.loads((FOLDER.parent / "llama-8b.json").read_text())["model"],
        "save": "runs/recipes/mlperf-llama3.1-8b",
        "train_data": "data/mlperf/c4-train.en_6_text_document.bin",
        "valid_data": "data/mlperf/c4-validation-91205-samples.en_text_document.bin",
        "train_iters": 1200000,
        "global_batch_size": batch,
        "micro_batch_size": "auto",
        "seq_length": length,
        "optimizer": "adamw",
        "learning_rate": 0.0005,
        "schedule.lr_decay_style": "cosine",
        "schedule.lr_warmup_iters": 16384 // batch,
        "adam.beta1": 0.9,
        "adam.beta2": 0.95,
        "adam.eps": 1e-05,
        "weight_decay": 0.1,
        "clip_grad": 1.0,
        "precision": "bf16",
        "eval_interval": samples_between // batch,
        "eval_iters": 1024 // batch,
        "stop_at_loss": 3.3,
        "save_interval": samples_between // batch,
    }


RECIPES = {"nanochat-d12": nanochat(12), "nanochat-d24": nanochat(24), "speedrun-track3-muon": speedrun(),
           "speedrun-record-11": record11(), "speedrun-record-19": record19(), "mlperf-llama3.1-8b": mlperf(),
           "slowrun": slowrun("slowrun"), "slowrun-muloco": muloco()}


def text_of(options):
    config = {}
    for key, value in options.items():
        section, _, name = key.rpartition(".")
        (config.setdefault(section, {}) if section else config)[name] = value
    return json.dumps(config, indent=2) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depth", type=int, help="print nanochat of this depth")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    if args.depth:
        print(text_of(nanochat(args.depth)), end="")
        return 0
    stale = [name for name, config in RECIPES.items()
             if args.check and (FOLDER / f"{name}.json").read_text() != text_of(config)]
    if args.check:
        return f"stale: {', '.join(stale)}; run scripts/make_recipes.py" if stale else 0
    for name, config in RECIPES.items():
        (FOLDER / f"{name}.json").write_text(text_of(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
