"""The scripts for machines with a GPU, as far as a machine without one can run them: verify.sh and compare.sh."""
import argparse
import importlib
import json
import math
import subprocess
import sys
import unittest
import unittest.mock

from harness import PROGRAM, PYTHON, ROOT, SystemTest, python_has

VERIFY, PARTS = ROOT / "scripts" / "gpu" / "verify.py", ROOT / "scripts" / "gpu" / "parts.py"
COMPARE = ROOT / "scripts" / "bench" / "gpu" / "compare.py"
HAS_TORCH = python_has("torch")


def module(path):
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.stem)
    finally:
        sys.path.pop(0)


class VerifyTest(SystemTest):
    def verify(self, *arguments, code):
        if PROGRAM.parent != ROOT / "build":
            self.skipTest("verify.py looks for build/athanor")
        self.make_data()
        command = [sys.executable, str(VERIFY), "--out", str(self.folder / "out"), "--data", str(self.folder / "data"),
                   "--minutes", "120", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.report = self.folder / "out" / "verify.json"
        self.assertLessEqual({p.name for p in self.report.parent.iterdir()}, {"verify.json", "verify.log"},
                             "few files, flat: what comes back from the machine")
        return json.loads(self.report.read_text())["parts"], done.stdout

    def test_parts_for_any_device_pass_on_the_cpu(self):
        names = ["environment", "backend", "resume", "memory", "early_starts"]
        parts, table = self.verify("--device", "cpu", "--parts", ",".join(names), code=0)
        self.assertEqual({p: e["status"] for p, e in parts.items()}, dict.fromkeys(names, "passed"))
        self.assertIn("passed", table)
        self.assertIn("not measured here", parts["memory"]["found"]["remark"])
        self.assertGreater(parts["early_starts"]["found"]["waiting_over_early"], 0)

    @unittest.skipUnless((ROOT / "build" / "tests" / "test_train").exists(), "the tests' programs are not built")
    def test_cpu_test_programs_replace_gpu_ones_on_the_cpu(self):
        names = ("ops", "parity", "laws", "ranks")
        parts, _ = self.verify("--device", "cpu", "--parts", ",".join(names), code=0)
        for part, least in zip(names, (5, 5, 5, 2)):
            self.assertEqual((parts[part]["status"], parts[part]["device"]), ("passed", "cpu"))
            self.assertGreaterEqual(parts[part]["found"]["passed"], least)

    @unittest.skipUnless((ROOT / "build" / "tests" / "test_cuda_emulated").exists(), "the emulated GPU is not built")
    def test_three_calls_pass_on_the_emulated_gpu(self):
        calls = module(PARTS).CALLS
        for number, names in calls.items():
            self.verify("--device", "emulated", "--call", str(number), code=3 if number == 3 else 0)
            parts = json.loads(self.report.read_text())["parts"]
            self.assertLessEqual(set(names), parts.keys(), "each part is in the report as it ends")
        for part, entry in parts.items():
            expected = "not run" if part in ("sanitizer", "speed") else "passed"
            self.assertEqual((entry["status"], entry["device"]), (expected, "emulated"), f"{part}: {entry}")
        rows = parts["bench_attention"]["found"]["rows"]
        self.assertEqual({(row["head_dim"], row["mask"]) for row in rows},
                         {(d, m) for d in (64, 128) for m in ("causal", "documents", "window", "sparse")})
        for row in rows:
            self.assertTrue(row["own"]["forward"]["repeated"] and row["own"]["backward"]["repeated"])
            self.assertEqual("why_not" in row["cudnn"], row["mask"] == "sparse", row)
        self.assertEqual(parts["bench_step"]["found"].keys(), {"gpt2-124m", "llama-8b"})
        for found in parts["bench_step"]["found"].values():
            self.assertRegex(found["attention"], "^attention: ")
        for part, test in (("attention", "DenseSequences"), ("attention_packed", "PackedDocuments"),
                           ("attention_packed", "SlidingWindows")):
            recorded = parts[part]["found"]["recorded"][f"AttentionPair.MatchesCudnnOn{test}"]
            self.assertGreater(int(recorded["compared"]), 0)
            self.assertIn("left_to_own_kernels", recorded)

    @unittest.skipUnless(HAS_TORCH, "ATHANOR_PYTHON lacks torch")
    def test_loss_curves_follow_pytorch(self):
        parts, _ = self.verify("--device", "cpu", "--parts", "curves_gpt2,curves_llama", code=0)
        for part in ("curves_gpt2", "curves_llama"):
            self.assertEqual(parts[part]["status"], "passed", parts[part])
            found = parts[part]["found"]
            self.assertEqual(found["steps"], 20)
            self.assertLess(found["mean_deviation"], found["mean_spread_of_torch"])
        self.assertLess(parts["curves_gpt2"]["found"]["largest_deviation"], 1e-3, "both in fp32")

    def test_parts_that_did_not_run_are_not_counted_as_passed(self):
        parts, table = self.verify("--device", "cpu", "--parts", "kernels,sanitizer,attention", code=3)
        for part in ("kernels", "sanitizer", "attention"):
            self.assertEqual(parts[part]["status"], "not run")
            self.assertTrue(parts[part]["why"])
        self.assertIn("needs a GPU", table)
        self.assertIn("0 passed, 0 FAILED, 20 not run of 20 parts on cpu", table)

    def test_call_without_enough_time_leaves_the_rest_to_the_next(self):
        parts, _ = self.verify("--device", "cpu", "--parts", "environment", code=0)
        before = parts["environment"]
        parts, _ = self.verify("--device", "cpu", "--parts", "environment,memory", "--call-minutes", "0.1", code=3)
        self.assertEqual(parts["environment"], before, "what did run stays")
        self.assertIn("of the call, about 60 are needed", parts["memory"]["why"])
        others = {name: before for name in module(VERIFY).PARTS if name != "memory"}
        self.report.write_text(json.dumps(json.loads(self.report.read_text()) | {"parts": others}))
        parts, table = self.verify("--device", "cpu", "--parts", "rest", "--call-minutes", "30", code=0)
        self.assertEqual((parts["ops"], parts["memory"]["status"]), (before, "passed"), table)

    def test_earlier_report_may_be_in_another_folder(self):
        self.verify("--device", "cpu", "--parts", "sanitizer", code=3)
        self.report.rename(self.folder / "first.json")
        parts, _ = self.verify("--device", "cpu", "--parts", "kernels", "--earlier", str(self.folder / "first.json"),
                               code=3)
        self.assertEqual(list(parts), ["kernels", "sanitizer"])

    def test_reports_of_another_commit_or_device_are_not_merged(self):
        self.verify("--device", "cpu", "--parts", "sanitizer", code=3)
        for key, other in (("device", "cuda"), ("commit", "0" * 40)):
            report = json.loads(self.report.read_text())
            report["parts"]["kernels"] = {"status": "passed", "seconds": 1.0}
            self.report.write_text(json.dumps(report | {key: other}))
            parts, _ = self.verify("--device", "cpu", "--parts", "sanitizer", code=3)
            self.assertEqual(list(parts), ["sanitizer"], key)

    def test_failures_are_printed_and_reports_are_merged(self):
        for data in (self.folder / "data").glob("*"):
            data.unlink()
        self.verify("--device", "cpu", "--parts", "sanitizer", code=3)
        (self.folder / "data" / "text_train_000000.bin").write_bytes(b"damaged")
        done = subprocess.run([sys.executable, str(VERIFY), "--out", str(self.folder / "out"), "--data",
                               str(self.folder / "data"), "--device", "cpu", "--parts", "resume"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        parts = json.loads((self.folder / "out" / "verify.json").read_text())["parts"]
        self.assertEqual([parts["resume"]["status"], parts["sanitizer"]["status"]], ["FAILED", "not run"])

    def test_part_ends_in_time(self):
        parts, _ = self.verify("--device", "cpu", "--parts", "backend", "--minutes", "0.001", code=1)
        self.assertEqual(parts["backend"]["status"], "FAILED")
        self.assertIn("did not end in time", parts["backend"]["why"])


class JudgeTest(unittest.TestCase):
    """The criteria of verify.py, on synthetic numbers."""

    def setUp(self):
        self.curves, self.verify = module(ROOT / "scripts" / "gpu" / "curves.py"), module(VERIFY)
        self.parts = module(PARTS)
        one = [4 * math.exp(-s / 30) + 1 for s in range(100)]
        self.sides = {"torch seed 1": one, "torch seed 2": [x + 0.02 * math.sin(s) for s, x in enumerate(one)],
                      "athanor": [x + 0.002 * math.cos(s) for s, x in enumerate(one)]}

    def test_curve_within_the_spread_passes(self):
        found = self.curves.judge(self.sides, "bf16")
        self.assertEqual(found["steps"], 100)
        self.assertAlmostEqual(found["largest_deviation"], 0.002, places=5)

    def refused(self, says, precision="bf16"):
        with self.assertRaises(ValueError) as raised:
            self.curves.judge(self.sides, precision)
        self.assertIn(says, str(raised.exception))

    def test_step_outside_the_spread_is_found(self):
        self.sides["athanor"][70] += 0.05
        self.refused("at 1 of 100 steps, first 71")

    def test_slow_drift_is_found(self):
        self.sides["athanor"] = [x + 0.0005 * s for s, x in enumerate(self.sides["athanor"])]
        self.refused("outside the spread")

    def test_different_first_loss_is_found(self):
        self.refused("the first loss differs", "fp32")
        self.sides["athanor"][0] += 0.015
        self.refused("the first loss differs")

    def test_curves_that_end_early_or_stay_constant_are_found(self):
        self.sides["athanor"].append(1.0)
        self.refused("different lengths")
        self.sides = dict.fromkeys(self.sides, [3.0] * 10)
        self.refused("did not fall")
        self.sides["athanor"] = [math.nan] * 10
        self.refused("the first loss differs")

    def test_script_error_fails_only_its_part(self):
        def broken(_):
            raise KeyError("a program wrote something else")

        call = argparse.Namespace(device="cpu", gpu=None, call_end=math.inf, begin_part=lambda most: None,
                                  hurried=False, left=lambda: math.inf)
        with unittest.mock.patch.dict(self.verify.PARTS, {"kernels": broken}):
            entry = self.verify.run_part("kernels", call)
        self.assertEqual(entry["status"], "FAILED")
        self.assertIn("KeyError", entry["why"])

    def test_memory_beyond_plan_context_and_reserve_is_found(self):
        context, mib = self.parts.CONTEXT, 1 << 20
        found = {"planned": 10 << 30, "reserve": 1 << 30, "before": 1 << 30}
        self.assertEqual(self.parts.judge_memory(found | {"used": (11 << 30) + context + 700 * mib}), 700 * mib)
        self.assertEqual(self.parts.judge_memory(found | {"used": (11 << 30) + context // 2}), 0, "a smaller context")
        for used, says in (((12 << 30) + context + mib, "libraries took 1074790400 bytes"),
                           ((11 << 30) - mib, "1048576 bytes less for this run than its plan")):
            with self.assertRaisesRegex(self.parts.Failed, says):
                self.parts.judge_memory(found | {"used": used})


LLMC = '''#!/bin/sh
i=0
while [ $i -lt 9 ]; do
  i=$((i+1))
  echo "step    $i/1000 | loss 10.9 (+nanz)| norm 1.0 (+nanz)| lr 1.00e-04 | $((i+100)).50 ms | 30.0% bf16 MFU | \
9 tok/s"
done
sleep 60'''
LLMQ = '''#!/bin/sh
for i in 0 1 2 3; do
  echo "[T] step      $i [  1.0%] | time:   ${i}50 ms | norm 1.0 | loss 11.0 | tps  10k"
done
echo "[T] step      4 [  1.0%] | time:     2 s | norm 1.0 | loss 11.0 | tps  10k"
sleep 60'''
ENDS_EARLY = '''#!/bin/sh
echo "[T] step      0 [  1.0%] | time:     2 s | norm 1.0 | loss 11.0 | tps  10k"
exit 3'''


class CompareTest(SystemTest):
    def setUp(self):
        super().setUp()
        (self.folder / "peers").mkdir()
        for name, text in (("train_gpt2cu", LLMC), ("train", LLMQ)):
            (self.folder / "peers" / name).write_text(text)
            (self.folder / "peers" / name).chmod(0o755)

    def compare(self, *arguments, python=PYTHON):
        command = [sys.executable, COMPARE, "--device", "cpu", "--out", self.folder, "--athanor", PROGRAM,
                   "--python", python, "--threads", "1", "--torch-compile", "none", "--rounds", "2", "--minutes", "120",
                   *arguments]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.folder / "compare.json").read_text()), done.stdout

    @unittest.skipUnless(HAS_TORCH, "ATHANOR_PYTHON lacks torch")
    def test_sides_are_measured_alternately(self):
        report, printed = self.compare("--peers", self.folder / "peers", "--models", "tiny-gpt2")
        row = report["models"]["tiny-gpt2"]
        self.assertEqual(row["status"], "measured", row)
        self.assertEqual(set(row["sides"]), {"athanor", "torch", "llm.c", "LLMQ"})
        self.assertEqual([len(s["turn_medians_ms"]) for s in row["sides"].values()], [2, 2, 2, 2])
        self.assertEqual(row["sides"]["llm.c"]["turn_medians_ms"], [104.0, 104.0], "steps 3 and 4")
        self.assertEqual(row["sides"]["LLMQ"]["turn_medians_ms"], [300.0, 300.0], "steps 2 and 3")
        self.assertEqual(row["sides"]["athanor"]["athanor_is_faster_by"], 1)
        self.assertGreater(row["start_seconds"], 0)
        goals = {what: met for what, _, _, met in row["goals"]}
        self.assertEqual(list(goals), ["tokens/s", "times torch", "times llm.c", "times LLMQ",
                                       "seconds to the first step"])
        self.assertFalse(goals["tokens/s"], "10^9 are asked for")
        self.assertIn("MISSED   tokens/s", printed)
        self.assertIn("gemm", [op["op"] for op in row["gap"]["ops"]])

    def test_peer_that_ends_early_has_no_times(self):
        (self.folder / "peers" / "train").write_text(ENDS_EARLY)
        report, printed = self.compare("--peers", self.folder / "peers", "--models", "tiny-gpt2", python="/bin/false")
        row = report["models"]["tiny-gpt2"]
        self.assertEqual(set(row["sides"]), {"athanor", "llm.c"})
        self.assertIn("1 of 4 steps", row["not_run"]["LLMQ"])
        self.assertIn("LLMQ     not run", printed)

    def test_fp8_is_compared_with_its_own_bf16(self):
        report, printed = self.compare("--models", "tiny-gpt2,tiny-llama", "--precisions", "fp8_tensorwise",
                                       "--rounds", "1", "--peers", self.folder / "peers")
        self.assertEqual(list(report["models"]), ["tiny-llama fp8_tensorwise"], "no figures of GPT-2 are known")
        row = report["models"]["tiny-llama fp8_tensorwise"]
        self.assertEqual((row["status"], set(row["sides"])), ("measured", {"athanor", "bf16"}), row)
        self.assertIn("scaled_gemm", [op["op"] for op in row["gap"]["ops"]])
        self.assertIn("times its own bf16", [what for what, *_ in row["goals"]])
        compare = module(COMPARE)
        rows = dict(compare.in_precisions(compare.MODELS, list(compare.MODELS), ["bf16", *compare.EIGHT_BITS]))
        self.assertEqual(len(rows), 9 + 5 * 5)
        for name, model in rows.items():
            self.assertLess(model["goal"], model["limit"], name)
        self.assertAlmostEqual(rows["qwen2.5-7b fp8_blockwise"]["goal"], 1.36 * rows["qwen2.5-7b"]["goal"])

    def test_missing_pytorch_skips_its_side(self):
        report, _ = self.compare("--models", "tiny-llama", python="/bin/false")
        row = report["models"]["tiny-llama"]
        self.assertEqual((row["status"], set(row["sides"])), ("measured", {"athanor"}))
        self.assertIn("ended", row["not_run"]["torch"])

    def test_model_without_time_is_not_run_and_later_calls_add_it(self):
        report, _ = self.compare("--minutes", "0.01", python="/bin/false")
        self.assertEqual({r["status"] for r in report["models"].values()}, {"not run"})
        report, _ = self.compare("--models", "tiny-llama", python="/bin/false")
        self.assertEqual([r["status"] for r in report["models"].values()], ["not run", "measured"])

    def test_models_with_goals_are_shipped(self):
        compare = module(COMPARE)
        for name, model in compare.MODELS.items():
            self.assertTrue((ROOT / "configs" / f"{name}.json").exists(), name)
            self.assertEqual(model["tokens"] % (model["seq"] * model["micro"]), 0, name)
            self.assertLess(model["goal"], model["limit"])
        usual = argparse.Namespace(rounds=2, steps=2, warmup=1, peers=None)
        self.assertLess(sum(compare.seconds_needed(m, usual) for m in compare.MODELS.values()), 9 * 60,
                        "one call yields the whole table")

    def test_tables_only_accept_gpu_reports(self):
        table = module(ROOT / "scripts" / "bench" / "gpu" / "table.py")
        side = lambda ms: {"tokens_per_second": 524288 / ms * 1e3, "athanor_is_faster_by": ms / 800}
        report = {"device": "cuda", "hardware": "a GPU", "date": "2026-01-02", "commit": "0123456789abcdef",
                  "settings": {"precision": "bf16"},
                  "models": {"gpt2-124m": {"status": "measured", "model": {"seq": 1024, "goal": 620e3, "limit": 693e3},
                                           "goals": [["tokens/s", 620e3, 655e3, True]],
                                           "sides": {"athanor": side(800), "torch": side(1200)}},
                             "gpt2-350m": {"status": "measured", "model": {"seq": 1024, "goal": 760e3, "limit": 800e3},
                                           "goals": [["tokens/s", 760e3, 655e3, False],
                                                     ["times torch", 1.3, 1.5, True]],
                                           "sides": {"athanor": side(800), "torch": side(1200)},
                                           "gap": {"profiled_ms": 801.0, "explained": 0.991, "times": {"idle": 0.004},
                                                   "ops": [{"op": "gemm", "ms": 600.0, "limit_ms": 500.0}]}},
                             "llama-1b": {"status": "not run", "why": "no time"}}}
        path, readme = self.folder / "report.json", self.folder / "README.md"
        path.write_text(json.dumps(report))
        readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
        run = lambda: subprocess.run([sys.executable, str(ROOT / "scripts" / "bench" / "gpu" / "table.py"), str(path), "--readme",
                                      str(readme)], capture_output=True, text=True)
        self.assertEqual(run().returncode, 0)
        text = readme.read_text()
        self.assertIn("| gpt2-124m | 1024 | 655k | 106 % | 95 % | 1.50× (437k) |", text)
        self.assertNotIn("gpt2-124m misses", text)
        self.assertIn("gpt2-350m misses its goals (tokens/s: 655k of 760k).", text)
        self.assertIn("ops explain 99.1 %, the GPU is idle 0.4 % of it:", text)
        self.assertIn("| gemm | 600.00 | 500.00 | 100.00 |", text)
        self.assertIn("a GPU, 2026-01-02, commit 0123456789ab", text)
        for gone in ("llama-1b", "old", "llm.c"):
            self.assertNotIn(gone, text)
        path.write_text(json.dumps(report | {"device": "cpu"}))
        done = run()
        self.assertEqual(done.returncode, 1)
        self.assertIn("not on a GPU", done.stderr)
        self.assertEqual(readme.read_text(), text)

    def test_readme_has_a_place_for_the_table(self):
        table = module(ROOT / "scripts" / "bench" / "gpu" / "table.py")
        self.assertEqual((ROOT / "README.md").read_text().count(table.BEGIN), 1)


class ChoicesTest(SystemTest):
    """scripts/bench/gpu/choices.py with tiny models on the CPU, and by the model of a GPU."""

    def choices(self, *arguments, code=0):
        command = [sys.executable, ROOT / "scripts" / "bench" / "gpu" / "choices.py", *arguments, "--out", self.folder,
                   "--athanor", PROGRAM, "--threads", "1", "--rounds", "1", "--steps", "1"]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        path = self.folder / "choices.json"
        return json.loads(path.read_text())["models"] if path.exists() else {}, done.stdout + done.stderr

    def test_sizes_are_recorded_for_a_model(self):
        models, printed = self.choices("--device", "cpu", "--models", "tiny-gpt2", "--minutes", "120")
        found = models["tiny-gpt2"]
        self.assertEqual((found["status"], found["auto"], found["left_out"]), ("measured", 8, {}))
        self.assertEqual(list(found["tokens_per_second"]), ["auto", "1", "2", "4"])
        self.assertLessEqual(found["auto_of_best"], 1)
        self.assertEqual(found["met"], found["auto_of_best"] >= 0.98)
        self.assertIn("auto takes 8", printed)

    def test_call_without_time_runs_nothing_and_later_calls_add_it(self):
        models, _ = self.choices("--device", "cpu", "--minutes", "0.001")
        self.assertEqual({row["status"] for row in models.values()}, {"not run"})
        models, _ = self.choices("--device", "cpu", "--models", "tiny-llama", "--minutes", "120")
        self.assertEqual([row["status"] for row in models.values()], ["not run", "measured"])

    def test_described_gpu_needs_no_gpu(self):
        models, printed = self.choices("--gpu", "h200", "--models", "gpt2-124m,llama-1b")
        for found in models.values():
            self.assertEqual((found["status"], found["modelled_for"]), ("modelled", "h200"))
            self.assertGreater(len(found["tokens_per_second"]), 3)
            self.assertTrue(found["met"], found)
        self.assertEqual(printed.count(": met"), 2)

    def test_unknown_models_are_refused(self):
        self.assertIn("unknown model none", self.choices("--device", "cpu", "--models", "none", code=1)[1])

    def test_candidate_sizes_divide_the_batch_and_rounds_are_compared(self):
        choices = module(ROOT / "scripts" / "bench" / "gpu" / "choices.py")
        self.assertEqual(choices.around(8, 48), [1, 2, 3, 4, 6, 8, 12, 16, 24])
        found = choices.verdict({"auto": [96, 48, 97], 4: [100, 50, 100], 2: [10, 10, 10]}, 8, {})
        self.assertEqual((found["best"], found["auto_of_best"], found["met"]), (4, 0.96, False))
        found = choices.verdict({"auto": [100], 4: [99]}, 8, {})
        self.assertEqual((found["best"], found["auto_of_best"], found["met"]), (8, 1, True))


if __name__ == "__main__":
    unittest.main()
