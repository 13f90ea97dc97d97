"""The verbs around training: sample, eval, tokenize, data, checkpoint, config, plan, bench, check-backend."""
import json
import math
import os
import subprocess
import unittest

from harness import DONE, ERROR, PROGRAM, ROOT, USAGE, SystemTest

TEXT = "The quick brown fox jumps over the lazy dog. "


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

    def test_same_seed_same_text(self):
        texts = [self.sample("--temperature", "2", "--seed", seed).out for seed in ("5", "5", "6")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_greedy_continues_what_it_learnt(self):
        done = self.sample("--temperature", "0")
        self.assertTrue(done.out.startswith("The quick brown fox"), done.out)
        self.assertEqual(self.sample("--top-k", "1", "--seed", "3").out, done.out)

    def test_prompt_longer_than_the_model_sees(self):
        done = self.run_program("sample", "--checkpoint", "run", "--prompt", "x" * 40, code=USAGE)
        self.assertIn("40 tokens", done.err)
        self.assertIn("32", done.err)

    def test_no_checkpoint(self):
        done = self.run_program("sample", "--checkpoint", "data", "--prompt", "x", code=None)
        self.assertIn(done.code, (ERROR, USAGE))
        self.assertIn("data", done.err)


class EvalTest(TrainedTest):
    def test_eval_agrees_with_the_run(self):
        logged = [r["loss"] for r in self.records() if r["event"] == "step"][-1]
        done = self.run_program("eval", "run/step-00000300", "--json")
        result = json.loads(done.out)
        self.assertLess(result["loss"], 1.0, "repeated text is learnt")
        self.assertAlmostEqual(result["loss"], logged, delta=0.1)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), places=5)
        self.assertEqual(self.run_program("eval", "run/step-00000300", "--json").out, done.out)
        part = json.loads(self.run_program("eval", "run/step-00000300", "--json", "--samples", "4").out)
        self.assertEqual(part["tokens"], 4 * 32)

    def test_eval_of_other_data(self):
        own = json.loads(self.run_program("eval", "run/step-00000300", "--json", "--data", "data/text_train_000000.bin",
                                          "--samples", "64").out)
        self.assertLess(own["loss"], 1.0)
        done = self.run_program("eval", "run/step-00000300", "--data", "nowhere*.bin", code=USAGE)
        self.assertIn("nowhere*.bin", done.err)


class DataTest(TrainedTest):
    def test_tokenize_refuses_to_overwrite(self):
        done = self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text", code=None)
        self.assertIn(done.code, (ERROR, USAGE))
        self.assertIn("data/text_train_000000.bin: exists already", done.err)

    def test_info_has_ngrams_that_the_model_beats(self):
        out = self.run_program("data", "info", "data/text_train_*.bin", "--ngram", "--ngram-valid",
                               "data/text_valid_*.bin").out
        self.assertIn("n-grams: uniform 5.549, unigram", out)
        self.assertIn("quick brown fox", out)

    def test_verify(self):
        self.assertEqual(self.run_program("data", "verify", "data/*.bin").code, DONE)

    def test_token_counts(self):
        self.assertIn(f"{len(TEXT) * 2000} bytes", self.tokenized.out)


class CheckpointTest(TrainedTest):
    def test_list_inspect_verify(self):
        self.assertIn("step-00000300", self.run_program("checkpoint", "list", "run").out)
        self.assertIn("model.safetensors", self.run_program("checkpoint", "inspect", "run/step-00000300").out)
        self.assertIn("every byte", self.run_program("checkpoint", "verify", "run/step-00000300").out)

    def test_folder_without_checkpoints(self):
        self.assertIn("data", self.run_program("checkpoint", "list", "data", code=ERROR).err)


class CommandTest(SystemTest):
    def test_plan_predicts_and_advises(self):
        config = self.make_config(model={"intermediate_size": 100})
        out = self.run_program("plan", config).out
        self.assertIn("predicted step", out)
        self.assertIn("model.intermediate_size 100 is not a multiple of 16: its products cost what 112 costs", out)
        self.assertNotIn("intermediate_size", self.run_program("plan", self.make_config("round.json")).out)

    def test_version_names_revision_and_compiler(self):
        out = self.run_program("--version").out
        for part in ("athanor ", "commit ", "compiler "):
            self.assertIn(part, out)

    def test_help_of_every_verb(self):
        verbs = ["train", "plan", "eval", "sample", "config", "tokenize", "data", "checkpoint", "import", "export",
                 "logits", "report", "scaling", "sweep", "bench", "check-backend"]
        overview = self.run_program("--help").out
        self.assertIn("85", overview, "exit codes are explained")
        for verb in verbs:
            self.assertIn(verb, overview)
            self.assertIn(verb, self.run_program(verb, "--help").out)

    def test_schema_and_defaults_are_json(self):
        schema = json.loads(self.run_program("config", "schema").out)
        self.assertIn("learning_rate", schema["properties"])
        self.assertIn("learning_rate", json.loads(self.run_program("config", "defaults").out))

    def test_reference_is_the_shipped_text(self):
        text = self.run_program("config", "reference").out
        self.assertIn(text.strip(), (ROOT / "configs" / "README.md").read_text(),
                      "configs/README.md is not what `athanor config reference` prints: write it again")

    def test_bench_step_prints_json(self):
        result = json.loads(self.run_program("bench", "step", self.make_config(), "--steps", "3", "--json").out)
        self.assertEqual(len(result["step_ms"]), 3)
        self.assertEqual(result["tokens_per_step"], 4 * 32)
        self.assertGreater(result["tokens_per_second"], 0)

    def test_bench_ops_and_data(self):
        config = self.make_config()
        self.assertIn("gemm", self.run_program("bench", "ops", config, "--steps", "2").out.lower())
        self.assertIn("tokens/s", self.run_program("bench", "data", config).out)

    def test_check_backend_agrees_with_the_reference(self):
        self.run_program("check-backend", self.make_config(), "--steps", "2")

    def test_config_from_standard_input(self):
        config = self.make_config(train_iters=2, lr_warmup_iters=1)
        done = subprocess.run([PROGRAM, "train", "-"], input=config.read_bytes(), cwd=self.folder, capture_output=True)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(self.checkpoints(), ["step-00000002"])


if __name__ == "__main__":
    unittest.main()
