"""A failure on one rank soon ends all ranks, with a message that names the failure and the rank, and loses no checkpoint:
killed and frozen ranks at random moments, other programs, configurations and data, full disks.
"""
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import time
import unittest
from pathlib import Path

from harness import DONE, ERROR, REQUEUE, SEED, USAGE, repeats, random_tokens, write_shard
from ranks import PEER_LOST, RanksTest, free_port

LIMIT = 60  # seconds in which the others must have ended: 8 of silence, and a machine with other work


class MomentsTest(RanksTest):
    """Runs that are hit at a random moment; save_interval 1 puts many of the moments into a save."""

    def hit(self, how, run, rng, ranks, *options):
        victim = rng.randrange(ranks)
        changes = ("train_iters=100000", "global_batch_size=6", "save_interval=2", f"save={run}", "eval_interval=0", *options)
        processes = self.start_ranks(ranks, *(word for change in changes for word in ("--set", change)))
        self.assertTrue(self.wait_for_step(processes[0], 4, run=run))
        time.sleep(rng.random() * 0.3)
        processes[victim].send_signal(how)
        begin = time.monotonic()
        for rank, process in enumerate(processes):
            if rank == victim:
                continue
            done = self.finish(process)
            said = f"{run}: rank {victim} hit, rank {rank} says: {done}"
            self.assertEqual(done.code, PEER_LOST, said)
            self.assertIn(f"rank {victim} (", done.err, said)
            self.assertRegex(done.err, rf"rank {rank} \(\S+\) was at (step|saving step) \d+", said)
            self.assertLess(time.monotonic() - begin, LIMIT, said)
        if how == signal.SIGSTOP:
            processes[victim].send_signal(signal.SIGCONT)  # it learns what it missed and ends too
            self.assertEqual(self.finish(processes[victim]).code, PEER_LOST)
        else:
            processes[victim].communicate()
        self.assertEqual([p.poll() is None for p in processes], [False] * ranks, "no orphan")

    def goes_on_exactly(self, run):
        """The remaining checkpoint resumes to the losses of an undisturbed run."""
        last = int(self.checkpoints(run)[-1][5:])
        self.run_program("checkpoint", "verify", f"{run}/step-{last:08d}")
        end = last + 3
        common = ("--set", "global_batch_size=6", "--set", "save_interval=0", "--set", "eval_interval=0", "--set",
                  "schedule.lr_decay_iters=100000", "--set", f"train_iters={end}")
        self.launch(3, *common, "--set", f"save={run}")
        self.launch(3, *common, "--set", f"save={run}-whole")
        self.assertEqual({s: l for s, l in self.losses(run).items() if s > last},
                         {s: l for s, l in self.losses(f"{run}-whole").items() if s > last})

    def test_killed_and_frozen_ranks_are_named_and_the_run_resumes(self):
        rng = random.Random(SEED)
        for turn in range(repeats(2)):
            for how in (signal.SIGKILL, signal.SIGSTOP):
                run = f"{how.name}-{turn}"
                with self.subTest(run=run):
                    self.hit(how, run, rng, 3)
                    self.goes_on_exactly(run)

    def test_launcher_starts_ranks_again_and_the_run_resumes(self):
        """One restart is allowed since the newest checkpoint: two failures after new checkpoints do not end the run,
        a third one before any new checkpoint does.
        """
        command = ["train_iters=100000", "global_batch_size=6", "save_interval=2", "eval_interval=0", "save=again"]
        launcher = self.start("launch", "--ranks", 3, "--max-restarts", 1, "train", self.config, "--load", "none",
                              *(word for change in command for word in ("--set", change)))
        ranks = []
        for progress in (True, True, False):
            seen = max(self.losses("again"), default=0) if (self.folder / "again/metrics.jsonl").exists() else 0
            if progress:
                self.assertTrue(self.wait_for_step(launcher, seen + 4, run="again"))
            before, ranks = ranks, []
            while launcher.poll() is None and (len(ranks) < 3 or ranks == before):
                ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
                time.sleep(0.001)
            os.kill(int(ranks[1]), signal.SIGKILL)
            while launcher.poll() is None and os.path.exists(f"/proc/{ranks[0]}"):
                time.sleep(0.01)
        done = self.finish(launcher)
        self.assertEqual(done.code, 128 + signal.SIGKILL, str(done))
        self.assertEqual(len(re.findall(r"ended with code 137 and are started again \(restart 1 of 1 since the checkpoint of "
                                        r"step \d+\)", done.err)), 2, str(done))
        self.assertGreater([r["step"] for r in self.records("again") if r["event"] == "resume"][-1], 0)
        self.goes_on_exactly("again")

    def test_restarted_ranks_continue_from_memory_where_nothing_is_saved_on_disk(self):
        def options(save, *more):
            changes = ("global_batch_size=6", "save_interval=0", "eval_interval=0", "schedule.lr_decay_iters=100000",
                       f"save={save}", *more)
            return [word for change in changes for word in ("--set", change)]
        launcher = self.start("launch", "--ranks", 2, "--max-restarts", 1, "train", self.config, *options(
            "run", "train_iters=100000", "checkpoint.memory_interval=2", "checkpoint.memory_folder=memory"))
        self.assertTrue(self.wait_for_step(launcher, 5, run="run"))
        ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(int(ranks[1]), signal.SIGKILL)
        resumed = []
        while not resumed and launcher.poll() is None:
            time.sleep(0.01)
            resumed = [r for r in self.records("run") if r["event"] == "resume"]
        self.assertTrue(self.wait_for_step(launcher, resumed[0]["step"] + 3, run="run"))
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(launcher).code, REQUEUE)
        self.assertRegex(resumed[0]["text"], r"^from memory/run-\w+/step-")
        self.assertEqual(os.listdir(self.folder / "memory"), [], "the stopped run is saved on disk")
        losses = self.losses("run")
        self.launch(2, *options("whole", f"train_iters={max(losses)}"))
        self.assertEqual(losses, self.losses("whole"))

    def test_launcher_pauses_before_a_restart_and_a_signal_ends_the_pause(self):
        (self.folder / "save").write_text("a file where the run's folder would be")
        launcher = self.start("launch", "--ranks", 1, "--max-restarts", 9, "train", self.config, "--set", "save=save")
        while "after a pause of 2 s" not in self.said(launcher) and launcher.poll() is None:
            time.sleep(0.01)
        begin = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        done = self.finish(launcher)
        self.assertLess(time.monotonic() - begin, 1.5, "the pause is over at once")
        self.assertEqual(done.code, 1, str(done))
        for text in ("(restart 1 of 9) after a pause of 1 s", "(restart 2 of 9) after a pause of 2 s",
                     "signal 15 (Terminated): the ranks are not started again"):
            self.assertIn(text, done.err)

    def test_launcher_starts_no_rank_again_after_a_stop_signal_or_a_wrong_option(self):
        def launch(*arguments):
            return self.start("launch", "--ranks", 2, "--max-restarts", 3, "train", self.config, *arguments)
        wrong = launch("--set", "seq_length=31.5")
        stopped = launch("--set", "train_iters=100000")
        self.assertTrue(self.wait_for_step(stopped, 1))
        stopped.send_signal(signal.SIGTERM)
        for process, code in ((wrong, USAGE), (stopped, REQUEUE)):
            done = self.finish(process)
            self.assertEqual(done.code, code, str(done))
            self.assertNotIn("started again", done.err)

    def test_killed_and_frozen_ranks_are_named_with_tensor_and_context_parallelism(self):
        """In the mesh of both, the rank across from the one that is hit is in no group with it but that of all."""
        rng = random.Random(SEED)
        for tensor, context in ((2, 1), (1, 2), (2, 2)):
            for how in (signal.SIGKILL, signal.SIGSTOP):
                run = f"{how.name}-tensor{tensor}-context{context}"
                with self.subTest(run=run):
                    self.hit(how, run, rng, tensor * context, f"tensor_parallel_size={tensor}",
                             f"context_parallel_size={context}", "timeouts.heartbeat=4")


