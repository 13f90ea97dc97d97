#!/usr/bin/env python3
"""Checks `athanor export --format gguf` with llama.cpp's own library, on models of every family with random weights.

- llama.cpp computes the same logits from the f32 file as `athanor logits` from the model.
- athanor writes quantized files byte by byte as llama.cpp's quantizer makes them from the f32 (or bf16) file, without and with an
  importance matrix that athanor measures (--calibrate, --imatrix). The weights have outliers, zeros and subnormal numbers.

usage: check_gguf.py [--program build/athanor] [--only NAME...]
Needs numpy, safetensors, gguf and llama_cpp_py_sync (`pip install --no-deps llama-cpp-py-sync cffi pycparser`, last run with
0.11739). Exit status 1 if something differs.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
from gguf import GGUFReader
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib
from safetensors.numpy import load_file, save_file

FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_K_S": 14, "q4_K_M": 15, "q5_K_S": 16, "q5_K_M": 17,
              "q6_K": 18, "mxfp4_moe": 38}


def read_imatrix(path):
    """What llama.cpp's tool makes of such a file: mean squares by weight."""
    tensors = {t.name: t.data.astype(numpy.float32).reshape(-1) for t in GGUFReader(path).tensors}
    means = {}
    for name, sums in tensors.items():
        if name.endswith(".in_sum2"):
            weight = name.removesuffix(".in_sum2")
            counts = tensors[weight + ".counts"]  # one per expert, or one
            parts = [part / count if count > 0 else numpy.ones_like(part)
                     for part, count in zip(numpy.split(sums, len(counts)), counts)]
            means[weight] = numpy.ascontiguousarray(numpy.concatenate(parts), numpy.float32)
    return means


class Llama:
    """llama.cpp's library."""
    def __init__(self):
        self.ffi, self.lib, self.messages = get_ffi(), get_lib(), []
        self.log = self.ffi.callback("ggml_log_callback",
                                     lambda level, text, data: self.messages.append(self.ffi.string(text).decode(errors="replace")))
        self.lib.llama_log_set(self.log, self.ffi.NULL)
        self.lib.llama_backend_init()

    def failed(self):
        return RuntimeError("llama.cpp: " + "".join(self.messages[-3:]))

    def quantize(self, source, target, file_type, importance):
        parameters = self.lib.llama_model_quantize_default_params()
        parameters.nthread, parameters.ftype = 2, file_type
        kept = [(self.ffi.new("char[]", name.encode()), values) for name, values in importance.items()]
        if kept:
            entries = self.ffi.new("struct llama_model_imatrix_data[]", len(kept) + 1)  # ends with a null name
            for entry, (name, values) in zip(entries, kept):
                entry.name, entry.data, entry.size = name, self.ffi.from_buffer("float[]", values), len(values)
            parameters.imatrix = entries
        if self.lib.llama_model_quantize(str(source).encode(), str(target).encode(), self.ffi.addressof(parameters)) != 0:
            raise self.failed()

    def logits(self, path, tokens, vocabulary):
        """fp32 logits [T, V] of one sequence, with keys and values in fp32."""
        parameters = self.lib.llama_model_default_params()
        parameters.n_gpu_layers = 0
        model = self.lib.llama_model_load_from_file(str(path).encode(), parameters)
        if model == self.ffi.NULL:
            raise self.failed()
        options = self.lib.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 256
        options.type_k = options.type_v = options.flash_attn_type = 0
        context = self.lib.llama_init_from_model(model, options)
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = int(token), i, 1, 0, 1
        if self.lib.llama_decode(context, batch) != 0:
            raise self.failed()
        rows = [self.ffi.unpack(self.lib.llama_get_logits_ith(context, i), vocabulary) for i in range(len(tokens))]
        self.lib.llama_batch_free(batch)
        self.lib.llama_free(context)
        self.lib.llama_model_free(model)
        return numpy.array(rows, numpy.float32)


