"""The helper verbs: report, scaling, sweep, compare."""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

from harness import DONE, ERROR, REQUEUE, ROOT, TIMEOUT, USAGE, SystemTest


class ReportTest(SystemTest):
    def test_reports_cover_one_run_or_two(self):
        self.run_program("train", self.make_config(train_iters=20, eval_interval=10, eval_iters=2))
        self.assertIn("run/report.html", self.run_program("report", "run").out)
        page = (self.folder / "run" / "report.html").read_text()
        for part in ("Training loss", "Validation loss", "Learning rate", "Memory", "hidden_size", "checkpoint",
                     "done"):
            self.assertIn(part, page)
        self.assertNotIn('http-equiv="refresh"', page)
        self.run_program("train", self.make_config(train_iters=20, save="other", learning_rate=2e-3))
        self.run_program("report", "run", "other", "-o", "both.html")
        page = (self.folder / "both.html").read_text()
        self.assertIn("2 training runs", page)
        self.assertIn("<th>learning_rate</th><td>0.001</td><td>0.002</td>", page)

    def test_picture_has_the_requested_charts(self):
        self.run_program("train", self.make_config(train_iters=20, eval_interval=10, eval_iters=2))
        self.run_program("report", "run")
        page, image = self.folder / "run" / "report.html", self.folder / "picture.svg"
        make = lambda *more: subprocess.run([ROOT / "scripts" / "report_picture.py", page, image, *more], capture_output=True,
                                            text=True)
        self.assertEqual(make().returncode, 0)
        svg = "{http://www.w3.org/2000/svg}"
        charts = ElementTree.parse(image).getroot().findall(f"{svg}g")
        titles = [chart.find(f"{svg}text").text.strip() for chart in charts]
        self.assertEqual(titles, ["Training loss", "Validation loss", "Gradient norm", "Throughput"])
        for chart in charts:
            curves = [path.get("d") for path in chart.iter(f"{svg}path") if "line" in path.get("class").split()]
            self.assertEqual(len(curves), 1)
            self.assertIn(curves[0], page.read_text())
            self.assertIn("step", [text.text for text in chart.findall(f"{svg}text")])
        self.assertEqual(make("--charts", "Memory").returncode, 0)
        self.assertEqual(len(ElementTree.parse(image).getroot().findall(f"{svg}g")), 1)
        refused = make("--charts", "Weather")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no chart Weather; the page has Training loss, ", refused.stderr)

    def test_committed_picture_is_complete(self):
        self.assertEqual(len(ElementTree.parse(ROOT / "docs" / "report.svg").getroot()), 5)  # the style and four charts

    def test_folder_without_a_run_is_refused(self):
        self.refused("report", "nowhere", code=USAGE, says=["nowhere", "metrics.jsonl"])

    def test_watch_follows_until_the_end(self):
        run = self.start("train", self.make_config(train_iters=10_000_000, save_interval=0))
        self.assertTrue(self.wait_for_step(run, 3))
        watch = self.start("report", "run", "--watch", "--every", "1")
        page = self.folder / "run" / "report.html"
        end = time.monotonic() + TIMEOUT
        while not page.exists() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertIn('http-equiv="refresh"', page.read_text())
        run.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(run).code, REQUEUE)
        self.assertEqual(self.finish(watch).code, DONE)
        self.assertNotIn('http-equiv="refresh"', page.read_text())


    def test_watch_waits_for_a_run_to_start(self):
        watch = self.start("report", "run", "--watch", "--every", "1")
        end = time.monotonic() + TIMEOUT
        while "waiting for run/metrics.jsonl" not in self.said(watch) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertIsNone(watch.poll())
        self.run_program("train", self.make_config(train_iters=10))
        self.assertEqual(self.finish(watch).code, DONE)
        self.assertTrue((self.folder / "run" / "report.html").exists())


