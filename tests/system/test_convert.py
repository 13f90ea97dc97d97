"""Models in and out: --init-from, import, export, GGUF, and the comparison with transformers and llama.cpp's reader."""
import json
import math
import shutil
import struct
import subprocess
import unittest

from harness import PYTHON, ROOT, USAGE, SystemTest, python_has, random_tokens, read_safetensors, write_shard

GOLDEN = ROOT / "tests" / "golden"
FIXTURES = ROOT / "tests" / "tokenizer" / "fixtures"


def tensors_of(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update(read_safetensors(path))
    return out


class FolderTest(SystemTest):
    def test_import_and_export_are_bit_exact(self):
        for name in ("gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
                     "dots1", "deepseek_v3", "gpt_oss"):
            self.run_program("import", GOLDEN / name, f"{name}-in")
            self.run_program("checkpoint", "verify", f"{name}-in")
            self.run_program("export", f"{name}-in", f"{name}-out", "--max-shard-size", "20KB")
            self.assertTrue((self.folder / f"{name}-out" / "model.safetensors.index.json").is_file())
            self.assertEqual(tensors_of(self.folder / f"{name}-out"),
                             read_safetensors(GOLDEN / name / "model.safetensors"))

    def test_checkpoint_of_a_run_is_exported_in_bf16(self):
        self.run_program("train", self.make_config(train_iters=4, schedule={"lr_warmup_iters": 1}))
        self.run_program("export", "run", "out", "--dtype", "bf16")
        config = json.loads((self.folder / "out" / "config.json").read_text())
        self.assertEqual(config["torch_dtype"], "bfloat16")
        self.assertEqual({t[0] for t in tensors_of(self.folder / "out").values()}, {"BF16"})
        self.assertFalse((self.folder / "out" / "optimizer.safetensors").exists())
        done = self.run_program("export", "run", "out", code=USAGE)
        self.assertIn("out: exists already", done.err)

    def test_fp8_exports_decode_within_half_a_step(self):
        """Codes and scales, decoded by the formats' own rules, are the weights within half a step of E4M3."""
        self.run_program("import", GOLDEN / "llama", "in")
        plain = {name: struct.unpack(f"<{len(data) // 4}f", data) for name, (_, _, data) in tensors_of(self.folder / "in").items()}
        steps = [0.0] + [(-1) ** (c >> 7) * ((c & 7) * 2.0 ** -9 if c & 0x78 == 0 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3 & 15) - 7))
                         for c in range(1, 256)]  # value of each code; 0x7f and 0xff are NaN and never written
        for form, suffix, shape in (("fp8_tensor", "_scale", lambda n, k: [1]), ("fp8_channel", "_scale", lambda n, k: [n, 1]),
                                    ("fp8_block", "_scale_inv", lambda n, k: [-(-n // 128), -(-k // 128)])):
            self.run_program("export", "in", form, "--dtype", form)
            tensors = tensors_of(self.folder / form)
            coded = [name for name, (dtype, _, _) in tensors.items() if dtype == "F8_E4M3"]
            self.assertEqual(len(coded), sum(".layers." in name and "norm" not in name for name in plain), form)
            for name in coded:
                (n, k), codes = tensors[name][1], tensors[name][2]
                dtype, scale_shape, scales = tensors[name + suffix]
                self.assertEqual((dtype, scale_shape), ("F32", shape(n, k)), name)
                scales = struct.unpack(f"<{len(scales) // 4}f", scales)
                for i, code in enumerate(codes):
                    scale = scales[0] if form == "fp8_tensor" else scales[i // k] if form == "fp8_channel" else \
                        scales[i // k // 128 * scale_shape[1] + i % k // 128]
                    self.assertNotIn(code, (0x7f, 0xff))
                    self.assertLessEqual(abs(steps[code] * scale - plain[name][i]),
                                         max(abs(plain[name][i]) / 16, scale * 2.0 ** -10) * 1.001, f"{form} {name} {i}")
            self.assertIn("quantization_config", json.loads((self.folder / form / "config.json").read_text()))
            self.run_program("logits", form, f"{form}.safetensors", "--batch", 1, "--seq-length", 8)
        self.refused("export", "in", "x", "--dtype", "fp8_block", "--format", "gguf", code=USAGE, says=["fp8_block", "q8_0"])
        self.refused("export", "in", "x", "--dtype", "q4_K_M", code=USAGE, says=["q4_K_M", "bf16"])
        self.refused("export", "in", "x", "--dtype", "q4_Q", code=USAGE, says=["q4_Q", "q4_K_M"])
        self.refused("export", GOLDEN / "llama", "x", "--dtype", "q4_K_M", "--format", "gguf", code=USAGE,
                     says=["q4_K_M", "256", "hidden_size"])
        self.run_program("import", GOLDEN / "gpt2", "gpt2")
        self.refused("export", "gpt2", "x", "--dtype", "fp8_block", code=USAGE, says=["gpt2", "FP8"])

    def test_gpt2_nf4_weights_are_stored_as_outputs_by_inputs_and_round_trip(self):
        self.run_program("export", GOLDEN / "gpt2", "nf4", "--dtype", "nf4_single")
        self.run_program("export", "nf4", "again", "--dtype", "nf4_single")
        self.assertEqual(tensors_of(self.folder / "nf4"), tensors_of(self.folder / "again"))
        self.run_program("export", "nf4", "plain", "--dtype", "f32")
        name = "transformer.h.0.mlp.c_fc.weight"
        stored, original = tensors_of(self.folder / "nf4"), read_safetensors(GOLDEN / "gpt2" / "model.safetensors")[name]
        inputs, outputs = original[1]
        state = json.loads(stored[name + ".quant_state.bitsandbytes__nf4"][2])
        self.assertEqual(state["shape"], [outputs, inputs])
        floats = lambda t: struct.unpack(f"<{len(t[2]) // 4}f", t[2])
        want, got = floats(original), floats(tensors_of(self.folder / "plain")[name])
        absmax = floats(stored[name + ".absmax"])
        for i in range(inputs):
            for j in range(outputs):  # the widest gap of the table is 0.304
                self.assertLessEqual(abs(want[i * outputs + j] - got[i * outputs + j]), 0.153 * absmax[(j * inputs + i) // 64])

    def test_int8_weights_keep_the_loss(self):
        self.run_program("train", self.make_config(train_iters=40, schedule={"lr_warmup_iters": 2}))
        loss = lambda *more: json.loads(self.run_program("eval", "run", "--data", "data/*.bin", "--samples", "8", "--json",
                                                         *more).out)["loss"]
        plain, int8, apart = loss(), loss("--weights", "int8"), loss("--weights", "llm_int8")
        self.assertNotEqual(plain, int8)
        self.assertAlmostEqual(plain, int8, delta=5e-3)
        self.assertAlmostEqual(plain, apart, delta=5e-3)
        self.refused("eval", "run", "--weights", "int4", code=USAGE, says=["int4", "llm_int8"])

    def test_init_from_starts_at_the_loss_of_the_weights(self):
        self.run_program("train", self.make_config(train_iters=60, learning_rate=3e-3))
        last = self.losses()[60]
        config = json.loads(self.make_config(save="second", train_iters=3, schedule={"lr_warmup_iters": 1}).read_text())
        del config["model"]
        (self.folder / "second.json").write_text(json.dumps(config))
        self.run_program("train", "second.json", "--init-from", "run")
        self.assertGreater(self.losses()[1] - last, 0.5, "the first run has learnt something to take over")
        self.assertLess(abs(self.losses("second")[1] - last), 0.4)
        start = next(r for r in self.records("second") if r["event"] == "start")
        self.assertIn("weights of run/step-00000060", start["text"])
        # A resumed run does not load the initial weights a second time.
        self.run_program("train", "second.json", "--init-from", "run", "--set", "train_iters=4",
                         "--set", "schedule.lr_decay_iters=3")
        self.assertEqual(max(self.losses("second")), 4)

    def test_init_from_another_shape_is_refused(self):
        config = self.make_config(model={"model_type": "llama", "intermediate_size": 64})
        self.refused("train", config, "--init-from", GOLDEN / "gpt2", code=USAGE,
                     says=["init_from", "model.model_type: the weights have gpt2, the run llama", "hidden_size"])

    def test_soft_capped_logits_are_read_but_not_exported(self):
        shutil.copytree(GOLDEN / "llama", self.folder / "model")
        config = json.loads((GOLDEN / "llama" / "config.json").read_text())
        logits = {}
        for cap in (None, 0.25):
            config["final_logit_softcapping"] = cap
            (self.folder / "model" / "config.json").write_text(json.dumps(config))
            self.run_program("import", "model", f"in-{cap}")
            self.run_program("logits", f"in-{cap}", f"{cap}.safetensors", "--seq-length", "8")
            _, _, values = read_safetensors(self.folder / f"{cap}.safetensors")["logits"]
            logits[cap] = struct.unpack(f"<{len(values) // 4}f", values)
        for plain, capped in zip(logits[None], logits[0.25]):
            self.assertAlmostEqual(capped, 0.25 * math.tanh(plain / 0.25), places=6)
        self.run_program("export", "in-None", "out")
        for form in ("hf", "gguf"):
            self.refused("export", "in-0.25", f"out-{form}", "--format", form, code=USAGE,
                         says=["model.final_logit_softcapping is 0.25", "llama has none in transformers and llama.cpp"])

    def test_logits_have_the_requested_shape(self):
        self.run_program("logits", GOLDEN / "qwen3", "l.safetensors", "--batch", "3", "--seq-length", "21")
        context = json.loads((GOLDEN / "qwen3" / "config.json").read_text())["max_position_embeddings"]
        longer = self.run_program("logits", GOLDEN / "qwen3", "m.safetensors", "--seq-length", context + 1, code=USAGE)
        self.assertIn(f"expected at most {context}, the model's context, got {context + 1}", longer.err)
        ours = read_safetensors(self.folder / "l.safetensors")
        self.assertEqual(ours["logits"][:2], ("F32", [3, 21, 89]))
        self.assertEqual(ours["tokens"][:2], ("I32", [3, 21]))

    def test_transformers_computes_the_same_logits(self):
        if not python_has("transformers", "torch", "safetensors"):
            self.skipTest("no transformers in ATHANOR_PYTHON")
        done = subprocess.run([PYTHON, ROOT / "scripts" / "check_exchange.py", "--program", self.program],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("OK", done.stdout)


READ_GGUF = """
import json, sys
import numpy as np
from gguf import GGUFReader, dequantize
reader = GGUFReader(sys.argv[1])
fields = {name: field.contents() for name, field in reader.fields.items()}
tensors = {}
for t in reader.tensors:
    values = dequantize(t.data, t.tensor_type).astype(np.float32)
    tensors[t.name] = {"type": t.tensor_type.name, "shape": [int(n) for n in reversed(t.shape)],
                       "values": values.reshape(-1).tolist()}
json.dump({"fields": fields, "tensors": tensors}, sys.stdout, default=str)
"""
QUANTIZE = """
import json, sys
import numpy as np
from gguf import quantize, dequantize, GGMLQuantizationType
kind = GGMLQuantizationType[sys.argv[1]]
x = np.array(json.load(sys.stdin), dtype=np.float32)
print(json.dumps(dequantize(quantize(x, kind), kind).reshape(-1).tolist()))
"""


class PeftTest(SystemTest):
    """Adapters of a run, opened by the peft package, and back. Needs peft and transformers in ATHANOR_PYTHON."""

    def test_logits_match_peft(self):
        if not python_has("torch", "transformers", "peft"):
            self.skipTest(f"{PYTHON} has no torch, transformers and peft (set ATHANOR_PYTHON)")
        for model, variant in (("gpt2", "lora"), ("llama", "rslora"), ("qwen2", "lora"), ("gpt2", "dora"), ("qwen2", "dora"),
                               ("mixtral", "lora"), ("qwen3_moe", "dora")):
            base, name = GOLDEN / model, f"{model}-{variant}"
            run = f"{name}-run"
            vocab = json.loads((base / "config.json").read_text())["vocab_size"]
            write_shard(self.folder / f"{name}.bin", random_tokens(2000, vocab), vocab)
            path = self.make_config(train_iters=8, schedule={"lr_warmup_iters": 1}, learning_rate=0.02, save=run,
                                    seq_length=16,
                                    init_from=str(base), lora={"rank": 3, "alpha": 5, "variant": variant},
                                    train_data=f"{name}.bin")
            config = json.loads(path.read_text())
            del config["model"], config["valid_data"]  # those of the folder; none
            path.write_text(json.dumps(config))
            self.run_program("train", path)
            self.run_program("export", run, f"{name}-peft", "--format", "peft")
            self.run_program("export", run, f"{name}-merged", "--dtype", "f32")
            done = subprocess.run([PYTHON, ROOT / "scripts" / "check_peft.py", base, f"{name}-peft", f"{name}-merged",
                                   f"{name}-theirs"], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.run_program("export", f"{name}-theirs", f"{name}-again", "--dtype", "f32")
            self.assertEqual(tensors_of(self.folder / f"{name}-again"), tensors_of(self.folder / f"{name}-merged"))


class BitsandbytesTest(SystemTest):
    """Folders in NF4, compared with bitsandbytes. Needs bitsandbytes and transformers in ATHANOR_PYTHON."""

    def test_bytes_and_logits_match_bitsandbytes(self):
        if not python_has("torch", "transformers", "bitsandbytes", "accelerate"):
            self.skipTest(f"{PYTHON} has no torch, transformers, bitsandbytes and accelerate (set ATHANOR_PYTHON)")
        size = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        for model in ({"model_type": "llama", "num_key_value_heads": 1, "intermediate_size": 128},  # its kernels take outputs by 32
                      {"model_type": "gpt2"}):
            run, base = "run-" + model["model_type"], "base-" + model["model_type"]
            self.run_program("train", self.make_config(train_iters=3, schedule={"lr_warmup_iters": 1}, save=run,
                                                       model=size | model))
            self.run_program("export", run, base, "--dtype", "f32")
            for dtype in ("nf4", "nf4_single"):
                self.run_program("export", base, f"{base}-{dtype}", "--dtype", dtype)
                done = subprocess.run([PYTHON, ROOT / "scripts" / "check_bitsandbytes.py", base, f"{base}-{dtype}"],
                                      cwd=self.folder, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class GgufTest(SystemTest):
    def setUp(self):
        super().setUp()
        if not python_has("gguf", "numpy"):
            self.skipTest("no gguf in ATHANOR_PYTHON")

    def python(self, *arguments, text=None):
        done = subprocess.run([PYTHON, "-c", *arguments], cwd=self.folder, capture_output=True, text=True, input=text)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def read(self, path):
        return self.python(READ_GGUF, path)

    def golden(self, name):
        out = {}
        for key, (_, shape, data) in read_safetensors(GOLDEN / name / "model.safetensors").items():
            out[key] = (shape, struct.unpack(f"<{len(data) // 4}f", data))
        return out

    def export(self, name, *more):
        self.run_program("export", GOLDEN / name, f"{name}.gguf", "--format", "gguf", *more)
        return self.read(f"{name}.gguf")

    def test_every_family_exports_its_values_and_fields(self):
        for name, arch in (("gpt2", "gpt2"), ("llama", "llama"), ("llama3", "llama"), ("mistral", "llama"),
                           ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("mixtral", "llama"), ("qwen3_moe", "qwen3moe"),
                           ("olmoe", "olmoe")):
            got = self.export(name)
            fields, tensors = got["fields"], got["tensors"]
            config = json.loads((GOLDEN / name / "config.json").read_text())
            self.assertEqual(fields["general.architecture"], arch)
            self.assertEqual(fields[f"{arch}.block_count"], config.get("num_hidden_layers", config.get("n_layer")))
            self.assertEqual(fields["tokenizer.ggml.model"], "none")
            theirs = self.golden(name)
            embedding = "transformer.wte.weight" if name == "gpt2" else "model.embed_tokens.weight"
            self.assertEqual(tuple(tensors["token_embd.weight"]["values"]), theirs[embedding][1])
            self.assertEqual(tensors["token_embd.weight"]["shape"], theirs[embedding][0])
            if f"{arch}.expert_count" in fields:
                self.check_experts(tensors, theirs, config, fields[f"{arch}.expert_count"])
                self.check_rows_of_heads(tensors, theirs, config, arch)
                continue
            down = tensors["blk.1.ffn_down.weight"]
            if name == "gpt2":  # stored the other way round
                shape, values = theirs["transformer.h.1.mlp.c_proj.weight"]
                self.assertEqual(down["shape"], shape[::-1])
                self.assertEqual(down["values"][1], values[shape[1]])
                self.assertEqual(fields["gpt2.feed_forward_length"], 116)
                self.assertEqual(tuple(tensors["blk.0.attn_qkv.bias"]["values"]),
                                 theirs["transformer.h.0.attn.c_attn.bias"][1])
            else:
                self.assertEqual(tuple(down["values"]), theirs["model.layers.1.mlp.down_proj.weight"][1])
                self.check_rows_of_heads(tensors, theirs, config, arch)
            self.assertEqual(len(tensors), len(theirs) + (name == "llama3"))
            if name == "qwen3":
                self.assertEqual(fields["qwen3.attention.key_length"], 14)

    def check_experts(self, tensors, theirs, config, experts):
        """The matrices of a layer's experts follow each other in one tensor; the router is exact."""
        mixtral = config["model_type"] == "mixtral"
        self.assertEqual(experts, config.get("num_local_experts", config.get("num_experts")))
        block = "model.layers.1." + ("block_sparse_moe" if mixtral else "mlp")
        self.assertEqual(tuple(tensors["blk.1.ffn_gate_inp.weight"]["values"]), theirs[f"{block}.gate.weight"][1])
        for kind, own in (("gate", "w1" if mixtral else "gate_proj"), ("up", "w3" if mixtral else "up_proj"),
                          ("down", "w2" if mixtral else "down_proj")):
            merged = tensors[f"blk.1.ffn_{kind}_exps.weight"]
            each = [theirs[f"{block}.experts.{i}.{own}.weight"] for i in range(experts)]
            self.assertEqual(merged["shape"], [experts, *each[0][0]])
            self.assertEqual(tuple(merged["values"]), sum((values for _, values in each), ()))

    def check_rows_of_heads(self, tensors, theirs, config, arch):
        """llama.cpp turns neighbours of a head for llama, and its halves for the others."""
        (rows, columns), values = theirs["model.layers.0.self_attn.k_proj.weight"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        got = tensors["blk.0.attn_k.weight"]["values"]
        for row in range(rows):
            head, i = divmod(row, width)
            origin = head * width + (i // 2 + i % 2 * (width // 2) if arch == "llama" else i)
            self.assertEqual(tuple(got[row * columns:(row + 1) * columns]),
                             values[origin * columns:(origin + 1) * columns], f"row {row}")

    def test_llama3_exports_rope_factors(self):
        factors = self.export("llama3")["tensors"]["rope_freqs.weight"]["values"]
        self.assertEqual(len(factors), 6)
        self.assertEqual(factors[0], 1.0)
        self.assertEqual(factors[-1], 8.0)
        self.assertTrue(all(a <= b for a, b in zip(factors, factors[1:])), factors)

    def test_exports_every_float_type(self):
        for dtype, kind, tolerance in (("f16", "F16", 1e-3), ("bf16", "BF16", 8e-3), ("f32", "F32", 0)):
            (self.folder / "gpt2.gguf").unlink(missing_ok=True)
            got = self.export("gpt2", "--dtype", dtype)["tensors"]
            self.assertEqual(got["blk.0.ffn_up.weight"]["type"], kind)
            self.assertEqual(got["blk.0.ffn_up.bias"]["type"], "F32")
            self.assertEqual(got["position_embd.weight"]["type"], "F32")
            for a, b in zip(got["token_embd.weight"]["values"], self.golden("gpt2")["transformer.wte.weight"][1]):
                self.assertLessEqual(abs(a - b), tolerance * abs(b) + 1e-7)

    def test_blocks_match_the_gguf_package(self):
        shape, values = self.golden("qwen3")["model.layers.0.mlp.up_proj.weight"]
        rows = json.dumps([values[r * shape[1]:(r + 1) * shape[1]] for r in range(shape[0])])
        for dtype in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
            (self.folder / "qwen3.gguf").unlink(missing_ok=True)
            got = self.export("qwen3", "--dtype", dtype)  # rows of 32, and of 36
            tensors = got["tensors"]
            self.assertEqual(got["fields"]["general.quantization_version"], 2)
            self.assertEqual(tensors["blk.0.ffn_up.weight"]["type"], dtype.upper())
            self.assertEqual(tensors["blk.0.ffn_down.weight"]["type"], "F16", "36 is no multiple of 32")
            self.assertEqual(tensors["blk.0.ffn_up.weight"]["values"], self.python(QUANTIZE, dtype.upper(), text=rows), dtype)

    def test_quantized_models_are_compared_with_the_original(self):
        (self.folder / "text.txt").write_text("".join(f"{n} is {n * n % 97}, then {n * 7 % 31}.\n" for n in range(9000)))
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text")
        shape = {"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
        self.run_program("train", self.make_config(train_iters=40, schedule={"lr_warmup_iters": 2}, model=shape))
        text = ["--check", "data/*.bin", "--check-samples", "8", "--json"]
        calibrate = ["--calibrate", "data/*.bin", "--calibrate-samples", "16"]
        kl = {}
        for form, dtype, more in (("gguf", "q8_0", []), ("gguf", "q4_0", []), ("gguf", "q4_1", calibrate),
                                  ("hf", "nf4", []), ("hf", "nf4_single", []), ("hf", "bf16", ["--wanda", "0.2", *calibrate]),
                                  ("hf", "same", ["--sparsegpt", "0.2", *calibrate]),
                                  ("compressed-tensors", "w8a16", ["--group-size", "32"]),
                                  ("compressed-tensors", "w4a16", ["--group-size", "32"]),
                                  ("gptq", "w4a16", ["--group-size", "32", *calibrate]),
                                  ("gptq", "w4a16", ["--group-size", "32", "--act-order", *calibrate])):
            name = f"{form}-{dtype}{'-act' if '--act-order' in more else ''}" + (".gguf" if form == "gguf" else "")
            table = json.loads(self.run_program("export", "run", name, "--format", form, "--dtype", dtype, *more, *text).out)
            kl[name] = table["kl"]
            self.assertGreater(table["same_top"], 0.9)
            self.assertLess(table["bits_per_weight"], 12 if form != "hf" or dtype.startswith("nf4") else 33)
            done = json.loads(self.run_program("eval", name, "--data", "data/*.bin", "--samples", "8", "--json").out)
            self.assertAlmostEqual(done["loss"], table["loss"], places=4, msg=name)
        self.run_program("export", "run", "new/slash/", "--dtype", "f16", *text)
        self.assertTrue((self.folder / "new" / "slash" / "config.json").exists(), "the slash is no name of its own")
        self.assertLess(kl["gguf-q8_0.gguf"], 2e-3)
        self.assertLess(kl["gguf-q8_0.gguf"], kl["gguf-q4_0.gguf"])
        self.assertLess(kl["compressed-tensors-w8a16"], kl["compressed-tensors-w4a16"])
        self.assertLess(kl["gptq-w4a16"], kl["compressed-tensors-w4a16"], "GPTQ is better than rounding to nearest")
        self.assertLess(kl["gptq-w4a16-act"], kl["compressed-tensors-w4a16"])
        self.assertLess(kl["hf-same"], kl["hf-bf16"], "SparseGPT is better than Wanda")
        limits = ["export", "run", "no.gguf", "--format", "gguf", "--dtype", "q4_0", *text, "--max-kl", "1e-9"]
        self.refused(*limits, code=USAGE, says=["nothing is written", "--max-kl", "--force"])
        self.assertFalse((self.folder / "no.gguf").exists())
        self.assertEqual(list(self.folder.glob(".*checked")), [])
        self.run_program(*limits, "--force")
        self.assertTrue((self.folder / "no.gguf").exists())

    def test_experts_are_quantized_by_the_inputs_that_reach_them(self):
        (self.folder / "text.txt").write_text("".join(f"{n} is {n * n % 97}, then {n * 7 % 31}.\n" for n in range(9000)))
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text")
        shape = {"model_type": "mixtral", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "num_local_experts": 4,
                 "num_experts_per_tok": 2}
        self.run_program("train", self.make_config(train_iters=40, schedule={"lr_warmup_iters": 2}, model=shape))
        text = ["--check", "data/*.bin", "--check-samples", "8", "--json"]
        calibrate = ["--calibrate", "data/*.bin", "--calibrate-samples", "16"]
        kl = {}
        for form, dtype, more in (("gguf", "q4_0", [*calibrate, "--imatrix", "imatrix.gguf"]), ("hf", "fp8_block", []),
                                  ("compressed-tensors", "w4a16", ["--group-size", "32"]),
                                  ("gptq", "w4a16", ["--group-size", "32", *calibrate]),
                                  ("hf", "same", ["--sparsegpt", "0.3", *calibrate]),
                                  ("hf", "f32", ["--wanda", "0.3", *calibrate])):
            name = f"{form}-{dtype}"
            table = json.loads(self.run_program("export", "run", name, "--format", form, "--dtype", dtype, *more, *text).out)
            kl[name] = table["kl"]
            self.assertLess(table["kl"], 0.02, name)
            self.assertLess(table["bits_per_weight"], 11 if dtype not in ("same", "f32") else 33, name)
        self.assertLess(kl["gptq-w4a16"], kl["compressed-tensors-w4a16"], "GPTQ is better than rounding to nearest")
        self.assertLess(kl["hf-same"], kl["hf-f32"], "SparseGPT is better than Wanda")
        if not python_has("gguf", "numpy"):
            return
        found = self.read("imatrix.gguf")["tensors"]
        tokens = found["blk.1.attn_q.weight.counts"]["values"][0]
        counts = found["blk.1.ffn_down_exps.weight.counts"]["values"]
        self.assertEqual(sum(counts), 2 * tokens, "each token is counted at both of its experts")
        self.assertEqual(counts, found["blk.1.ffn_gate_exps.weight.counts"]["values"])
        self.assertEqual(found["blk.1.ffn_down_exps.weight.in_sum2"]["shape"], [4, 64])

    def test_options_without_effect_are_refused(self):
        llama = GOLDEN / "llama"
        for more, says in ((["--calibrate", "x.bin"], ["--calibrate", "gptq"]),
                           (["--format", "gptq", "--dtype", "w4a16"], ["--calibrate"]),
                           (["--format", "gptq", "--dtype", "q4_0"], ["gptq", "w4a16"]),
                           (["--format", "compressed-tensors"], ["compressed-tensors", "w4a16", "fp8_channel"]),
                           (["--act-order"], ["--act-order", "gptq"]), (["--force"], ["--force", "--check"]),
                           (["--wanda", "0.5"], ["--wanda", "--calibrate"]),
                           (["--wanda", "3:4", "--calibrate", "x.bin"], ["--wanda 3:4", "2:4"]),
                           (["--wanda", "0.5", "--sparsegpt", "0.5", "--calibrate", "x.bin"], ["--wanda", "--sparsegpt"]),
                           (["--wanda", "0.5", "--calibrate", "x.bin", "--dtype", "nf4"], ["--wanda", "nf4"]),
                           (["--dtype", "nf4", "--format", "gguf"], ["gguf", "nf4"]),
                           (["--imatrix", "m.gguf"], ["--imatrix", "--calibrate"]),
                           (["--imatrix", "./x", "--calibrate", "x.bin", "--format", "gguf", "--dtype", "q4_K_M"],
                            ["--imatrix x and the model x are two files"]),
                           (["--imatrix", llama / "config.json", "--calibrate", "x.bin", "--format", "gguf", "--dtype",
                             "q4_K_M"], ["config.json: exists already"])):
            self.refused("export", llama, "x", *more, code=USAGE, says=says)

    def test_exports_tokenizers(self):
        for name, pre in (("llama3.json", "llama-bpe"), ("gpt2.json", "gpt-2"), ("qwen2.json", "qwen2")):
            source = json.loads((FIXTURES / name).read_text())
            vocab = dict(source["model"]["vocab"])
            vocab.update({t["content"]: t["id"] for t in source.get("added_tokens", [])})
            size = max(vocab.values()) + 4
            model = self.folder / name
            self.make_model(model, size)
            shutil.copy(FIXTURES / name, model / "tokenizer.json")
            self.run_program("export", model, f"{name}.gguf", "--format", "gguf")
            fields = self.read(f"{name}.gguf")["fields"]
            self.assertEqual(fields["tokenizer.ggml.model"], "gpt2")
            self.assertEqual(fields["tokenizer.ggml.pre"], pre)
            tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
            self.assertEqual(len(tokens), size)
            self.assertEqual({text: i for i, text in enumerate(tokens) if types[i] != 5}, vocab)
            self.assertEqual(tokens[-1], f"[PAD{size - 1}]")
            merges = [m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]]
            self.assertEqual(fields["tokenizer.ggml.merges"], merges)

    def test_fine_tuned_models_keep_the_settings_of_their_tokenizer(self):
        source = json.loads((FIXTURES / "gpt2.json").read_text())
        model = self.folder / "model"
        self.make_model(model, len(source["model"]["vocab"]) + 4)
        shutil.rmtree(self.folder / "run")
        shutil.copy(FIXTURES / "gpt2.json", model / "tokenizer.json")
        settings = {"tokenizer_config.json": '{"chat_template": "x"}', "generation_config.json": '{"eos_token_id": [1, 2]}'}
        for name, text in settings.items():
            (model / name).write_text(text)
        (self.folder / "text.txt").write_text("some text " * 10000)
        self.run_program("tokenize", "--input", "text.txt", "--tokenizer", model, "--output-prefix", "own/text")
        config = json.loads(self.make_config(train_iters=1, schedule={"lr_warmup_iters": 0},
                                             train_data="own/*_train_*.bin", valid_data="own/*_val_*.bin").read_text())
        del config["model"]
        for steps in 1, 2:  # also after a restart
            config["train_iters"] = steps
            (self.folder / "own.json").write_text(json.dumps(config))
            self.run_program("train", "own.json", "--init-from", model)
            self.run_program("export", "run", f"out{steps}")
            for name, text in settings.items():
                self.assertEqual((self.folder / f"out{steps}" / name).read_text(), text)

    def make_model(self, folder, vocab_size):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.run_program("train", self.make_config(train_iters=1, schedule={"lr_warmup_iters": 0},
                                                   model={"vocab_size": vocab_size}))
        self.run_program("export", "run", folder)

    def test_exports_the_byte_vocabulary(self):
        (self.folder / "text.txt").write_text("some text " * 10000)
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text")
        self.run_program("train", self.make_config(train_iters=1, schedule={"lr_warmup_iters": 0}))
        self.run_program("export", "run", "bytes.gguf", "--format", "gguf", "--dtype", "f16")
        fields = self.read("bytes.gguf")["fields"]
        self.assertEqual(fields["tokenizer.ggml.tokens"][97], "a")
        self.assertEqual(fields["tokenizer.ggml.tokens"][32], "\u0120")
        self.assertEqual(fields["tokenizer.ggml.tokens"][256], "<|endoftext|>")
        self.assertEqual(fields["tokenizer.ggml.eos_token_id"], 256)


if __name__ == "__main__":
    unittest.main()
