"""The verbs around training: sample, eval, tokenize, data, checkpoint, config, bench, check-backend."""
import json
import math
import os
import re
import struct
import subprocess
import unittest

from harness import DONE, ERROR, PROGRAM, PYTHON, ROOT, TINY, USAGE, SystemTest, python_has, read_safetensors

TEXT = "The quick brown fox jumps over the lazy dog. "


def read_ints(path):
    """{name: (shape, values)} of int32 tensors."""
    return {name: (shape, struct.unpack(f"<{len(data) // 4}i", data))
            for name, (_, shape, data) in read_safetensors(path).items()}


def is_fully_relro(path):
    """Whether the program's relocations are all done at start (DF_BIND_NOW, or DF_1_NOW), and read-only afterwards."""
    data = path.read_bytes()
    table, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + i * size) for i in range(count)]
    dynamic = {}
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind == 2:  # PT_DYNAMIC
            dynamic = dict(struct.iter_unpack("<QQ", data[offset:offset + length]))
    bind_now = 24 in dynamic or dynamic.get(30, 0) & 8 or dynamic.get(0x6ffffffb, 0) & 1
    return bool(bind_now) and any(s[0] == 0x6474e552 for s in segments)  # PT_GNU_RELRO


class TrainedTest(SystemTest):
    """A run on repeated text, made once for the class."""

    @classmethod
    def setUpClass(cls):
        cls.maker = SystemTest()
        cls.maker.setUp()
        folder = cls.maker.folder
        (folder / "text.txt").write_text(TEXT * 2000)
        cls.tokenized = cls.maker.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text")
        config = cls.maker.make_config(train_iters=300, learning_rate=3e-3, save_interval=0, global_batch_size=8)
        cls.trained = cls.maker.run_program("train", config)

    @classmethod
    def tearDownClass(cls):
        cls.maker.doCleanups()

    def setUp(self):
        super().setUp()
        os.rmdir(self.folder)
        os.symlink(self.maker.folder, self.folder)  # tests only read what the class made
        self.addCleanup(os.unlink, self.folder)


