#!/usr/bin/env python3
"""Checks that `athanor export --format gguf` writes the files of llama.cpp's quantizer, byte by byte.

Models of every family with random weights (outliers, zeros and subnormal numbers among them) are exported in f32 or bf16 by
athanor; llama.cpp's library quantizes that file, athanor exports the model once more in the same quantized type, and the
two files must be the same. Then both do so with an importance matrix that athanor measures (--calibrate, --imatrix).

usage: check_gguf.py [--program build/athanor] [--library FOLDER] [--only NAME...]
--library: the folder with llama.cpp's libllama.so; default: the package llama_cpp_py_sync of this Python
(`pip install --no-deps llama-cpp-py-sync`, last run with 0.11739). Needs numpy, safetensors, gguf. Exit status 1 if a file differs.
"""

import argparse
import ctypes
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from gguf import GGUFReader
from safetensors.numpy import save_file

FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_K_S": 14, "q4_K_M": 15, "q5_K_S": 16, "q5_K_M": 17,
              "q6_K": 18}


class Parameters(ctypes.Structure):
    """llama_model_quantize_params of llama.h; GGML_TYPE_COUNT and more follow from the library's defaults."""
    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int), ("output_tensor_type", ctypes.c_int),
                ("token_embedding_type", ctypes.c_int), ("allow_requantize", ctypes.c_bool),
                ("quantize_output_tensor", ctypes.c_bool), ("only_copy", ctypes.c_bool), ("pure", ctypes.c_bool),
                ("keep_split", ctypes.c_bool), ("dry_run", ctypes.c_bool), ("imatrix", ctypes.c_void_p),
                ("kv_overrides", ctypes.c_void_p), ("tt_overrides", ctypes.c_void_p), ("prune_layers", ctypes.c_void_p),
                ("max_buf_size", ctypes.c_size_t)]


class Importance(ctypes.Structure):
    """llama_model_imatrix_data: one weight; a list ends with a null name."""
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


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


class Quantizer:
    def __init__(self, folder):
        if folder is None:
            spec = importlib.util.find_spec("llama_cpp_py_sync")
            if spec is None:
                sys.exit("check_gguf.py: no llama.cpp: give --library, or pip install --no-deps llama-cpp-py-sync")
            folder = pathlib.Path(spec.origin).parent
        for name in ("libggml-base.so.0", "libggml-cpu.so.0", "libggml-rpc.so.0", "libggml.so.0"):
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self.llama = ctypes.CDLL(str(folder / "libllama.so"))
        self.llama.llama_model_quantize_default_params.restype = Parameters
        self.messages = []
        log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.log = log(lambda level, text, data: self.messages.append(text.decode(errors="replace")))
        self.llama.llama_log_set(self.log, None)

    def __call__(self, source, target, file_type, importance=None):
        parameters = self.llama.llama_model_quantize_default_params()
        parameters.nthread, parameters.ftype = 2, file_type
        if importance:
            entries = (Importance * (len(importance) + 1))()
            for entry, (name, values) in zip(entries, importance.items()):
                entry.name, entry.size = name.encode(), len(values)
                entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            parameters.imatrix = ctypes.addressof(entries)
        self.messages.clear()
        if self.llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters)) != 0:
            raise RuntimeError("".join(self.messages[-3:]))


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


def model(folder, kind, seed, hidden=256, inner=512, layers=9, heads=4, kv=2, vocabulary=300, tied=False, experts=0, **more):
    random = numpy.random.default_rng(seed)
    tensors = {}

    def matrix(name, rows, columns):
        tensors[name + ".weight"] = weights(random, (rows, columns))

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
            for name, rows, columns in (("q_proj", hidden, hidden), ("k_proj", kv * width, hidden),
                                        ("v_proj", kv * width, hidden), ("o_proj", hidden, hidden)):
                matrix(p + "self_attn." + name, rows, columns)
                if kind in ("qwen2", "qwen2_moe") and name != "o_proj":
                    vector(p + "self_attn." + name + ".bias", rows)
            if kind in ("qwen3", "qwen3_moe", "dots1"):
                vector(p + "self_attn.q_norm.weight", width), vector(p + "self_attn.k_norm.weight", width)
            if kind == "olmoe":
                vector(p + "self_attn.q_norm.weight", hidden), vector(p + "self_attn.k_norm.weight", kv * width)
            dense = "mlp."
            if experts and not (kind == "dots1" and i == 0):
                mixtral = kind == "mixtral"
                dense = {"dots1": "mlp.shared_experts.", "qwen2_moe": "mlp.shared_expert."}.get(kind)
                feed = p + ("block_sparse_moe." if mixtral else "mlp.")
                matrix(feed + "gate", experts, hidden)
                if kind == "qwen2_moe":
                    matrix(feed + "shared_expert_gate", 1, hidden)
                if kind == "dots1":
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
    "qwen3_moe": {"kind": "qwen3_moe", "experts": 12, "inner": 256, "layers": 8, "num_experts": 12, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 256, "norm_topk_prob": True},
    "olmoe": {"kind": "olmoe", "experts": 4, "inner": 256, "layers": 4, "kv": 4, "num_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"kind": "dots1", "experts": 6, "inner": 256, "layers": 5, "n_routed_experts": 6, "num_experts_per_tok": 2,
              "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
              "norm_topk_prob": True},
}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=root / "build" / "athanor", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    args = parser.parse_args()
    quantize = Quantizer(args.library)
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
            model(folder / name, seed=seed, **CASES[name])
            export(name, folder / f"{name}.gguf", "f32")
            for dtype, file_type in FILE_TYPES.items():
                for weighted in (False, True):
                    if weighted and CASES[name].get("vocabulary"):
                        continue  # smaller than that of the text
                    ours, theirs, matrix = folder / "ours.gguf", folder / "theirs.gguf", folder / "matrix.gguf"
                    ours.unlink(missing_ok=True)
                    matrix.unlink(missing_ok=True)
                    export(name, ours, dtype, *(["--calibrate", data, "--imatrix", matrix] if weighted else []))
                    quantize(folder / f"{name}.gguf", theirs, file_type, read_imatrix(matrix) if weighted else None)
                    files += 1
                    if ours.read_bytes() != theirs.read_bytes():
                        failed += 1
                        print(f"{name} {dtype}{' with importance' if weighted else ''}: the files differ")
                        differences(ours, theirs)
    print(f"{files} files, {failed} differ: {'FAILED' if failed else 'OK'}")
    return 1 if failed or files == 0 else 0


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