class LimitsTest(RanksTest):
    def test_hung_step_is_detected_despite_heartbeats(self):
        """Progress is not life: one thread stands still, as in a hang of the system, and the others give signs of life."""
        for limit in (2, 10, 50):  # which a step may take longer than on a machine with other work
            run = f"run-{limit}"
            changes = ("train_iters=100000", "timeouts.heartbeat=300", f"timeouts.step={limit}", "save_interval=0",
                       "eval_interval=0", f"save={run}")  # an evaluation has a limit of its own
            processes = self.start_ranks(2, *(word for change in changes for word in ("--set", change)))
            lived = self.wait_for_step(processes[0], 3, run=run)
            if lived:
                self.stop_thread(processes[1].pid)  # the first thread alone: the others keep giving signs of life
            done = self.finish(processes[0])
            os.kill(processes[1].pid, signal.SIGKILL)  # Popen takes a traced stop for an end
            processes[1].communicate()
            self.assertEqual(done.code, PEER_LOST, str(done))
            # Stopped in the middle of a collective it cannot be told from rank 0, which waits in the same one.
            if lived and re.search(rf"(rank 1 \(\S+\) hangs|ranks 0 and 1 hang): no progress while others waited for {limit} s",
                                   done.err):
                return
        self.fail(str(done))

    def stop_thread(self, thread):
        """By ptrace: SIGSTOP would stop all."""
        libc = ctypes.CDLL(None, use_errno=True)
        seize, interrupt = 0x4206, 0x4207
        if libc.ptrace(seize, thread, None, None) != 0 or libc.ptrace(interrupt, thread, None, None) != 0:
            self.skipTest("ptrace is not permitted here")