class SampleTest(TrainedTest):
    def sample(self, *more, code=DONE):
        return self.run_program("sample", "--checkpoint", "run", "--prompt", "The quick", "--max-tokens", "20",
                                "--threads", "1", *more, code=code)

    def test_same_seed_gives_the_same_text(self):
        texts = [self.sample("--temperature", "2", "--seed", seed).out for seed in ("5", "5", "6")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_greedy_sampling_continues_the_training_text(self):
        done = self.sample("--temperature", "0")
        self.assertTrue(done.out.startswith("The quick brown fox"), done.out)
        self.assertEqual(self.sample("--top-k", "1", "--seed", "3").out, done.out)

    def test_prompt_longer_than_the_context_is_refused(self):
        done = self.run_program("sample", "--checkpoint", "run", "--prompt", "x" * 40, code=USAGE)
        self.assertIn("40 tokens", done.err)
        self.assertIn("32", done.err)

    def test_text_longer_than_the_context_is_sampled(self):
        command = ("sample", "--checkpoint", "run", "--prompt", "The quick", "--max-tokens", "200", "--threads", "1", "--json")
        lines = [json.loads(self.run_program(*command, "--temperature", "0").out) for _ in range(2)]
        self.assertEqual(lines[0], lines[1])
        self.assertEqual((lines[0]["tokens"], lines[0]["stopped_by"]), (200, "length"))
        self.assertIn("jumps over the lazy dog.", lines[0]["text"][-100:], "it goes on as it began")

    def test_missing_checkpoint_is_named(self):
        for verb in (("sample", "--checkpoint"), ("eval",), ("checkpoint", "verify"), ("checkpoint", "inspect")):
            done = self.run_program(*verb, "run/step-00001000", code=USAGE)
            self.assertIn("run/step-00001000: there is no such folder; the newest checkpoint in run is step-00000300", done.err)
        self.assertEqual(self.run_program("eval", "run", "--samples", "2", "--json").out,
                         self.run_program("eval", "run/step-00000300", "--samples", "2", "--json").out)

    def test_prompts_of_a_file_are_sampled_as_json(self):
        (self.maker.folder / "prompts.txt").write_text("The quick\nbrown fox\n")
        (self.maker.folder / "prompts.jsonl").write_text('{"prompt": "The quick"}\n\n{"prompt": "brown fox"}\n')
        common = ("sample", "--checkpoint", "run", "--max-tokens", "12", "--threads", "1", "--seed", "4", "--json")
        lines = [json.loads(x) for x in self.run_program(*common, "--prompts", "prompts.txt").out.splitlines()]
        self.assertEqual([x["prompt"] for x in lines], ["The quick", "brown fox"])
        self.assertEqual([x["seed"] for x in lines], [4, 5])
        self.assertEqual([x["stopped_by"] for x in lines], ["length", "length"])
        self.assertEqual([x["tokens"] for x in lines], [12, 12])
        again = [json.loads(x) for x in self.run_program(*common, "--prompts", "prompts.jsonl").out.splitlines()]
        self.assertEqual(again, lines)
        (self.maker.folder / "marked.txt").write_text("The quick\nbrown fox\n", encoding="utf-8-sig")
        marked = self.run_program(*common, "--prompts", "marked.txt")
        self.assertEqual([json.loads(x) for x in marked.out.splitlines()], lines, "a byte order mark is no text")
        # Each of them is what it is alone, with its own seed.
        alone = self.run_program("sample", "--checkpoint", "run", "--max-tokens", "12", "--threads", "1", "--seed", "5",
                                 "--json", "--prompt", "brown fox")
        self.assertEqual(json.loads(alone.out), lines[1])

    def test_stop_text_ends_sampling(self):
        done = self.sample("--temperature", "0", "--stop", "fox", "--json")
        result = json.loads(done.out)
        self.assertEqual((result["text"], result["stopped_by"]), (" brown ", "stop"))
        self.assertEqual(self.sample("--temperature", "0", "--stop", "fox").out, "The quick brown \n")

    def test_invalid_prompt_files_are_refused(self):
        for name, content, says in (("empty.txt", "", "no prompt"),
                                    ("bad.jsonl", '{"prompt": "x"}\n{"x": 1}\n', "line 2")):
            (self.maker.folder / name).write_text(content)
            done = self.run_program("sample", "--checkpoint", "run", "--prompts", name, code=None)
            self.assertIn(done.code, (ERROR, USAGE))
            self.assertIn(name, done.err)
            self.assertIn(says, done.err)

    def test_sampling_from_a_folder_without_checkpoints_is_refused(self):
        done = self.run_program("sample", "--checkpoint", "data", "--prompt", "x", code=None)
        self.assertIn(done.code, (ERROR, USAGE))
        self.assertIn("data", done.err)


class EvalTest(TrainedTest):
    def test_eval_matches_the_run(self):
        logged = [r["loss"] for r in self.records() if r["event"] == "step"][-1]
        done = self.run_program("eval", "run/step-00000300", "--json")
        result = json.loads(done.out)
        self.assertLess(result["loss"], 1.0, "repeated text is learnt")
        self.assertAlmostEqual(result["loss"], logged, delta=0.1)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), places=5)
        self.assertEqual(self.run_program("eval", "run/step-00000300", "--json").out, done.out)
        part = json.loads(self.run_program("eval", "run/step-00000300", "--json", "--samples", "4").out)
        self.assertEqual(part["tokens"], 4 * 32)

    def test_bits_per_byte_equal_bits_per_token_for_bytes(self):
        done = self.run_program("eval", "run/step-00000300", "--json", "--data", "data/text_train_000000.bin")
        result = json.loads(done.out)
        # Ends of documents are tokens without bytes.
        self.assertAlmostEqual(result["bits_per_byte"] * result["bytes"], result["bits_per_token"] * result["tokens"],
                               places=5)
        self.assertLessEqual(result["tokens"] - result["bytes"], 1)

    def test_eval_scores_choices(self):
        question = {"context": "The quick brown", "choices": [" fox jumps", " zzz qqqq"], "label": 0}
        (self.maker.folder / "choices.jsonl").write_text((json.dumps(question) + "\n") * 3)
        done = self.run_program("eval", "run/step-00000300", "--json", "--choices", "choices.jsonl", "--scores",
                                "scores.jsonl")
        result = json.loads(done.out)["choices"]
        self.assertEqual((result["questions"], result["accuracy"], result["accuracy_per_token"]), (3, 1, 1))
        scores = [json.loads(x) for x in (self.maker.folder / "scores.jsonl").read_text().splitlines()]
        self.assertEqual(scores[0], scores[2])
        self.assertGreater(scores[0]["log_probability"][0], scores[0]["log_probability"][1])
        (self.maker.folder / "bad.jsonl").write_text('{"context": "x"}\n')
        done = self.run_program("eval", "run/step-00000300", "--choices", "bad.jsonl", code=USAGE)
        self.assertIn("bad.jsonl: line 1", done.err)
        done = self.run_program("eval", "run/step-00000300", "--scores", "none.jsonl", code=USAGE)
        self.assertIn("give --choices", done.err)

    def test_choice_scores_match_transformers(self):
        if not python_has("torch", "transformers", "tokenizers"):
            self.skipTest("ATHANOR_PYTHON lacks torch, transformers or tokenizers")
        done = subprocess.run([PYTHON, ROOT / "scripts" / "check_choices.py", "--program", self.program],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_eval_accepts_other_data(self):
        own = json.loads(self.run_program("eval", "run/step-00000300", "--json", "--data", "data/text_train_000000.bin",
                                          "--samples", "64").out)
        self.assertLess(own["loss"], 1.0)
        done = self.run_program("eval", "run/step-00000300", "--data", "nowhere*.bin", code=USAGE)
        self.assertIn("nowhere*.bin", done.err)


class DataTest(TrainedTest):
    def test_model_beats_the_ngrams_of_info(self):
        out = self.run_program("data", "info", "data/text_train_*.bin", "--ngram", "--ngram-valid",
                               "data/text_val_*.bin").out
        self.assertIn("n-grams: uniform 5.549, unigram", out)
        self.assertIn("quick brown fox", out)

    def test_verify_accepts_valid_data(self):
        self.assertEqual(self.run_program("data", "verify", "data/*.bin").code, DONE)

    def test_info_counts_documents(self):
        out = self.run_program("data", "info", "data/text_train_*.bin").out
        self.assertIn("documents: 1 (by token 256)", out)

    def test_megatron_shards_train_like_other_formats(self):
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "megatron/text", "--output-format",
                         "megatron")
        self.run_program("data", "verify", "megatron/*.bin")
        common = dict(train_iters=3, save_interval=0, schedule={"lr_warmup_iters": 0})
        losses = []
        for folder in ("data", "megatron"):
            config = self.maker.make_config(f"{folder}.json", train_data=f"{folder}/text_train_*.bin",
                                            valid_data=f"{folder}/text_val_*.bin", save=f"run-{folder}", **common)
            self.run_program("train", config)
            losses.append(self.losses(f"run-{folder}"))
        self.assertEqual(losses[0], losses[1])

    def test_data_samples_match_the_rows_of_training(self):
        config = self.maker.make_config("samples.json", global_batch_size=4, micro_batch_size=2)
        self.run_program("data", "dump", config, "all.safetensors", "--steps", "6")
        self.run_program("data", "dump", config, "late.safetensors", "--first", "4", "--steps", "2")
        everything, late = (read_ints(self.maker.folder / f"{n}.safetensors") for n in ("all", "late"))
        shape, tokens = everything["tokens"]
        _, targets = everything["targets"]
        self.assertEqual(shape, [6, 4, 32])
        self.assertEqual(late["tokens"], ([2, 4, 32], tokens[4 * 128:]))
        shard = (self.maker.folder / "data" / "text_train_000000.bin").read_bytes()[1024:]
        words = struct.unpack(f"<{len(shard) // 2}H", shard)
        windows = {words[i:i + 33] for i in range(0, len(words) - 32, 32)}
        for row in range(0, len(tokens), 32):
            self.assertIn(tokens[row:row + 32] + targets[row + 31:row + 32], windows)
            self.assertEqual(tokens[row + 1:row + 32], targets[row:row + 31])
        done = self.run_program("data", "dump", config, "data/text_train_000000.bin", code=USAGE)
        self.assertIn("exists already", done.err)
        done = self.run_program("data", "dump", config, "x", "--steps", str(10**12), code=USAGE)
        self.assertIn("--first", done.err)
        self.run_program("data", "dump", config, "packed.safetensors", "--steps", "6", "--set",
                         "documents.reset_attention_mask=true", "--set", "documents.reset_position_ids=true")
        packed = read_ints(self.maker.folder / "packed.safetensors")
        self.assertEqual(packed["tokens"], everything["tokens"])
        (_, _, most, two), documents = packed["documents"]
        positions = packed["positions"][1]
        self.assertEqual(two, 2)
        for row in range(24):
            lengths = []
            for at in range(row * most * 2, (row + 1) * most * 2, 2):
                begin, length = documents[at:at + 2]
                lengths.append(length)
                self.assertEqual(positions[row * 32 + begin:row * 32 + begin + length], tuple(range(length)))
            self.assertEqual(sum(lengths), 32)
        self.run_program("data", "dump", config, "chunks.safetensors", "--steps", "5", "--set", "curriculum.total_curriculum_step=4",
                         "--set", "curriculum.min_difficulty=8")
        chunks = read_ints(self.maker.folder / "chunks.safetensors")
        self.assertEqual(chunks["tokens"], ([5, 4, 32], tokens[:5 * 128]))
        self.assertEqual(chunks["targets"], ([5, 4, 32], targets[:5 * 128]))
        self.assertEqual(chunks["documents"][0], [5, 4, 4, 2])
        lengths = (8, 16, 24, 32, 32)  # 8 + 24 k / 4 in multiples of 8
        self.assertEqual(chunks["positions"][1], tuple(t % n for n in lengths for _ in range(4) for t in range(32)))

    def test_tokenize_reports_the_number_of_bytes(self):
        self.assertIn(f"{len(TEXT) * 2000} bytes", self.tokenized.out)


