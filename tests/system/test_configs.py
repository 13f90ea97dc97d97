"""Every shipped configuration trains: the file itself, shrunk with --set, on synthetic shards, and resumes."""
import json
import re
import subprocess
import sys
import unittest

from harness import DONE, REQUEUE, ROOT, USAGE, SystemTest

SHRINK = {  # of every model; families keep what makes them different: head shape, rope, biases, tied heads
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SHRINK_LLAMA = {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96}


# Options that are read as something else: what validate.cc makes of them, or what src/config computes from them.
READ_AS = {"mup_base_width": r"\.mup_width\b", "min_difficulty": r"\bchunk_length_at\(",
           "difficulty_step": r"\bchunk_length_at\(", "multi_token_prediction": r"\bahead_weights_at\("}


class OptionsTest(unittest.TestCase):
    def test_every_option_is_read_by_the_program(self):
        source = ROOT / "src"
        tables = [source / "config" / name for name in ("config_fields.cc", "optimizer_fields.cc", "loss_fields.cc")]
        fields = set(re.findall(r"&Config::(\w+)", "".join(table.read_text() for table in tables)))
        self.assertGreater(len(fields), 80)
        code = "\n".join(p.read_text() for p in source.rglob("*.cc") if p.parent.name != "config")
        unread = [f for f in sorted(fields) if not re.search(READ_AS.get(f, rf"\.{f}\b"), code)]
        self.assertEqual(unread, [], "options without effect")


class ShippedConfigTest(SystemTest):
    def overrides(self, config):
        model = dict(SHRINK)
        if config["model"]["model_type"] != "gpt2":
            model.update({k: v for k, v in SHRINK_LLAMA.items() if k in config["model"]})
        if "layer_types" in config["model"]:  # of the two layers that are left; the window is shorter than a sequence
            model.update({"sliding_window": 9, "layer_types": '["sliding_attention", "full_attention"]'})
        if "skip_from" in config["model"]:
            model["skip_from"] = "[null, 0, null]"
        if "value_embeddings" in config["model"]:  # a table that layers share
            model["value_embeddings"] = "[0, 0]"
        run = {"train_data": "data/text_train_*.bin", "valid_data": "data/text_val_*.bin", "save": "run",
               "train_iters": 2, "global_batch_size": 2, "seq_length": 32, "eval_interval": 2,
               "eval_iters": 1, "schedule.lr_warmup_iters": 1, "threads": 1, "logging.peak_tflops": 0.1, "save_interval": 1}
        if "lr_wsd_decay_iters" in config["schedule"]:
            run["schedule.lr_wsd_decay_iters"] = 1
        run.update({f"model.{k}": v for k, v in model.items()})
        return [part for key, value in run.items() for part in ("--set", f"{key}={value}")]

    def check(self, path):
        config = json.loads(path.read_text())
        self.make_data(vocab_size=config["model"]["vocab_size"], tokens=2000)
        sets = self.overrides(config)
        self.assertIn("parameters", self.run_program("plan", path, *sets).out)
        self.run_program("train", path, *sets, "--set", "exit_duration_in_mins=1e-7", code=REQUEUE)
        self.assertEqual(self.checkpoints(), ["step-00000001"])
        self.run_program("train", path, *sets)
        losses = self.losses()
        self.assertEqual(sorted(losses), [1, 2])
        self.assertTrue(all(loss is not None and 0 < loss < 20 for loss in losses.values()), losses)
        self.assertEqual([r["step"] for r in self.records() if r["event"] == "eval"], [2])
        resolved = json.loads((self.folder / "run" / "config.resolved.json").read_text())
        self.assertEqual(resolved["precision"], config["precision"])
        exported = json.loads((self.folder / "run" / "step-00000002" / "config.json").read_text())
        self.assertEqual(exported["vocab_size"], config["model"]["vocab_size"])


    def check_images(self, path):
        """From image files to an exported classifier: the configuration at half its depth, on images of two classes."""
        sizes = {"images": (3, [40, 28, 28]), "labels": (1, [40])}
        for split, first in (("train", 0), ("t10k", 40)):
            values = {"images": b"".join(bytes([200 * (i % 2), i % 50] * 392) for i in range(first, first + 40)),
                      "labels": bytes(i % 2 for i in range(40))}
            for kind, (rank, shape) in sizes.items():
                header = bytes([0, 0, 8, rank]) + b"".join(n.to_bytes(4, "big") for n in shape)
                (self.folder / f"{split}-{kind}-idx{rank}-ubyte").write_bytes(header + values[kind])
        prefix = "data/fashion-mnist/images"
        self.run_program("data", "images", "train-images-idx3-ubyte", "--output-prefix", prefix)
        self.run_program("data", "images", "t10k-images-idx3-ubyte", "--output-prefix", prefix, "--split", "val")
        run = {"save": "run", "train_iters": 30, "global_batch_size": 8, "eval_interval": 30, "eval_iters": 5,
               "model.num_hidden_layers": 3, "schedule.lr_warmup_iters": 1, "threads": 1, "logging.peak_tflops": 0.1}
        sets = [part for key, value in run.items() for part in ("--set", f"{key}={value}")]
        self.assertIn("parameters", self.run_program("plan", path, *sets).out)
        self.run_program("train", path, *sets, "--set", "exit_duration_in_mins=1e-7", code=REQUEUE)
        self.run_program("train", path, *sets)
        self.assertEqual([r["accuracy"] for r in self.records() if r["event"] == "eval"], [1.0])
        found = json.loads(self.run_program("eval", "run", "--json").out)
        self.assertEqual((found["accuracy"], found["images"]), (1.0, 40))
        self.assertIn("tokens/s", self.run_program("bench", "data", path, *sets).out)
        sizes = []  # of activations of the same weights on other images
        for split in ("train", "val"):
            self.run_program("sweep", path, *sets[2:], "--set", f"train_data={prefix}_{split}_*.bin", "--widths", "32,64",
                             "--set", "learning_rate=1e-30", "--coordinate-check", "--steps", "1", "--limit", "1e9",
                             "-o", f"sweep-{split}")
            text = (self.folder / f"sweep-{split}" / "coordinates.json").read_text()
            sizes.append(text.replace(f"_{split}_*.bin", ""))
        self.assertNotEqual(*sizes)
        self.run_program("export", "run", "out")
        self.assertEqual(json.loads((self.folder / "out" / "config.json").read_text())["image_size"], 28)
        self.assertEqual(json.loads((self.folder / "out" / "preprocessor_config.json").read_text())["image_mean"], [0.286])
        of_folder = json.loads(self.run_program("eval", "out", "--data", prefix + "_val_*.bin", "--json").out)
        self.assertAlmostEqual(of_folder["loss"], found["loss"], delta=1e-3)
        for verb in (["sample", "--checkpoint", "run", "--prompt", "a"], ["export", "run", "x.gguf", "--format", "gguf"]):
            self.assertIn("vit", self.run_program(*verb, code=USAGE).err)

    def check_recipe(self, path):
        """Beyond check(): ranks are the same run, the checkpoint evaluates and samples, and is exported or refused."""
        self.check(path)
        (self.folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "bytes/text")
        sets = [*self.overrides(json.loads(path.read_text())), "--set", "precision=fp32"]
        of_bytes = {"train_data": "bytes/text_*.bin", "valid_data": "bytes/text_*.bin",
                    "model.vocab_size": 257, "model.bos_token_id": 256, "model.eos_token_id": 256}
        if "documents" in json.loads(path.read_text()):
            of_bytes["documents.eod_token_id"] = 256
        for key, value in of_bytes.items():
            sets += ["--set", f"{key}={value}"]
        self.run_program("train", path, *sets, "--set", "save=one")
        self.run_program("launch", "--ranks", "2", "train", path, *sets, "--set", "save=two", "--set", "zero_stage=2")
        for step, loss in self.losses("one").items():
            self.assertAlmostEqual(self.losses("two")[step], loss, delta=1e-4 * loss)
        self.run_program("eval", "one", "--data", "bytes/text_*.bin")
        self.run_program("sample", "--checkpoint", "one", "--prompt", "a", "--max-tokens", "5")
        if json.loads(path.read_text())["model"]["model_type"] != "athanor":
            self.run_program("export", "one", "out", "--format", "hf")
            return
        for form in ("hf", "gguf"):
            error = self.run_program("export", "one", "out", "--format", form, code=USAGE).err
            self.assertIn("model_type is athanor", error)
            self.assertIn('model.hidden_act "relu2"', error)


def add_tests():
    for folder, check in (("configs", ShippedConfigTest.check), ("configs/recipes", ShippedConfigTest.check_recipe)):
        for path in sorted((ROOT / folder).glob("*.json")):
            def test(self, path=path, check=check):
                images = json.loads(path.read_text())["model"]["model_type"] == "vit"
                (ShippedConfigTest.check_images if images else check)(self, path)
            setattr(ShippedConfigTest, "test_" + path.stem.replace("-", "_").replace(".", "_"), test)


class RecipeScriptTest(unittest.TestCase):
    def test_recipes_match_the_generator_script(self):
        subprocess.run([sys.executable, ROOT / "scripts" / "make_recipes.py", "--check"], check=True)


add_tests()


class PlanTest(SystemTest):
    """`plan` of the shipped sizes, unshrunk: no data is needed and no memory is taken."""

    def test_plan_reports_the_memory_of_a_full_size_run(self):
        done = self.run_program("plan", ROOT / "configs" / "gpt2-124m.json", "--set", "micro_batch_size=1",
                                "--set", "memory_limit_gib=1000", code=DONE)
        self.assertIn("124M", done.out)
        self.assertIn("optimizer", done.out)
        self.assertIn("9.89G", done.out)  # tokens: 18865 steps of 512 x 1024

    def test_llama_8b_fits_one_gpu_of_141_gb(self):
        limit = f"memory_limit_gib={141e9 / 2**30}"
        done = self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--set", limit, code=DONE)
        self.assertIn("8.03G", done.out)
        whole = ["--set", "master_weights=fp32", "--set", "adam.exp_avg_dtype=fp32", "--set", "adam.exp_avg_sq_dtype=fp32"]
        self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--set", limit, *whole, code=USAGE)

    def test_plan_reports_a_run_that_cannot_fit(self):
        done = self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--set", "memory_limit_gib=4",
                                code=USAGE)
        self.assertIn("may be used", done.err)


if __name__ == "__main__":
    unittest.main()
