"""The comparisons by what is learned, of optimizers and of precisions: every part of them, in seconds; what was finished is
not run again."""
import json
import os
import subprocess
import sys

from harness import PROGRAM, ROOT, USAGE, SystemTest

SCRIPT = ROOT / "scripts" / "bench" / "learning.py"
CURVES = ROOT / "scripts" / "bench" / "curves.py"
DISTILLATION = ROOT / "scripts" / "bench" / "distillation.py"
MIXTURE = ROOT / "scripts" / "bench" / "mixture.py"


class LearningBenchTest(SystemTest):
    def bench(self, *flags):
        done = subprocess.run([sys.executable, SCRIPT, "--athanor", PROGRAM, "--short", "--work", "kept", "--train-data",
                               "data/*_train_*.bin", "--valid-data", "data/text_val_000000.bin", *flags],
                              cwd=self.folder, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_finished_schedules_are_compared_and_cached(self):
        self.make_data()
        out = self.bench("--optimizers", "muon", "sgd", "--out", "out/found.json", "--table", "out/found.md")
        self.assertIn(" 0 were there", out)
        report = json.loads((self.folder / "out" / "found.json").read_text())
        results = report["results"]
        self.assertEqual(sorted(results), ["adamw", "muon", "sgd"])
        goal = results["adamw"]["loss"]
        for name, found in results.items():
            self.assertEqual(found["losses"], [found["loss"]], "one seed")
            self.assertGreater(found["loss"], 0)
            self.assertEqual("steps_to_rival" in found, name != "adamw" and found["loss"] <= goal, name)
            for steps, loss in found["shorter"].items():
                self.assertEqual(int(steps), 4, "half of the steps")
                self.assertNotEqual(loss, found["loss"])
        lines = (self.folder / "out" / "found.md").read_text().splitlines()
        self.assertEqual(len(lines), 2 + 3)
        losses = [float(line.split("|")[4].split()[0]) for line in lines[2:]]
        self.assertEqual(losses, sorted(losses), "the least loss first")
        kept = sorted((self.folder / "kept").glob("*/result.json"))
        times = [path.stat().st_mtime_ns for path in kept]
        again = self.bench("--optimizers", "muon", "sgd")
        self.assertIn("0 runs made", again)
        self.assertEqual([path.stat().st_mtime_ns for path in kept], times)
        kept[0].unlink()
        self.assertIn("1 runs made", self.bench("--optimizers", "muon", "sgd"))


class CurvesBenchTest(SystemTest):
    def bench(self, *flags, code=0):
        done = subprocess.run([sys.executable, CURVES, "--athanor", PROGRAM, "--short", "--work", "kept", "--train-data",
                               "data/*_train_*.bin", "--valid-data", "data/text_val_000000.bin", *flags],
                              cwd=self.folder, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_each_precision_is_compared_with_bf16_of_the_same_seed(self):
        self.make_data()
        entry = "fp8_tensorwise:optimizer=adamw_8bit,adam.min_8bit_size=1"
        gradients = "bf16:grad_dtype=bf16,micro_batch_size=1"
        entries = ["fp8_tensorwise", "nvfp4", entry, gradients]
        self.bench("--precisions", *entries, "--seeds", "7", "--out", "found.json", "--table", "found.md")
        found = json.loads((self.folder / "found.json").read_text())
        self.assertEqual(sorted(found["precisions"]), sorted(entries))
        with_options = found["precisions"].pop(entry)
        self.assertNotEqual(with_options["losses"], found["precisions"]["fp8_tensorwise"]["losses"])
        self.assertAlmostEqual(with_options["mean_gap"], with_options["losses"][0] / found["bf16"][0] - 1, msg="bf16 without them")
        of_gradients = found["precisions"].pop(gradients)
        self.assertNotEqual(of_gradients["losses"], found["bf16"])
        self.assertAlmostEqual(of_gradients["mean_gap"], of_gradients["losses"][0] / found["bf16"][0] - 1)
        self.assertNotEqual(of_gradients["training_gaps"], [0])
        for name, r in found["precisions"].items():
            self.assertNotEqual(r["losses"], found["bf16"], name)
            self.assertAlmostEqual(r["mean_gap"], r["losses"][0] / found["bf16"][0] - 1, msg=name)
            resolved = json.loads((self.folder / "kept" / "seed-7" / name / "config.resolved.json").read_text())
            self.assertEqual((resolved["precision"], resolved["seed"]), (name, 7))
        self.assertEqual(len((self.folder / "found.md").read_text().splitlines()), 2 + 5)
        kept = sorted((self.folder / "kept").rglob("metrics.jsonl"))
        times = [path.stat().st_mtime_ns for path in kept]
        self.assertEqual(len(times), 5)
        self.bench("--precisions", *entries, "--seeds", "7")
        self.assertEqual([path.stat().st_mtime_ns for path in kept], times, "finished runs are kept")
        self.assertIn("another comparison", self.bench("--rate", "0.1", code=1))
        self.assertIn("PRECISION:KEY=VALUE", self.bench("--precisions", "fp8_tensorwise:optimizer", code=2))
        held_out = self.folder / "kept" / "seed-7" / "nvfp4" / "held_out.json"
        held_out.write_text(json.dumps({"loss": 2 * found["bf16"][0]}))
        self.assertIn("+100.00 %", self.bench("--precisions", "nvfp4", "--seeds", "7", code=1))


class DistillationBenchTest(SystemTest):
    def bench(self, *flags):
        return subprocess.run([sys.executable, DISTILLATION, "--athanor", PROGRAM, "--short", "--work", "kept", "--train-data",
                               "data/*_train_*.bin", "--valid-data", "data/text_val_000000.bin", "--teacher-steps", "8",
                               "--steps", "5", "--seeds", "1", "2", *flags],
                              cwd=self.folder, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))

    def test_compares_students_with_and_without_a_teacher(self):
        self.make_data()
        done = self.bench("--out", "found.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads((self.folder / "found.json").read_text())["rows"]
        self.assertEqual([(r["student"], r["steps"]) for r in rows], [("alone", 5), ("alone", 3), ("kl", 5), ("kl", 3)])
        self.assertTrue(all(len(set(r["losses"])) == 2 for r in rows), "seeds differ")
        self.assertNotEqual(rows[0]["losses"], rows[2]["losses"])
        again = self.bench("--threads", "1")  # another configuration: results of the former are not shown as its own
        self.assertEqual(again.returncode, 1, again.stdout)
        self.assertIn("config.json differs from the configuration that is asked for now; give another --work", again.stderr)


class MixtureBenchTest(SystemTest):
    def test_compares_a_mixture_with_a_dense_model(self):
        self.make_data()
        done = subprocess.run([sys.executable, MIXTURE, "--athanor", PROGRAM, "--short", "--work", "kept", "--train-data",
                               "data/*_train_*.bin", "--valid-data", "data/text_val_000000.bin", "--steps", "3", "--seeds", "1", "2",
                               "--out", "found.json"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads((self.folder / "found.json").read_text())["rows"]
        self.assertEqual([(r["model"], r["steps"]) for r in rows], [("dense", 3), ("mixture", 3)])
        self.assertEqual(len({loss for r in rows for loss in r["losses"]}), 4, "seeds and models differ")


class LadderTest(SystemTest):
    def test_every_rung_resumes_samples_exports_and_runs_on_ranks(self):
        sys.path.insert(0, str(ROOT / "scripts" / "bench"))
        import ladder
        self.run_program("tokenize", "--input", ROOT / "README.md", "--output-prefix", "data/text", "--valid-every", "4")
        base = {"seq_length": 16, "global_batch_size": 4, "micro_batch_size": 2, "device": "cpu", "threads": 1, "precision": "fp32",
                "train_data": "data/*_train_*.bin", "valid_data": "data/*_val_*.bin", "train_iters": 6,
                "schedule": {"lr_warmup_iters": 2}, "learning_rate": 0.004}
        for number, (rung, (model, recipe)) in enumerate(ladder.rungs(2, 64).items()):
            with self.subTest(rung):
                layers = "n_layer" if model["model_type"] == "gpt2" else "num_hidden_layers"
                recipe = {k: v for k, v in recipe.items() if k != "rates"}
                config = self.folder / f"rung{number}.json"
                config.write_text(json.dumps(base | recipe | {"model": model | {"vocab_size": 257, layers: 2}}))

                def train(run, *arguments, before=("train",)):
                    self.run_program(*before, config, "--set", f"save={run}{number}", *arguments)
                    return self.losses(f"{run}{number}")
                whole = train("whole")
                self.assertEqual(len(whole), 6)
                train("parts", "--set", "train_iters=3", "--set", "schedule.lr_decay_iters=6")
                self.assertEqual(train("parts"), whole, "resumed")
                shared = train("ranks", "--set", "zero_stage=2", before=("launch", "--ranks", "2", "train"))
                for step, loss in whole.items():
                    self.assertAlmostEqual(shared[step], loss, delta=1e-5 * loss, msg=f"step {step} on two ranks")
                self.run_program("sample", "--checkpoint", f"whole{number}", "--prompt", "a", "--max-tokens", "4")
                if model["model_type"] == "athanor":
                    self.refused("export", f"whole{number}", f"out{number}", code=USAGE, says=["model_type"])
                else:
                    self.run_program("export", f"whole{number}", f"out{number}")
                    self.run_program("import", f"out{number}", f"back{number}")


class QuickStartGoalTest(SystemTest):
    def test_fewer_steps_are_compared_with_the_curve(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        import quickstart_summary
        curve = {int(n): loss for n, loss in json.loads(quickstart_summary.CURVE.read_text())["loss_by_steps"].items()}
        steps = sorted(curve)
        for n in steps:
            self.assertAlmostEqual(quickstart_summary.goal_of(n), (1 + quickstart_summary.MARGIN) * curve[n], places=9)
        between = quickstart_summary.goal_of((steps[0] + steps[1]) // 2)
        self.assertTrue(quickstart_summary.goal_of(steps[1]) < between < quickstart_summary.goal_of(steps[0]))
        self.assertEqual(quickstart_summary.goal_of(1), quickstart_summary.goal_of(steps[0]))