class CheckpointTest(TrainedTest):
    def test_list_inspect_and_verify_report_checkpoints(self):
        self.assertIn("step-00000300", self.run_program("checkpoint", "list", "run").out)
        self.assertIn("model.safetensors", self.run_program("checkpoint", "inspect", "run/step-00000300").out)
        self.assertIn("all checksums agree", self.run_program("checkpoint", "verify", "run/step-00000300").out)
        self.assertIn("such as run/step-00000300", self.run_program("checkpoint", "verify", "run", code=USAGE).err)

    def test_listing_a_folder_without_checkpoints_is_an_error(self):
        self.assertIn("data", self.run_program("checkpoint", "list", "data", code=ERROR).err)


class CommandTest(SystemTest):
    def test_version_names_revision_and_compiler(self):
        out = self.run_program("--version").out
        for part in ("athanor ", "commit ", "compiler "):
            self.assertIn(part, out)

    def test_every_verb_prints_help(self):
        verbs = ["train", "plan", "eval", "sample", "config", "tokenize", "data", "checkpoint", "import", "export",
                 "logits", "report", "scaling", "sweep", "bench", "check-backend"]
        overview = self.run_program("--help").out
        self.assertIn("85", overview, "exit codes are explained")
        for verb in verbs:
            self.assertIn(verb, overview)
            self.assertIn(verb, self.run_program(verb, "--help").out)

    def test_help_of_all_has_the_flags_of_nested_verbs(self):
        text = self.run_program("--help-all").out
        for verb, flag in (("train", "--init-from"), ("data info", "--ngram-valid"), ("checkpoint list", "--verify"),
                           ("bench comm", "--min-bytes")):
            self.assertIn(flag, text.partition(f"\n{verb}\n")[2].partition("\n\n")[0], verb)

    def test_schema_and_defaults_are_json(self):
        schema = json.loads(self.run_program("config", "schema").out)
        self.assertIn("learning_rate", [key for section in schema["allOf"] for key in section["properties"]])
        self.assertIn("learning_rate", json.loads(self.run_program("config", "defaults").out))

    def test_reference_matches_the_shipped_text(self):
        text = self.run_program("config", "reference").out
        self.assertIn(text.strip(), (ROOT / "configs" / "README.md").read_text(),
                      "configs/README.md is not what `athanor config reference` prints: write it again")

    def test_bench_step_prints_json(self):
        result = json.loads(self.run_program("bench", "step", self.make_config(), "--steps", "3", "--json").out)
        self.assertEqual(len(result["step_ms"]), 3)
        self.assertEqual(result["tokens_per_step"], 4 * 32)
        self.assertGreater(result["tokens_per_second"], 0)
        for flag, least in (("--steps", 1), ("--warmup", 0)):
            done = self.run_program("bench", "step", self.make_config(), flag, str(least - 1), code=USAGE)
            self.assertIn(f"expected {least} to ", done.err)

    def test_bench_step_reports_every_op(self):
        config = self.make_config(model={"hidden_size": 256, "max_position_embeddings": 128}, seq_length=128)
        for _ in range(20):  # other work may come between two ops
            result = json.loads(self.run_program("bench", "step", config, "--steps", "5", "--json", "--ops").out)
            if result["explained"] > 0.97:
                break
        lost = [op["ms"] - op["limit_ms"] for op in result["ops"]]
        self.assertEqual(lost, sorted(lost, reverse=True))
        self.assertAlmostEqual(sum(op["ms"] for op in result["ops"]), result["explained"] * result["profiled_ms"],
                               delta=1e-6)
        self.assertGreater(result["explained"], 0.97)
        self.assertLessEqual(result["explained"], 1)
        self.assertLess(result["host_cores"], 1.5, "one thread was asked for")
        self.assertGreater(result["ceilings"]["flops"], 1e6)
        text = self.run_program("bench", "step", config, "--steps", "2").out
        self.assertRegex(text, r"ops take [\d.e+-]+ ms, [\d.]+ % of the step's [\d.e+-]+ ms\nbetween ops: [\d.e+-]+ ms")

    def test_bench_decode_prints_json(self):
        result = json.loads(self.run_program("bench", "decode", self.make_config(), "--context", "16", "--rounds", "2",
                                             "--json").out)
        self.assertGreater(result["tokens_per_second"], 0)
        self.assertGreater(result["share"], 0)

    def test_bench_ops_and_data_print_rates(self):
        config = self.make_config()
        text = self.run_program("bench", "ops", config, "--steps", "2").out
        rows = re.findall(r"^(gemm \d+x\d+x\d+) .*% +([\d.]+)(\w?) +[\d.]+\w? +[\d.]+%", text, re.M)
        self.assertGreater(len(rows), 8)
        self.assertIn("tokens/s", self.run_program("bench", "data", config).out)

    def test_bench_gemms_times_each_gemm_once(self):
        config = self.make_config()
        found = json.loads(self.run_program("bench", "gemm", config, "--json").out)
        self.assertGreater(found["rates"]["flops"], 1e6)
        names = [p["gemm"] for p in found["gemms"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(names), 8)
        self.assertAlmostEqual(found["step_ms"], sum(p["launches"] * p["us"] for p in found["gemms"]) / 1e3, places=6)
        self.assertEqual(found["grouped_gemms"], [])
        for p in found["gemms"]:
            m, n, k = p["shape"]
            self.assertAlmostEqual(p["flops"], 2 * m * n * k / (p["us"] * 1e-6), delta=1e-6 * p["flops"])
            self.assertEqual(p["launches"] % 2, 0, "two micro-batches")
            self.assertEqual(p["method"], {"words": "the backend's own", "in_parts": False})
        text = self.run_program("bench", "gemm", config, "--rates", "1e18", "1e15").out
        self.assertIn("rate of a large GEMM ", text)
        self.assertIn("GEMMs of a step: ", text)

    def test_bench_gemms_compares_grouped_gemms_with_dense_ones(self):
        config = self.make_config(model={"model_type": "mixtral", "intermediate_size": 64, "num_local_experts": 4,
                                         "num_experts_per_tok": 2})
        found = json.loads(self.run_program("bench", "gemm", config, "--json").out)
        model, rows = TINY["model"], 2 * TINY["micro_batch_size"] * TINY["model"]["max_position_embeddings"]
        width = model["hidden_size"]
        self.assertEqual(
            sorted((g["role"], *g["matrix"]) for g in found["grouped_gemms"]),
            sorted((role, *matrix) for role in ("forward", "input gradient", "weight gradient")
                   for matrix in ((128, width), (width, 64))))
        for g in found["grouped_gemms"]:
            self.assertEqual((g["rows"], g["experts"]), (rows, 4))
            self.assertEqual(g["launches"], 2 * model["num_hidden_layers"], "two micro-batches")
            self.assertAlmostEqual(g["flops"] * g["us"] * 1e-6, 2 * rows * g["matrix"][0] * g["matrix"][1], delta=1)
            self.assertGreater(g["dense_us"], 0)
        self.assertIn("with even rows for all experts", self.run_program("bench", "gemm", config).out)

    def test_bench_gemms_refuses_invalid_rates(self):
        for flags in (["--rates", "1"], ["--rates", "0", "1"]):
            self.run_program("bench", "gemm", self.make_config(), *flags, code=USAGE)

    def test_program_has_full_relro(self):
        self.assertTrue(is_fully_relro(PROGRAM))

    def test_check_backend_agrees_with_the_reference(self):
        self.run_program("check-backend", self.make_config(), "--steps", "2")

    def test_check_backend_agrees_with_the_reference_on_a_teacher_that_resembles_the_model(self):
        self.run_program("train", self.make_config(train_iters=1, schedule={"lr_warmup_iters": 0}, save="teacher"))
        for loss in ("kl", "reverse_kl"):
            config = self.make_config(distillation={"teacher": "teacher", "loss": loss})
            done = self.run_program("check-backend", config, "--steps", "1")
            self.assertIn("distilled_cross_entropy", done.out)

    def test_config_is_read_from_standard_input(self):
        config = self.make_config(train_iters=2, schedule={"lr_warmup_iters": 1})
        done = subprocess.run([PROGRAM, "train", "-"], input=config.read_bytes(), cwd=self.folder, capture_output=True)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(self.checkpoints(), ["step-00000002"])


if __name__ == "__main__":
    unittest.main()