class DisagreementTest(RanksTest):
    def both(self, second):
        """Rank 0 with the configuration, rank 1 with something else; what both say."""
        port = free_port()
        processes = [self.start("train", self.config, env=self.rank_variables(0, 2, port)),
                     self.start("train", *second, env=self.rank_variables(1, 2, port))]
        first, other = (self.finish(p) for p in processes)
        self.assertEqual((first.code, other.code), (PEER_LOST, USAGE), f"{first}\n{other}")
        self.assertRegex(first.err, r"rank 1 \(\S+\) failed: ")
        self.assertFalse((self.folder / "run").exists(), "before anything is written")
        return other.err

    def test_different_configurations_are_refused(self):
        said = self.both((self.config, "--set", "learning_rate=0.5"))
        self.assertIn("different configurations", said)
        self.assertIn('rank 1 has learning_rate: 0.5', said)

    def test_missing_network_interface_is_reported_by_all(self):
        port = free_port()
        first, second = [self.start("train", self.config, env={**self.rank_variables(rank, 2, port), **more})
                         for rank, more in enumerate(({}, {"ATHANOR_SOCKET_IFNAME": "=nosuch"}))]
        self.assertEqual(self.finish(second).code, USAGE)
        done = self.finish(first)
        self.assertEqual(done.code, PEER_LOST, str(done))
        self.assertRegex(done.err, r'rank 1 \(\S+\) failed: no network interface .* matches "=nosuch"')

    def test_machine_specific_options_may_differ(self):
        port = free_port()
        processes = [self.start("train", self.config, "--set", f"threads={1 + rank}",
                                env=self.rank_variables(rank, 2, port)) for rank in range(2)]
        self.assertEqual([self.finish(p).code for p in processes], [DONE, DONE])

    def rank_1_elsewhere(self, *copied):
        """A folder with these of the test's, where rank 1 works from now on, as on a machine with other files."""
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        for name in copied:
            shutil.copytree(self.folder / name, elsewhere / name)
        wrapper = self.folder / "there"
        wrapper.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && cd {elsewhere}\nexec {self.program} "$@"\n')
        wrapper.chmod(0o755)
        self.program = wrapper
        return elsewhere

    def test_different_data_under_the_same_name_is_refused(self):
        elsewhere = self.rank_1_elsewhere("data")
        write_shard(elsewhere / "data" / "text_train_000000.bin", random_tokens(4000, seed=7))
        self.assertIn("different train_data", self.both((self.config,)))

    def test_different_questions_under_the_same_name_are_refused(self):
        lines = [json.dumps({"text": "word " * (i % 9 + 1)}) + "\n" for i in range(60)]
        (self.folder / "a.jsonl").write_text("".join(lines))
        self.run_program("tokenize", "--input", "a.jsonl", "--output-prefix", "words/a", "--valid-every", "5")
        self.config = self.make_config(train_data="words/a_train_*.bin", valid_data="words/a_val_*.bin",
                                       multiple_choice_data="choices.jsonl", device="cpu")
        elsewhere = self.rank_1_elsewhere("words")
        for folder, label in ((self.folder, 0), (elsewhere, 1)):
            (folder / "choices.jsonl").write_text(
                json.dumps({"context": "word word", "choices": [" word", " zzzz"], "label": label}) + "\n")
        self.assertIn("different multiple_choice_data", self.both((self.config,)))

    def test_save_folder_that_is_not_shared_is_refused(self):
        self.rank_1_elsewhere("data")
        port = free_port()
        for rank, process in enumerate([self.start("train", self.config, env=self.rank_variables(rank, 2, port))
                                        for rank in range(2)]):
            done = self.finish(process)
            self.assertIn(done.code, (USAGE, PEER_LOST), str(done))  # the second to end repeats what the first said
            self.assertRegex(done.err, r"save: rank 1 \(\S+\) does not see what rank 0 \(\S+\) has just written in run;")
        self.assertEqual(self.checkpoints(), [])


