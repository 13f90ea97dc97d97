"""Published training steps, as configurations: what ran where, how fast, and who says so.

Models, meshes, precision, batch and sequence length are as published. What a source does not say is the program's
default, or, where memory asks for it, what the plan chooses (recomputation). Software that ran is another program, so a
row also measures how far that one is from this one.
"""
import dataclasses
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def of_file(name, **changes):
    return {**json.loads((ROOT / "configs" / f"{name}.json").read_text())["model"], **changes}


def llama(hidden, layers, heads, kv_heads, ffn, vocab, positions=8192):
    return of_file("llama-8b", hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                   num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocab, rope_scaling=None, bos_token_id=1, eos_token_id=2,
                   max_position_embeddings=positions)


def gpt(hidden, layers, heads, vocab, positions):
    return of_file("gpt2-124m", hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab,
                   max_position_embeddings=positions)


def nanochat(depth):
    windows = ["sliding_attention"] * 3 + ["full_attention"]
    kinds = [windows[i % 4] for i in range(depth - 1)] + ["full_attention"]
    return of_file("recipes/nanochat-d24", hidden_size=64 * depth, num_hidden_layers=depth, intermediate_size=256 * depth,
                   num_attention_heads=depth // 2, layer_types=kinds)


LLAMA_8B, LLAMA_70B = llama(4096, 32, 32, 8, 14336, 128256), llama(8192, 80, 64, 8, 28672, 128256)
LLAMA_405B, LLAMA2_7B = llama(16384, 126, 128, 8, 53248, 128256), llama(4096, 32, 32, 32, 11008, 32000, 4096)
GPT3_175B = gpt(12288, 96, 96, 51200, 2048)
QWEN = {"0.5B": of_file("qwen2.5-0.5b"), "1.5B": of_file("qwen2.5-1.5b"), "7B": of_file("qwen2.5-7b"),
        "3B": of_file("qwen2.5-1.5b", hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
                      num_key_value_heads=2, intermediate_size=11008),
        "14B": of_file("qwen2.5-7b", hidden_size=5120, num_hidden_layers=48, num_attention_heads=40,
                       num_key_value_heads=8, intermediate_size=13824)}


@dataclasses.dataclass
class Row:
    name: str
    software: str
    model: dict
    gpu: str
    ranks: int
    seq_length: int
    batch: int  # sequences of a step
    published: float
    unit: str
    source: str
    keys: dict = dataclasses.field(default_factory=dict)
    fit: bool = False  # constants of the model were chosen by it
    flops_per_token: float = 0  # as the source counts them, for a unit of FLOP

    def config(self):
        return {"model": self.model, "save": "run", "train_data": "train.bin", "train_iters": 1, "learning_rate": 1e-4,
                "schedule": {"lr_warmup_iters": 0}, "micro_batch_size": "auto", "seq_length": self.seq_length,
                "global_batch_size": self.batch,
                "precision": "bf16", **self.keys}

    def seconds(self, plan):
        """The published time of a step."""
        tokens = self.seq_length * self.batch
        peak = {"h100": 989e12, "a100": 312e12}
        return {"tokens/s/GPU": lambda x: tokens / (x * self.ranks), "tokens/s": lambda x: tokens / x,
                "s/step": lambda x: x, "ms/step": lambda x: x / 1e3,
                "TFLOP/s/GPU": lambda x: tokens * self.flops_per_token / (x * 1e12 * self.ranks),
                "% MFU": lambda x: tokens * self.flops_per_token / (x / 100 * peak[self.gpu] * self.ranks),
                }[self.unit](self.published)


FP8 = {"precision": "fp8_tensorwise"}
NEMO = "NVIDIA/dgxc-benchmarking, {} (24.09)"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md (25.11)"
OF_70B = {"tensor_parallel_size": 4, "sequence_parallel": True, "pipeline_parallel_size": 4, "context_parallel_size": 2,
          "pipeline": {"schedule": "interleaved", "virtual_size": 5}, "micro_batch_size": 1, "zero_stage": 1}
OF_8B = {"context_parallel_size": 2, "micro_batch_size": 1, "zero_stage": 1}
OF_175B = {"tensor_parallel_size": 4, "sequence_parallel": True, "pipeline_parallel_size": 8, "micro_batch_size": 1,
           "pipeline": {"schedule": "interleaved", "virtual_size": 12}, "zero_stage": 1}


def nvidia():
    for gpus, batch, bf16, fp8 in ((8, 128, 12.91, 9.67), (128, 2048, 13.10, 9.82)):
        for precision, seconds in (({}, bf16), (FP8, fp8)):
            yield Row(f"Llama-3.1-8B {'FP8' if precision else 'BF16'}, CP2", "NeMo", LLAMA_8B, "h100", gpus, 8192, batch,
                      seconds, "s/step", NEMO.format("llama3.1/README_8b.md"), {**OF_8B, **precision}, fit=True)
    for gpus, batch, bf16, fp8 in ((64, 128, 14.72, 11.01), (1024, 2048, 14.92, 11.28)):
        for precision, seconds in (({}, bf16), (FP8, fp8)):
            yield Row(f"Llama-3.1-70B {'FP8' if precision else 'BF16'}, TP4 PP4 CP2 VP5", "NeMo", LLAMA_70B, "h100", gpus, 8192,
                      batch, seconds, "s/step", NEMO.format("llama3.1/README_70b.md"), {**OF_70B, **precision}, fit=True)
    for gpus, batch, bf16, fp8 in ((128, 256, 8.309, 5.626), (2048, 4096, 8.49, 5.96)):
        for precision, seconds in (({}, bf16), (FP8, fp8)):
            yield Row(f"GPT-3 175B {'FP8' if precision else 'BF16'}, TP4 PP8 VP12", "NeMo", GPT3_175B, "h100", gpus, 2048, batch,
                      seconds, "s/step", NEMO.format("nemo_megatron/README_175b.md"), {**OF_175B, **precision})
    yield Row("Llama-2-7B FP8", "NeMo", LLAMA2_7B, "h100", 8, 4096, 128, 16934, "tokens/s/GPU",
              "NeMo 24.12 performance summary", {**FP8, "zero_stage": 1, "micro_batch_size": 1})
    yield Row("Llama-3-8B FP8, FSDP, MBS 1", "Megatron-Bridge", LLAMA_8B, "h100", 8, 8192, 128, 14451, "tokens/s/GPU", BRIDGE,
              {**FP8, "zero_stage": 3, "micro_batch_size": 1})
    yield Row("Llama-3-70B FP8, TP4 PP8 VP5", "Megatron-Bridge", LLAMA_70B, "h100", 64, 8192, 128, 1602, "tokens/s/GPU", BRIDGE,
              {**OF_70B, **FP8, "pipeline_parallel_size": 8, "context_parallel_size": 1,
               "pipeline": {"schedule": "interleaved", "virtual_size": 5}})
    yield Row("Llama-3.1-405B FP8, TP8 PP8 CP2 VP8", "Megatron-Bridge", LLAMA_405B, "h100", 1024, 8192, 512, 292,
              "tokens/s/GPU", BRIDGE, {**OF_70B, **FP8, "tensor_parallel_size": 8, "pipeline_parallel_size": 8,
                                       "pipeline": {"schedule": "interleaved", "virtual_size": 8}, "grad_dtype": "bf16"})
    yield Row("Llama-3-8B MXFP8, MBS 2", "Megatron-Bridge", LLAMA_8B, "b200", 8, 8192, 128, 29521, "tokens/s/GPU", BRIDGE,
              {"precision": "mxfp8", "zero_stage": 1, "micro_batch_size": 2})
    yield Row("Llama-3.1-405B MXFP8, TP4 PP8 CP2 VP8", "Megatron-Bridge", LLAMA_405B, "b200", 128, 8192, 64, 624,
              "tokens/s/GPU", BRIDGE,
              {**OF_70B, "precision": "mxfp8", "pipeline_parallel_size": 8,
               "pipeline": {"schedule": "interleaved", "virtual_size": 8}})


def llmq():
    states = {"master_weights": "bf16", "adam": {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, "grad_dtype": "bf16"}
    away = {"offload": {"optimizer": "cpu"}}

    def row(size, fp8, micro, gpu, published, unit="tokens/s/GPU", ranks=1, page="benchmarks/H100x1.md", fit=False, **keys):
        return Row(f"Qwen2.5-{size} {'FP8' if fp8 else 'BF16'}", "LLMQ", QWEN[size], gpu, ranks, 1024, 512, published, unit,
                   f"IST-DASLab/llmq, {page}", {**states, **(FP8 if fp8 else {}), "micro_batch_size": micro, **keys}, fit)

    for size, micros, bf16, fp8 in (("0.5B", (32, 32), 149_000, 164_000), ("1.5B", (32, 32), 59_100, 73_000),
                                    ("3B", (16, 16), 30_900, 40_400), ("7B", (4, 16), 13_850, 19_150)):
        yield row(size, False, micros[0], "h100", bf16, fit=True)
        yield row(size, True, micros[1], "h100", fp8, fit=True, recompute_granularity="selective" if size == "7B" else "none")
    yield row("14B", False, 8, "h100", 6_320, fit=True, recompute_granularity="selective", **away)
    yield row("14B", True, 16, "h100", 9_365, fit=True, recompute_granularity="selective", **away)
    for size, bf16, fp8 in (("0.5B", 1_190_000, 1_310_000), ("1.5B", 457_000, 565_000)):
        for is_fp8, published in ((False, bf16), (True, fp8)):
            yield row(size, is_fp8, 32, "h100", published, "tokens/s", ranks=8, page="benchmarks (8 H100)", zero_stage=1)
    for size, micro, bf16, fp8 in (("0.5B", 16, 39_850, 47_640), ("1.5B", 4, 14_070, 20_330), ("3B", 4, 7_005, 10_665)):
        for is_fp8, published in ((False, bf16), (True, fp8)):
            yield row(size, is_fp8, micro, "rtx4090", published, page="benchmarks/4090x1.md",
                      fit=size == "1.5B" and not is_fp8, **(away if size == "3B" else {}))
    for is_fp8, published in ((False, 154_000), (True, 181_000)):
        yield row("0.5B", is_fp8, 16, "rtx4090", published, "tokens/s", ranks=4, page="README (4 RTX 4090)", zero_stage=1)


def mpt():
    """With learned positions instead of ALiBi, which cost nothing either."""
    models = {"1B": gpt(2048, 24, 16, 50368, 2048), "3B": gpt(2560, 32, 20, 50368, 2048), "7B": gpt(4096, 32, 32, 50368, 2048),
              "13B": gpt(5120, 40, 40, 50368, 2048)}
    for size, gpu, gpus, micro, batch, published in (
            ("7B", "a100", 8, 6, 96, 4641), ("13B", "a100", 8, 2, 48, 2262), ("1B", "h100", 8, 14, 112, 45455),
            ("3B", "h100", 16, 10, 480, 24142), ("7B", "h100", 8, 6, 48, 10643)):
        yield Row(f"MPT-{size} BF16, FSDP, MBS {micro}", "llm-foundry", models[size], gpu, gpus, 2048, batch, published,
                  "tokens/s/GPU", "mosaicml/llm-foundry, scripts/train/benchmarking/README.md",
                  {"zero_stage": 3, "micro_batch_size": micro})


# torchtitan's default, activation checkpointing per op, makes every second product again; here these are all of half of the
# blocks.
EVERY_SECOND_PRODUCT = {"recompute_granularity": "full", "recompute_num_layers": 2}


def others():
    gpt2 = {size: of_file(f"gpt2-{size}") for size in ("124m", "350m", "1558m")}
    parameters = 1_557_611_200
    count = 6 * parameters + 6 * 48 * 1600 * 1024  # train_gpt2.cu's
    yield Row("GPT-2 124M, 10B tokens in 90 min", "llm.c", gpt2["124m"], "a100", 8, 1024, 512, 10e9 / 5400, "tokens/s",
              "karpathy/llm.c, discussion 481", {"zero_stage": 1}, fit=True)
    yield Row("GPT-2 350M, 30B tokens in 14 h", "llm.c", gpt2["350m"], "a100", 8, 1024, 512, 30e9 / 50400, "tokens/s",
              "karpathy/llm.c, discussion 481", {"zero_stage": 1}, fit=True)
    yield Row("GPT-2 1558M", "llm.c", gpt2["1558m"], "h100", 8, 1024, 1024, 50, "% MFU", "karpathy/llm.c, discussion 677",
              {"zero_stage": 1}, flops_per_token=count)
    yield Row("GPT-2 124M, AdamW", "modded-nanogpt", gpt2["124m"], "h100", 8, 1024, 512, 140, "ms/step",
              "KellerJordan/modded-nanogpt, record 1", {"zero_stage": 0, "micro_batch_size": 64})
    yield Row("124M, Muon", "modded-nanogpt", of_file("recipes/speedrun-track3-muon"), "h100", 8, 1024, 512, 142, "ms/step",
              "KellerJordan/modded-nanogpt, records/ (comparison of optimizers)", {"zero_stage": 1, "optimizer": "muon"})
    nano = {"zero_stage": 1, "optimizer": "normuon"}
    for name, keys, published in (("BF16", {}, 630_000), ("FP8", FP8, 740_000)):
        yield Row(f"d26 {name}", "nanochat", nanochat(26), "h100", 8, 2048, 256, published, "tokens/s",
                  "karpathy/nanochat, dev/LEADERBOARD.md", {**nano, **keys})
    for gpus, published in ((32, 10938), (64, 10753)):
        yield Row("Llama-3.1-8B FP8, FSDP, MBS 2", "torchtitan", LLAMA_8B, "h200", gpus, 8192, 2 * gpus, published, "tokens/s/GPU",
                  "pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md",
                  {**FP8, "zero_stage": 3, "micro_batch_size": 2, **EVERY_SECOND_PRODUCT})


ROWS = [*nvidia(), *llmq(), *mpt(), *others()]

NO_EXPERTS = "the plan counts neither the exchanges of experts nor their grouped GEMMs on tensor cores"
LEFT_OUT = [
    ("torchtitan, Llama-3.1-8B, 70B and 405B on H100", "its H100 has 96 GB of HBM2e and a limit of 500 W, of which no data sheet states rates"),
    ("Megatron-Bridge, Qwen3-30B-A3B, Qwen3-235B, DeepSeek-V3, GPT-OSS-120B", NO_EXPERTS),
    ("Megatron-Bridge on GB200, GB300 and B300", "not described: NVLink over 72 GPUs is a node here of at most 8"),
    ("LLMQ, 7B and 14B on an RTX 4090", "LLMQ keeps weights and gradients on the host; here these stay on the GPU, where they do not fit"),
    ("NeMo, 7B with LoRA", "the batch and the rank are not published with the figure"),
]