class ScalingTest(SystemTest):
    def test_scaling_accepts_a_budget_parameters_or_a_config(self):
        out = self.run_program("scaling", "--flops", "5.76e23", "--rate", "1e18").out
        self.assertIn("Besiroglu et al. 2024", out)
        self.assertIn("Kaplan et al. 2020", out)
        self.assertIn("6d16h", out)  # 5.76e5 seconds
        self.assertIn("20.0", self.run_program("scaling", "--parameters", "1e9").out)
        self.assertIn("the run by the same laws", self.run_program("scaling", self.make_config()).out)
        self.assertIn("Hoffmann", self.run_program("scaling", "--help").out)

    def test_scaling_counts_the_experts_that_a_token_meets(self):
        """The FLOPs of the laws are near those of the run, which have attention but not the embedding."""
        config = self.make_config(model={"model_type": "mixtral", "intermediate_size": 64, "num_local_experts": 8,
                                         "num_experts_per_tok": 2})
        out = self.run_program("scaling", config).out
        self.assertIn("parameters meet a token", out)
        units = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
        number, unit = re.search(r"([0-9.]+)([kMGT]?) FLOP with attention", out).groups()
        law, of_law = re.search(r"best use of ([0-9.]+)([kMGT]?) FLOP", out).groups()
        self.assertLess(float(law) * units[of_law], 1.5 * float(number) * units[unit])

    def test_scaling_without_a_target_is_refused(self):
        self.refused("scaling", code=USAGE, says=["--parameters", "--flops"])
        self.refused("scaling", "--hours", "3", code=USAGE, says=["--rate"])
        self.refused("scaling", "--flops", "-1", code=USAGE, says=["--flops"])


