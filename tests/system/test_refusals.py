"""A run that cannot succeed says so within the first second, names the thing, and exits with the documented code."""
import json
import os
import shutil
import unittest

from harness import ERROR, TINY, USAGE, SystemTest, random_tokens, write_shard


class ConfigTest(SystemTest):
    def refuse(self, code=USAGE, says=(), **changes):
        return self.refused("train", self.make_config(**changes), code=code, says=list(says))

    def test_misspelt_key_names_the_nearest(self):
        self.refuse(says=["learning_rat", "learning_rate"], learning_rat=1e-3)

    def test_unknown_verb_and_flag_are_refused(self):
        self.refused("trian", self.make_config(), code=USAGE, says=[])
        self.refused("train", self.make_config(), "--nonsense", code=USAGE, says=["nonsense"])
        self.refused("train", code=USAGE, says=["config"])

    def test_cuda_is_refused_without_a_gpu(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("this machine may have a GPU")
        self.refuse(says=["device cuda: "], device="cuda")


class DataTest(SystemTest):
    def shard(self):
        return self.folder / "data" / "text_train_000000.bin"

    def refuse(self, code, says):
        self.refused("train", self.make_config(), code=code, says=says)

    def test_pattern_without_files_is_refused(self):
        self.refused("train", self.make_config(train_data="data/none_*.bin"), code=USAGE,
                     says=["train_data", "data/none_*.bin"])

    def test_truncated_shard_is_refused(self):
        self.make_data()
        os.truncate(self.shard(), self.shard().stat().st_size - 100)
        self.refuse(ERROR, [self.shard().name, "truncated"])

    def test_token_outside_the_vocabulary_is_refused(self):
        self.make_data()
        write_shard(self.shard(), random_tokens(3000) + [300] + random_tokens(500))
        self.refuse(ERROR, [self.shard().name, "token 3000 is 300", "257"])

    def test_text_instead_of_tokens_is_refused(self):
        self.make_data()
        self.shard().write_text("In the beginning was the word, and it was no token. " * 100)
        self.refuse(USAGE, [self.shard().name])

    def test_bad_validation_data_is_found_before_training(self):
        self.make_data()
        os.truncate(self.folder / "data" / "text_val_000000.bin", 1500)
        self.refuse(ERROR, ["valid_data", "text_val_000000.bin"])

    def test_verify_lists_every_bad_range(self):
        self.make_data()
        write_shard(self.shard(), [1] * 50 + [700, 701] + [2] * 50)
        done = self.run_program("data", "verify", "data/*.bin", "--vocab-size", "257", code=ERROR)
        self.assertIn("50", done.err)
        self.assertIn("text_train_000000.bin", done.err)


class MemoryTest(SystemTest):
    def test_model_that_cannot_fit_names_need_and_limit(self):
        config = self.make_config(memory_limit_gib=0.5, model={"hidden_size": 2048, "num_hidden_layers": 24,
                                                                "num_attention_heads": 16})
        self.refused("train", config, code=USAGE,
                     says=["memory: the run needs 18", "MiB reserve", "512.0 MiB", "optimizer", "smaller with"])

    def test_model_larger_than_any_machine_is_refused(self):
        config = self.make_config(model={"hidden_size": 65536, "num_hidden_layers": 100, "num_attention_heads": 512})
        self.refused("train", config, code=USAGE, says=["memory", "may be used"])


class ResumeTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config(train_iters=20)
        self.run_program("train", self.config)

    def test_changed_data_is_refused_unless_allowed(self):
        self.make_data(tokens=5000)
        more = ("train", self.config, "--set", "train_iters=30")
        self.refused(*more, code=USAGE, says=["train_data", "fingerprint", "--allow-changed-data"])
        self.assertEqual(self.checkpoints(), ["step-00000010", "step-00000020"])
        self.run_program(*more, "--allow-changed-data")
        self.assertIn("step-00000030", self.checkpoints())

    def test_changed_config_is_refused_naming_old_and_new(self):
        self.refused("train", self.config, "--set", "model.num_hidden_layers=3", "--set", "seed=7", code=USAGE,
                     says=["model.num_hidden_layers: 2 -> 3", "seed: 1234 -> 7"])

    def test_changed_learning_rate_is_reported(self):
        done = self.run_program("train", self.config, "--set", "train_iters=30", "--set", "learning_rate=2e-3")
        self.assertIn("learning_rate", done.err)
        self.assertIn("0.002", done.err)

    def test_missing_checkpoint_folder_is_named(self):
        self.refused("train", self.config, "--load", "run/step-00000015", code=USAGE, says=["run/step-00000015"])


class OverrideTest(SystemTest):
    def test_resolved_config_has_every_override(self):
        config = self.make_config()
        done = self.run_program("config", "validate", config, "--set", "train_iters=7",
                                "--set", "model.num_hidden_layers=5")
        resolved = json.loads(done.out)
        self.assertEqual((resolved["train_iters"], resolved["model"]["num_hidden_layers"]), (7, 5))
        self.assertEqual(resolved["learning_rate"], TINY["learning_rate"])
        again = self.folder / "resolved.json"
        again.write_text(done.out)
        self.assertEqual(json.loads(self.run_program("config", "validate", again).out), resolved)

    def test_validate_prints_the_groups_of_adapters(self):
        config = self.make_config(init_from="base", lora={"rank": 4},
                                  param_groups=[{"match": "*lora_B*", "lr_factor": 16}])
        done = self.run_program("config", "validate", config)
        groups = [line for line in done.err.splitlines() if " parameters: " in line]
        self.assertEqual(len(groups), 2, done.err)
        for line, matrix in zip(groups, ("lora_A", "lora_B")):
            self.assertIn(f"attn.c_proj.{matrix}.weight (2)", line)
            self.assertNotIn("attn.c_proj.weight", line)


if __name__ == "__main__":
    unittest.main()