class StartTest(RanksTest):
    def test_missing_ranks_are_named_on_all_connected_ranks(self):
        for limit in (2, 15, 60):  # within which others may be late as well on a machine with other work
            port = free_port()
            processes = [self.start("train", self.config, "--set", f"timeouts.startup={limit}",
                                    env=self.rank_variables(r, 4, port)) for r in (0, 2)]
            both = [self.finish(process) for process in processes]
            if all("ranks 1 and 3 of 4 did not join" in done.err for done in both):
                break
        for done in both:
            self.assertEqual(done.code, PEER_LOST, str(done))
            self.assertIn("ranks 1 and 3 of 4 did not join", done.err)


class DiskTest(RanksTest):
    def test_full_disk_on_one_rank_ends_all_and_keeps_the_previous_checkpoint(self):
        """Its files may not grow past what metrics need: its part of the checkpoint does not fit."""
        self.launch(2, "--set", "train_iters=4", "--set", "schedule.lr_decay_iters=12")

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

        for victim in (0, 1):
            port = free_port()
            processes = [self.start("train", self.config, preexec=limit if rank == victim else None,
                                    env=self.rank_variables(rank, 2, port)) for rank in range(2)]
            done = [self.finish(p) for p in processes]
            self.assertEqual((done[victim].code, done[1 - victim].code), (ERROR, PEER_LOST), f"{done[0]}\n{done[1]}")
            self.assertIn("File too large", done[victim].err)
            self.assertRegex(done[1 - victim].err, rf"rank {victim} \(\S+\) failed: ")
            self.assertIn("File too large", done[1 - victim].err)
            self.assertEqual(self.checkpoints(), ["step-00000004"])
            self.run_program("checkpoint", "verify", "run/step-00000004")
        self.launch(2)


class ResumeTest(RanksTest):
    def test_resumes_on_4_3_1_and_8_ranks_with_the_losses_of_one_process(self):
        """The sample stream goes on whatever the ranks: all losses are those of one process."""
        self.config = self.make_config(train_iters=12, save_interval=0, eval_interval=0, micro_batch_size=1, device="cpu",
                                       global_batch_size=24)
        common = ("--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        self.run_program("train", self.config, "--set", "save=one")
        for ranks, end, stage in ((4, 3, 1), (3, 6, 3), (1, 9, 0), (8, 12, 2)):
            self.launch(ranks, *common, f"train_iters={end}", "--set", f"zero_stage={stage}")
        self.assert_same_losses("parts", "one")
        last = json.loads((self.folder / "parts" / "step-00000012" / "state.json").read_text())
        self.assertEqual(last["consumed_samples"], 12 * 24)


if __name__ == "__main__":
    unittest.main()
