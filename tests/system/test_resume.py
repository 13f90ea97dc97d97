"""Stops of every kind: after kill -9 and after each stop signal the same command goes on, and ends in the same bits."""
import json
import random
import signal
import time
import unittest

from harness import DONE, REQUEUE, SEED, SystemTest, repeats, wait_gone

FINAL = "step-00000060"
ATTEMPTS = 10  # to meet a run at a certain point, for a test that a machine with other work may hold up


class ResumeTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config()
        self.run_program("train", self.config, "--set", "save=whole")
        self.expected = self.final_files("whole")

    def final_files(self, run):
        """All that the last checkpoint holds and that must not depend on stops."""
        folder = self.folder / run / FINAL
        state = json.loads((folder / "state.json").read_text())
        state.pop("foreign_serial", None)  # of a run that starts anew in the folder of another one
        return {"model": (folder / "model.safetensors").read_bytes(),
                "optimizer": (folder / "optimizer.safetensors").read_bytes(), "state": state}

    def assert_same_end(self, run="run"):
        got = self.final_files(run)
        self.assertEqual(got["state"], self.expected["state"])
        for name in ("model", "optimizer"):
            self.assertTrue(got[name] == self.expected[name], f"{name}.safetensors differs from an uninterrupted run's")
        self.assertEqual(self.losses(run), self.losses("whole"))

    def train_to_end(self, *extra):
        for _ in range(20):
            done = self.run_program("train", self.config, *extra, code=None)
            if done.code != REQUEUE:
                self.assertEqual(done.code, DONE, str(done))
                return


class KillTest(ResumeTest):
    def test_kill_at_random_moments_loses_nothing_committed(self):
        rng = random.Random(SEED)
        kills, died, attempt = repeats(10), 0, 0
        arguments = ("train", self.config, "--set", "save_interval=5")
        longest = 0.4 * self.run_program(*arguments, "--set", "save=timed").seconds
        while died < kills:
            attempt += 1
            committed = self.checkpoints()
            process = self.start(*arguments)
            time.sleep(rng.uniform(0, longest))
            if wait_gone(process) == -signal.SIGKILL:
                died += 1
            else:
                longest /= 2  # it has become faster than it was
            self.assertLess(attempt, 20 * kills, "processes end before they can be killed")
            now = self.checkpoints()
            for name in committed:
                self.assertIn(name, now, f"seed {SEED}, kill {attempt}: a committed checkpoint is gone")
            for name in now:
                self.run_program("checkpoint", "verify", f"run/{name}")
            if FINAL in now:  # it got through: start anew, so that every kill meets a run in progress
                self.assert_same_end()
                (self.folder / "run").rename(self.folder / f"run-{attempt}")
        self.run_program(*arguments)
        self.assert_same_end()
        left = [p.name for p in (self.folder / "run").iterdir() if p.name.startswith(".step-")]
        self.assertEqual(left, [], "leftovers of killed saves are cleared")