def adopt_orphans(adopt):
    """Makes this process the parent of what its children leave behind."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class SweepTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config(train_iters=6, schedule={"lr_warmup_iters": 1}, eval_interval=6, eval_iters=1)

    def sweep(self, *more, code=DONE):
        return self.run_program("sweep", self.config, "--set", "learning_rate=1e-3,3e-3", "--set", "seed=1,2",
                                "-o", "sw", *more, code=code)

    def runs(self):
        return sorted(p.name for p in (self.folder / "sw").iterdir() if p.is_dir())

    def test_sweep_runs_all_combinations_and_repeats_only_missing_ones(self):
        done = self.sweep()
        self.assertEqual(self.runs(), ["000-learning_rate=1e-3-seed=1", "001-learning_rate=1e-3-seed=2",
                                       "002-learning_rate=3e-3-seed=1", "003-learning_rate=3e-3-seed=2"])
        self.assertEqual(done.out.count(" done "), 4, done.out)
        self.assertIn("Sweep of", (self.folder / "sw" / "report.html").read_text())
        losses = {self.losses(f"sw/{name}")[1] for name in self.runs()}
        self.assertEqual(len(losses), 2, "seeds differ, first losses do not depend on the rate")
        self.assertEqual(self.sweep().err.count("is done already"), 4)
        shutil.rmtree(self.folder / "sw" / self.runs()[1])
        again = self.sweep()
        self.assertEqual(again.err.count("is done already"), 3)
        self.assertEqual(len(self.runs()), 4)
        self.make_config(train_iters=8, schedule={"lr_warmup_iters": 1}, eval_interval=6, eval_iters=1)
        self.refused("sweep", self.config, "--set", "learning_rate=1e-3,3e-3", "--set", "seed=1,2", "-o", "sw", code=USAGE,
                     says=["000-learning_rate=1e-3-seed=1/config.resolved.json: the run has train_iters 6, now it is 8",
                           "another --output"])
        self.assertEqual(self.sweep("--summary").out.count(" done "), 4)

    def test_failed_run_is_named_and_the_others_continue(self):
        shutil.copytree(self.folder / "data", self.folder / "broken")
        for path in (self.folder / "broken").glob("*_train_*"):
            path.write_bytes(b"not a shard")
        done = self.run_program("sweep", self.config, "--set", "train_data=broken/*_train_*.bin,data/*_train_*.bin",
                                "-o", "sw", code=ERROR)
        self.assertIn("failed with exit code", done.err)
        self.assertIn("000-train_data=broken", done.err)
        self.assertIn("text_train_000000.bin",
                      (self.folder / "sw" / "000-train_data=broken___train__.bin.log").read_text())
        self.assertEqual(done.out.count(" done "), 1, done.out)

    def test_bad_sweeps_are_refused_before_anything_runs(self):
        self.refused("sweep", self.config, "--set", "learning_rate=1e-3,-5", "-o", "sw", code=USAGE,
                     says=["001-learning_rate=-5", "learning_rate"])
        self.refused("sweep", self.config, "--set", "lerning_rate=1", "-o", "sw", code=USAGE, says=["lerning_rate"])
        self.refused("sweep", self.config, "--set", "seed=1,,2", "-o", "sw", code=USAGE, says=["empty"])
        self.refused("sweep", self.config, "--set", "seed=1", "--set", "seed=2", "-o", "sw", code=USAGE, says=["twice"])
        self.refused("sweep", self.config, "--set", "save=a,b", "-o", "sw", code=USAGE, says=["save"])
        self.assertFalse((self.folder / "sw").exists())
        self.sweep("--summary")
        self.refused("sweep", self.config, "--set", "seed=1,2", "-o", "sw", code=USAGE,
                     says=["belongs to a sweep of another"])

    def test_stopped_sweep_resumes(self):
        sweep = self.start("sweep", self.config, "--set", "train_iters=100000,3", "--set", "eval_interval=0",
                           "-o", "sw")
        first = "sw/000-train_iters=100000-eval_interval=0"
        self.assertTrue(self.wait_for_step(sweep, 3, run=first))
        sweep.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(sweep).code, REQUEUE)
        self.assertTrue(any(r["event"] == "checkpoint" for r in self.records(first)),
                        "the run has saved before it ended")
        self.assertEqual(len(self.runs()), 1)

    def test_killed_sweep_leaves_no_process_and_restarts(self):
        adopt_orphans(True)  # the kernel continues a stopped process group that loses its last parent of the session
        self.addCleanup(adopt_orphans, False)
        values = ("sweep", self.config, "--set", "train_iters=100000,3", "--set", "eval_interval=0", "-o", "sw")
        sweep = self.start(*values)
        first = "sw/000-train_iters=100000-eval_interval=0"
        self.assertTrue(self.wait_for_step(sweep, 3, run=first))
        [child] = map(int, Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split())
        os.kill(child, signal.SIGSTOP)  # so that it cannot stop before the same command comes again
        sweep.kill()
        sweep.wait()
        again = self.start(*values)
        self.wait(lambda: "waiting for the process" in self.said(again))
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        self.wait(lambda: self.records(first)[-1]["event"] == "step" and
                  any(r["event"] == "resume" for r in self.records(first)))
        self.assertIn("signal", [r["event"] for r in self.records(first)], "the first run has stopped as by SIGTERM")
        again.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(again).code, REQUEUE)

    def wait(self, reached):
        end = time.monotonic() + TIMEOUT
        while not reached():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_losses_are_plotted_by_learning_rate_and_width(self):
        self.run_program("sweep", self.config, "--widths", "16,32", "--set", "learning_rate=1e-3,3e-3", "-o", "sw")
        self.assertEqual(self.runs(), ["000-width=16-learning_rate=1e-3", "001-width=16-learning_rate=3e-3",
                                       "002-width=32-learning_rate=1e-3", "003-width=32-learning_rate=3e-3"])
        model = json.loads((self.folder / "sw" / self.runs()[0] / "config.resolved.json").read_text())["model"]
        self.assertEqual([model[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "head_dim")],
                         [16, 64, 1, 16])
        page = (self.folder / "sw" / "report.html").read_text()
        self.assertIn("Loss by learning_rate", page)
        self.assertIn('data-label="width=32"', page)
        for widths, says in (("16,24", "num_attention_heads"), ("32,32", "twice"), ("32,x", '"x"')):
            self.refused("sweep", self.config, "--widths", widths, "-o", "other", code=USAGE, says=[says])
        self.refused("sweep", self.config, "--widths", "16", "--set", "model.hidden_size=32", "-o", "other", code=USAGE,
                     says=["model.hidden_size", "twice"])
        self.refused("sweep", self.config, "-o", "other", code=USAGE, says=["--set or --widths"])
        self.refused("sweep", self.config, "--widths", "16", "--coordinate-check", "-o", "other", code=USAGE,
                     says=["two widths"])

    def test_coordinate_check_distinguishes_mup(self):
        check = ("--widths", "64,192", "--coordinate-check", "--set", "learning_rate=6e-3")
        with_mup = self.run_program("sweep", self.config, *check, "--set", "mup_base_width=64", "-o", "sw")
        self.assertIn("(limit 1.3)", with_mup.out)
        self.assertIn("attention 1", with_mup.out)
        without = self.run_program("sweep", self.config, *check, "-o", "without", code=ERROR)
        self.assertNotEqual(with_mup.out, without.out)
        found = json.loads((self.folder / "without" / "coordinates.json").read_text())
        self.assertGreater(max(a["ratio"] for a in found["groups"][0]["activations"]), 1.3)
        self.assertIn("Root mean square of activations", (self.folder / "without" / "report.html").read_text())
        self.run_program("sweep", self.config, *check, "--limit", "100", "--summary", "-o", "without")

    def test_slurm_script_runs_every_task(self):
        self.sweep("--slurm", "--sbatch=--time=00:10:00")
        script = self.folder / "sw" / "sweep.sbatch"
        text = script.read_text()
        self.assertIn("#SBATCH --array=0-3\n", text)
        self.assertIn("#SBATCH --time=00:10:00\n", text)
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "srun").write_text("#!/bin/sh\nexec \"$@\"\n")
        (tools / "srun").chmod(0o755)
        for task, code in ((2, 0), (9, 2)):
            env = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", SLURM_ARRAY_TASK_ID=str(task),
                       SLURM_JOB_ID="1")
            done = subprocess.run(["bash", script], cwd=self.folder, env=env, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(self.runs(), ["002-learning_rate=3e-3-seed=1"])
        self.assertEqual(self.sweep("--summary").out.count("not run"), 3)


class LrFindTest(SystemTest):
    def test_stopped_test_suggests_nothing(self):
        done = self.run_program("lr-find", self.make_config(), "--steps", "1000000", "--set", "exit_duration_in_mins=1e-4",
                                "--set", "load_step=5", "--set", "pruning.end=9",  # which a range test does not have
                                "--output", "range", code=REQUEUE)
        self.assertRegex(done.out, r"no learning rate is suggested: the test was stopped after \d+ of 1000000 steps")
        end = json.loads((self.folder / "range" / "metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual(end["text"], "stopped")
        self.assertNotIn("suggested_rate", end)


class CompareTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config(train_iters=12, schedule={"lr_warmup_iters": 1}, eval_interval=6, eval_iters=1,
                                       precision="fp8_tensorwise", fp8={"format": "e4m3"})

    def test_compare_reports_losses_and_differing_options(self):
        done = self.run_program("compare", self.config, "-o", "both")
        self.assertIn("held out, step 12", done.out)
        comparison = json.loads((self.folder / "both" / "compare.json").read_text())
        self.assertEqual([s["step"] for s in comparison["steps"]], list(range(1, 13)))
        for step in comparison["steps"]:
            self.assertEqual(step["loss"], self.losses("both/fp8_tensorwise")[step["step"]])
            self.assertEqual(step["reference_loss"], self.losses("both/bf16")[step["step"]])
        self.assertNotEqual(comparison["valid"]["gap"], 0)
        self.assertLess(abs(comparison["valid"]["gap"]), 0.01)
        self.assertEqual({o["operand"] for o in comparison["operands"]},
                         {"forward_x", "forward_w", "weight_dy", "weight_x"})
        self.assertEqual(comparison["alarms"], [])
        page = (self.folder / "both" / "report.html").read_text()
        for part in ("Rounding to low precision", "Comparison: fp8_tensorwise, bf16"):
            self.assertIn(part, page)
        self.assertFalse(any(r["event"] == "quantized" for r in self.records("both/bf16")))
        # A second call compares the existing runs; a gap beyond the limit is an error.
        again = self.run_program("compare", self.config, "-o", "both", "--summary", "--max-gap", "-1", code=ERROR)
        self.assertIn("gap of the held-out loss to bf16", again.err)
        self.refused("compare", self.config, "-o", "both", "--set", "learning_rate=2e-3", code=USAGE,
                     says=["both/bf16/config.resolved.json: the run has learning_rate 0.001, now it is 0.002"])

    def test_incomparable_runs_are_refused(self):
        self.refused("compare", self.config, "--set", "precision=bf16", "--set", "fp8.format=auto", "-o", "both", code=USAGE,
                     says=["precision bf16 does not quantize"])
        self.refused("compare", self.config, "--reference", "mxfp8", "-o", "both", code=USAGE, says=["--reference", "mxfp8"])
        self.refused("compare", self.config, "--summary", "-o", "both", code=USAGE, says=["metrics.jsonl"])


if __name__ == "__main__":
    unittest.main()
