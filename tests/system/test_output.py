"""Output of the program: lost output is an error, and a reader that does not read blocks nothing."""
import fcntl
import os
import signal
import subprocess
import time
import unittest

from harness import DONE, ERROR, PROGRAM, REQUEUE, TIMEOUT, SystemTest, end_for_sure


class LostOutputTest(SystemTest):
    def run_with_output(self, output, *arguments, preexec=None):
        return subprocess.run([str(PROGRAM), *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, preexec_fn=preexec, check=False)

    def test_every_verb_reports_lost_output(self):
        config = self.make_config(train_iters=2, schedule={"lr_warmup_iters": 0}, valid_data="data/*_val_*.bin")
        self.run_program("train", config)
        step = "run/step-00000002"
        for arguments in (("--help",), ("--version",), ("train", "--help"), ("config", "validate", config), ("plan", config),
                          ("data", "info", "data/text_train_000000.bin", "--vocab-size", "257"), ("checkpoint", "list", "run"),
                          ("checkpoint", "inspect", step), ("checkpoint", "verify", step), ("eval", step, "--json"),
                          ("report", "run"), ("scaling", "--parameters", "1e9"), ("export", step, "to"),
                          ("import", "to", "imported"), ("devices",), ("logits", step, "logits.safetensors")):
            with open("/dev/full", "w") as full:
                done = self.run_with_output(full, *arguments)
            self.assertEqual(done.returncode, ERROR, f"{arguments}\n{done.stderr}")
            self.assertIn("standard output cannot be written", done.stderr, arguments)

    def test_closed_pipe_is_not_reported_as_an_error(self):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as nobody:
            done = self.run_with_output(nobody, "config", "defaults")
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, ""))

    def test_closed_stdout_is_not_reused_for_files(self):
        config = self.make_config(train_iters=4, schedule={"lr_warmup_iters": 0})
        close = lambda: os.close(1)  # noqa: E731
        self.assertEqual(self.run_with_output(None, "plan", config, preexec=close).returncode, ERROR)
        done = self.run_with_output(None, "train", config, preexec=close)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("standard output cannot be written", done.stderr)
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(b"lm loss:", path.read_bytes(), path)


class NobodyReadsTest(SystemTest):
    def start_unread(self, *arguments):
        """Both streams go to a pipe of one page that nobody reads: as behind Ctrl-S, or a hung connection."""
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        process = subprocess.Popen([str(PROGRAM), *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=write, stderr=write)
        os.close(write)
        self.addCleanup(end_for_sure, process)
        return process

    def test_training_continues_and_stops_on_request(self):
        config = self.make_config(train_iters=100_000, save_interval=0, log_interval=1)
        for command, run in ((("train",), "one"), (("launch", "-n", "2", "train"), "two")):
            process = self.start_unread(*command, config, "--set", f"save={run}")
            self.assertTrue(self.wait_for_step(process, 100, run=run))  # about 30 kB of lines
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(TIMEOUT), REQUEUE)
            self.assertLess(time.monotonic() - begin, 20, "the budget of a stop")
            self.assertEqual(len(self.checkpoints(run)), 1)

    def test_run_finishes_without_a_reader(self):
        process = self.start_unread("train", self.make_config(log_interval=1))
        self.assertEqual(process.wait(TIMEOUT), DONE)
        self.assertIn("step-00000060", self.checkpoints())


if __name__ == "__main__":
    unittest.main()