def weights(random, shape):
    """Rows of several kinds: normal, heavy tails, one large value, all positive, constant, zeros, tiny."""
    values = random.standard_normal(shape) * 0.02
    kind = random.integers(0, 10, shape[0])
    tails = random.standard_t(2, shape) * 0.02
    values[kind == 1] = tails[kind == 1]
    values[kind == 2, shape[1] // 3] = 3.7
    values[kind == 3] = numpy.abs(values[kind == 3]) + 0.01
    values[kind == 4] = -0.25
    values[kind == 5, : shape[1] // 2] = 0
    values[kind == 6] *= 1e-9
    values[kind == 7] *= 1e-42
    values[kind == 8] = numpy.round(values[kind == 8] * 50)
    return values.astype(numpy.float32)


def plain(random, shape):
    return (random.standard_normal(shape) * 0.05).astype(numpy.float32)


def model(folder, rows_of, kind, seed, hidden=256, inner=512, layers=9, heads=4, kv=2, vocabulary=300, tied=False, experts=0, **more):
    random = numpy.random.default_rng(seed)
    tensors, deepseek = {}, kind.startswith("deepseek")

    def matrix(name, rows, columns):
        tensors[name + ".weight"] = rows_of(random, (rows, columns))

    def vector(name, size):
        tensors[name] = random.standard_normal(size).astype(numpy.float32)

    if kind == "gpt2":
        config = {"model_type": "gpt2", "n_embd": hidden, "n_inner": inner, "n_layer": layers, "n_head": heads,
                  "n_positions": 64, "vocab_size": vocabulary, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
        matrix("transformer.wte", vocabulary, hidden)
        matrix("transformer.wpe", 64, hidden)
        for i in range(layers):
            p = f"transformer.h.{i}."
            for norm in ("ln_1", "ln_2"):
                vector(p + norm + ".weight", hidden), vector(p + norm + ".bias", hidden)
            for name, rows, columns in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                        ("mlp.c_fc", hidden, inner), ("mlp.c_proj", inner, hidden)):
                matrix(p + name, rows, columns), vector(p + name + ".bias", columns)
        vector("transformer.ln_f.weight", hidden), vector("transformer.ln_f.bias", hidden)
    else:
        width = hidden // heads
        config = {"model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
                  "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocabulary, "rms_norm_eps": 1e-5,
                  "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": tied, "head_dim": width,
                  "hidden_act": "silu"}
        matrix("model.embed_tokens", vocabulary, hidden)
        if not tied:
            matrix("lm_head", vocabulary, hidden)
        for i in range(layers):
            p = f"model.layers.{i}."
            vector(p + "input_layernorm.weight", hidden), vector(p + "post_attention_layernorm.weight", hidden)
            projections = (("q_proj", hidden, hidden), ("k_proj", kv * width, hidden), ("v_proj", kv * width, hidden),
                           ("o_proj", hidden, hidden))
            if deepseek:
                rank, nope, rotary, value = (more[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
                projections = (("kv_a_proj_with_mqa", rank + rotary, hidden), ("kv_b_proj", heads * (nope + value), rank),
                               ("o_proj", hidden, heads * value))
                vector(p + "self_attn.kv_a_layernorm.weight", rank)
                queries, q_rank = heads * (nope + rotary), more["q_lora_rank"]
                if q_rank:
                    projections += (("q_a_proj", q_rank, hidden), ("q_b_proj", queries, q_rank))
                    vector(p + "self_attn.q_a_layernorm.weight", q_rank)
                else:
                    projections += (("q_proj", queries, hidden),)
            for name, rows, columns in projections:
                matrix(p + "self_attn." + name, rows, columns)
                if kind == "gpt_oss" or (kind in ("qwen2", "qwen2_moe") and name != "o_proj"):
                    vector(p + "self_attn." + name + ".bias", rows)
            if kind in ("qwen3", "qwen3_moe", "dots1"):
                vector(p + "self_attn.q_norm.weight", width), vector(p + "self_attn.k_norm.weight", width)
            if kind == "olmoe":
                vector(p + "self_attn.q_norm.weight", hidden), vector(p + "self_attn.k_norm.weight", kv * width)
            dense = "mlp."
            if kind == "gpt_oss":
                dense = None
                vector(p + "self_attn.sinks", heads)
                matrix(p + "mlp.router", experts, hidden), vector(p + "mlp.router.bias", experts)
                for name, inputs, outputs in (("gate_up_proj", hidden, 2 * inner), ("down_proj", inner, hidden)):
                    columns = rows_of(random, (experts * outputs, inputs)).reshape(experts, outputs, inputs)
                    tensors[f"{p}mlp.experts.{name}"] = numpy.ascontiguousarray(columns.transpose(0, 2, 1))
                    tensors[f"{p}mlp.experts.{name}_bias"] = plain(random, (experts, outputs))
            elif experts and i >= more.get("first_k_dense_replace", 0):
                mixtral = kind == "mixtral"
                dense = ("mlp.shared_experts." if "n_shared_experts" in more else
                         "mlp.shared_expert." if kind == "qwen2_moe" else None)
                feed = p + ("block_sparse_moe." if mixtral else "mlp.")
                matrix(feed + "gate", experts, hidden)
                if kind == "qwen2_moe":
                    matrix(feed + "shared_expert_gate", 1, hidden)
                if kind in ("dots1", "deepseek_v3"):
                    vector(feed + "gate.e_score_correction_bias", experts)
                for e in range(experts):
                    for name, rows, columns in (("w1" if mixtral else "gate_proj", inner, hidden),
                                                ("w3" if mixtral else "up_proj", inner, hidden),
                                                ("w2" if mixtral else "down_proj", hidden, inner)):
                        matrix(f"{feed}experts.{e}.{name}", rows, columns)
            if dense:
                matrix(p + dense + "gate_proj", inner, hidden), matrix(p + dense + "up_proj", inner, hidden)
                matrix(p + dense + "down_proj", hidden, inner)
        vector("model.norm.weight", hidden)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if deepseek:
        del config["head_dim"], config["num_key_value_heads"]
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"} | more))


CASES = {
    "llama": {"kind": "llama"},
    "llama-tied": {"kind": "llama", "tied": True, "layers": 24, "inner": 256},
    "mistral-320": {"kind": "mistral", "hidden": 320, "inner": 768, "layers": 5},  # rows that are no blocks of 256
    "qwen2": {"kind": "qwen2", "layers": 12},
    "qwen3-tied": {"kind": "qwen3", "tied": True, "layers": 3},
    "gpt2": {"kind": "gpt2", "kv": 4, "layers": 8},
    "llama-80": {"kind": "llama", "layers": 80, "inner": 256, "vocabulary": 64},  # taken for Llama 70B
    "qwen2-80": {"kind": "qwen2", "layers": 80, "inner": 256, "vocabulary": 64, "kv": 4},
    "mixtral": {"kind": "mixtral", "experts": 8, "inner": 256, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {"kind": "qwen2_moe", "experts": 6, "inner": 256, "layers": 4, "num_experts": 6, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256, "norm_topk_prob": False},
    "qwen2_moe-tied": {"kind": "qwen2_moe", "experts": 4, "inner": 256, "layers": 2, "tied": True, "num_experts": 4,
                       "num_experts_per_tok": 2, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
    "qwen3_moe": {"kind": "qwen3_moe", "experts": 12, "inner": 256, "layers": 8, "num_experts": 12, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 256, "norm_topk_prob": True},
    "olmoe": {"kind": "olmoe", "experts": 4, "inner": 256, "layers": 4, "kv": 4, "num_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"kind": "dots1", "experts": 6, "inner": 256, "layers": 5, "kv": 4, "n_routed_experts": 6, "num_experts_per_tok": 2,
              "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
              "norm_topk_prob": True},
    "deepseek_v3": {"kind": "deepseek_v3", "experts": 8, "inner": 256, "layers": 5, "n_routed_experts": 8, "num_experts_per_tok": 3,
                    "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 1.5, "norm_topk_prob": True, "q_lora_rank": 256, "kv_lora_rank": 256,
                    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
                    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "mscale": 1.0,
                                     "mscale_all_dim": 1.0}},
    "gpt_oss": {"kind": "gpt_oss", "experts": 6, "inner": 256, "layers": 5, "num_local_experts": 6, "num_experts_per_tok": 2,
                "sliding_window": 8, "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16}},
    "deepseek_v2": {"kind": "deepseek_v2", "experts": 6, "inner": 256, "layers": 27, "n_routed_experts": 6, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1, "topk_method": "greedy",
                    "routed_scaling_factor": 1.0, "norm_topk_prob": False, "q_lora_rank": None, "kv_lora_rank": 256,
                    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32},
}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=root / "build" / "athanor", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    args = parser.parse_args()
    llama = Llama()
    failed = files = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def export(name, target, dtype, *more):
            done = subprocess.run([args.program, "export", folder / name, target, "--format", "gguf", "--dtype", dtype, *more],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)

        (folder / "text.txt").write_text("".join(f"{n} is {n * n % 97}, then {n * 7 % 31}.\n" for n in range(300)))
        subprocess.run([args.program, "tokenize", "--input", folder / "text.txt", "--output-prefix", folder / "text"],
                       check=True, capture_output=True)
        data = folder / "text_*.bin"
        for seed, name in enumerate(CASES):
            if name not in args.only:
                continue
            model(folder / "plain", plain, seed=seed, **CASES[name])
            failed += compare_logits(llama, args.program, folder / "plain", name)
            shutil.rmtree(folder / "plain")
            model(folder / name, weights, seed=seed, **CASES[name])
            export(name, folder / f"{name}.gguf", "f32")
            for dtype, file_type in FILE_TYPES.items():
                for weighted in (False, True):
                    if weighted and CASES[name].get("vocabulary"):
                        continue  # smaller than that of the text
                    ours, theirs, matrix = folder / "ours.gguf", folder / "theirs.gguf", folder / "matrix.gguf"
                    ours.unlink(missing_ok=True)
                    matrix.unlink(missing_ok=True)
                    export(name, ours, dtype, *(["--calibrate", data, "--imatrix", matrix] if weighted else []))
                    llama.quantize(folder / f"{name}.gguf", theirs, file_type, read_imatrix(matrix) if weighted else {})
                    files += 1
                    if ours.read_bytes() != theirs.read_bytes():
                        failed += 1
                        print(f"{name} {dtype}{' with importance' if weighted else ''}: the files differ")
                        differences(ours, theirs)
    print(f"{files} files, {failed} faults: {'FAILED' if failed else 'OK'}")
    return 1 if failed or files == 0 else 0


def compare_logits(llama, program, folder, name):
    """1 if llama.cpp's logits differ from athanor's by more than 1e-4 of the largest (GPT-2, whose GELU llama.cpp reads from a
    table of f16: 2e-3), else 0."""
    file, wanted = folder / "model.gguf", folder / "logits.safetensors"
    for command in (["export", folder, file, "--format", "gguf", "--dtype", "f32"], ["logits", folder, wanted]):
        subprocess.run([program, *command], check=True, capture_output=True)
    sequences = load_file(wanted)
    worst = max(numpy.abs(llama.logits(file, tokens, logits.shape[-1]) - logits).max() / numpy.abs(logits).max()
                for tokens, logits in zip(sequences["tokens"], sequences["logits"]))
    print(f"{name}: logits differ by at most {worst:.1e} of the largest")
    return int(not worst < (2e-3 if name == "gpt2" else 1e-4))


def differences(ours, theirs):
    """What differs."""
    a, b = GGUFReader(ours), GGUFReader(theirs)
    if list(a.fields) != list(b.fields):
        print("  keys:", [k for k in a.fields if k not in b.fields], [k for k in b.fields if k not in a.fields])
    if [t.name for t in a.tensors] != [t.name for t in b.tensors]:
        print("  order of tensors")
    other = {t.name: t for t in b.tensors}
    for t in a.tensors:
        o = other.get(t.name)
        if o is None or t.tensor_type != o.tensor_type:
            print(f"  {t.name}: {t.tensor_type.name}, expected {o and o.tensor_type.name}")
        elif t.data.tobytes() != o.data.tobytes():
            where = numpy.flatnonzero(numpy.frombuffer(t.data.tobytes(), "u1") != numpy.frombuffer(o.data.tobytes(), "u1"))
            print(f"  {t.name} {t.tensor_type.name}: {len(where)} of {t.data.nbytes} bytes differ, first at {where[0]}")


if __name__ == "__main__":
    sys.exit(main())