class StopSignalTest(ResumeTest):
    def stop_and_resume(self, sig, name):
        for turn in range(ATTEMPTS):
            run = f"run-{turn}"
            process = self.start("train", self.config, "--set", f"save={run}")
            self.assertTrue(self.wait_for_step(process, 3, run=run))
            process.send_signal(sig)
            done = self.finish(process)
            if done.code != DONE:
                break  # else it was over before the signal came
        self.assertEqual(done.code, REQUEUE, str(done))
        stopped = json.loads((self.folder / run / self.checkpoints(run)[-1] / "state.json").read_text())
        self.assertIn(name, [r["text"] for r in self.records(run) if r["event"] == "signal"][-1])
        self.assertEqual([r["event"] for r in self.records(run)][-1], "end")
        self.assertLess(stopped["step"], 60)
        self.train_to_end("--set", f"save={run}")
        self.assert_same_end(run)

    def test_resumes_after_sigterm(self):
        self.stop_and_resume(signal.SIGTERM, "Terminated")

    def test_resumes_after_sigusr1(self):
        self.stop_and_resume(signal.SIGUSR1, "User defined signal 1")

    def test_resumes_after_sigint(self):
        self.stop_and_resume(signal.SIGINT, "Interrupt")

    def test_second_signal_exits_at_once(self):
        # A step of this model takes long enough that the second signal surely meets the first one's step, although it
        # comes more than a second later: earlier it would be part of the first request.
        config = self.make_config("slow.json", train_iters=1000, global_batch_size=2048, seq_length=32, save="slow",
                                  checkpoint={"exit_signal_budget": 600},
                                  model={"hidden_size": 128, "num_hidden_layers": 4})
        for turn in range(ATTEMPTS):
            run = f"slow-{turn}"
            process = self.start("train", config, "--set", f"save={run}")
            self.assertTrue(self.wait_for_step(process, 1, run=run))
            process.send_signal(signal.SIGTERM)
            time.sleep(1.1)
            seen = len(self.losses(run))
            process.send_signal(signal.SIGTERM)
            done = self.finish(process)
            if done.code == 128 + signal.SIGTERM and len(self.losses(run)) == seen:
                break  # else the step was over before the second signal came
        self.assertEqual(done.code, 128 + signal.SIGTERM, str(done))
        self.assertEqual(len(self.losses(run)), seen, "the step in progress is not finished")
        self.assertEqual(self.checkpoints(run), [])

    def test_signal_to_the_process_and_its_group_is_one_request(self):
        """coreutils' timeout and mpirun send the signal to the process, then to its group."""
        for command, run in ((("train",), "twice"), (("launch", "-n", "2", "train"), "twice-2")):
            process = self.start(*command, self.config, "--set", f"save={run}", "--set", "train_iters=100000",
                                 "--set", "save_interval=0")  # else the step of the signal may be saved already
            self.assertTrue(self.wait_for_step(process, 3, run=run))
            first = time.monotonic()
            while process.poll() is None and time.monotonic() < first + 0.5:  # also when the run has just ended
                process.send_signal(signal.SIGTERM)
                time.sleep(0.001)
            done = self.finish(process)
            self.assertEqual(done.code, REQUEUE, str(done))
            saved = [r["step"] for r in self.records(run) if r["event"] == "checkpoint" and "stop signal" in r["text"]]
            self.assertEqual(saved, [max(self.losses(run))], str(done))

    def test_time_limit_checkpoints_and_requests_a_requeue(self):
        done = self.run_program("train", self.config, "--set", "exit_duration_in_mins=0.0001", code=REQUEUE)
        self.assertIn("time limit", done.out)
        self.train_to_end()
        self.assert_same_end()


class OtherWaysToResumeTest(ResumeTest):
    def test_load_none_starts_from_scratch(self):
        self.run_program("train", self.config)
        self.run_program("train", self.config, "--load", "none")
        self.assert_same_end()

    def test_finished_run_is_not_changed(self):
        self.run_program("train", self.config)
        before = self.checkpoints()
        self.run_program("train", self.config)
        self.assertEqual(self.checkpoints(), before)
        self.assert_same_end()


class PackedResumeTest(SystemTest):
    """Documents of several sources and formats in one run, with masks: a stop changes no bit of what follows."""

    def test_packed_documents_resume_over_epochs_and_formats(self):
        words = "".join(json.dumps({"text": "word " * (i % 9 + 1)}) + "\n" for i in range(60))
        (self.folder / "a.jsonl").write_text(words)
        (self.folder / "b.jsonl").write_text(words.replace("word", "other"))
        for name, output in (("a", "megatron"), ("b", "llm.c")):
            self.run_program("tokenize", "--input", f"{name}.jsonl", "--output-prefix", f"data/{name}",
                             "--output-format", output, "--valid-every", "0")
        tokens = ((self.folder / "data" / "b_train_000000.bin").stat().st_size - 1024) // 2
        (self.folder / "data" / "b_train_000000.bin.loss").write_bytes(bytes(i % 7 != 0 for i in range(tokens)))
        question = {"context": "word word", "choices": [" word", " zzzz"], "label": 0}
        (self.folder / "choices.jsonl").write_text(json.dumps(question) + "\n")
        config = self.make_config(
            train_data=[{"path": "data/a_train_*.bin", "weight": 2}, "data/b_train_*.bin"],
            valid_data="data/a_train_*.bin", multiple_choice_data="choices.jsonl", eval_interval=20,
            documents={"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True,
                       "max_per_sequence": 4},
            schedule={"lr_decay_iters": 60})
        self.run_program("train", config, "--set", "save=whole")
        for last in (17, 38, 60):
            self.run_program("train", config, "--set", f"train_iters={last}")
        self.assertEqual(self.losses("run"), self.losses("whole"))
        for name in ("model", "optimizer"):
            files = [(self.folder / run / FINAL / f"{name}.safetensors").read_bytes() for run in ("run", "whole")]
            self.assertTrue(files[0] == files[1], name)
        answers = [r for r in self.records("whole") if r["event"] == "eval" and r["name"] == "choices"]
        self.assertEqual([r["step"] for r in answers], [20, 40, 60])
        self.assertEqual(answers[-1]["accuracy"], 1)


if __name__ == "__main__":
    unittest.main()
