"""The disk at its worst: full, read-only, damaged."""
import os
import resource
import shutil
import signal
import subprocess
import unittest

from harness import ERROR, PROGRAM, REQUEUE, SystemTest

NOBODY = 65534


def limit_file_size(limit):
    def set_it():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as a shell leaves it: it would end the program
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return set_it


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


class FullDiskTest(SystemTest):
    def test_full_disk_names_the_file_and_keeps_older_checkpoints(self):
        config = self.make_config()
        disk = self.folder / "run"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "athanor-test", str(disk)],
                          capture_output=True).returncode != 0:
            self.skipTest("mounting a small tmpfs is not permitted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)])
        done = self.run_program("train", config, code=ERROR)
        self.assertIn("No space left on device", done.err)
        self.assertIn(str("run/"), done.err)
        whole = self.checkpoints()
        self.assertGreater(len(whole), 0, "the first checkpoint fits")
        for name in whole:
            self.run_program("checkpoint", "verify", f"run/{name}")
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        done = self.run_program("train", config)  # the same command, once there is room
        self.assertIn(f"from run/{whole[-1]}", done.out)
        self.run_program("train", config, "--set", "save=elsewhere")
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertTrue((disk / "step-00000060" / name).read_bytes() ==
                            (self.folder / "elsewhere" / "step-00000060" / name).read_bytes(), name)

    def test_file_size_limit_fails_the_save_and_keeps_older_checkpoints(self):
        config = self.make_config()
        self.run_program("train", config, "--set", "exit_duration_in_mins=0.00001", code=REQUEUE)
        before = self.checkpoints()
        self.assertEqual(len(before), 1)
        done = self.run_program("train", config, code=ERROR, preexec=limit_file_size(100_000))
        self.assertIn("safetensors", done.err)
        self.assertIn("File too large", done.err)
        self.assertEqual(self.checkpoints(), before)
        self.run_program("checkpoint", "verify", f"run/{before[0]}")
        self.run_program("train", config)

    def test_metrics_on_a_full_device_do_not_stop_training(self):
        config = self.make_config()
        (self.folder / "run").mkdir()
        (self.folder / "run" / "metrics.jsonl").symlink_to("/dev/full")
        done = self.run_program("train", config)
        self.assertIn("metrics.jsonl", done.err)
        self.assertIn("step-00000060", self.checkpoints())

    def test_records_that_cannot_be_written_do_not_stop_training(self):
        config = self.make_config(train_iters=10)
        (self.folder / "run" / "environment.json").mkdir(parents=True)
        os.mkfifo(self.folder / "run" / "metrics.jsonl")
        (self.folder / "run" / "tensorboard").write_text("no folder")
        done = self.run_program("train", config)
        for name in ("environment.json", "metrics.jsonl", "tensorboard"):
            self.assertRegex(done.err, f"{name}.*training continues")
        self.assertEqual(self.checkpoints(), ["step-00000010"])


class ReadOnlyFolderTest(SystemTest):
    def test_unwritable_save_folder_is_refused(self):
        config = self.make_config(save="closed/run")
        closed = self.folder / "closed"
        closed.mkdir()
        closed.chmod(0o555)
        become = become_nobody if os.getuid() == 0 else None
        if become:  # root may write anywhere, and another user may not reach where the program lies
            self.program = shutil.copy(PROGRAM, self.folder)
        self.refused("train", config, code=ERROR, says=["closed/run", "Permission denied"], preexec=become)

    def test_file_as_save_folder_is_refused(self):
        config = self.make_config(save="taken")
        (self.folder / "taken").write_text("a file\n")
        self.refused("train", config, code=ERROR, says=["taken"])
        self.assertEqual((self.folder / "taken").read_text(), "a file\n")


class DamagedCheckpointTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config()
        self.run_program("train", self.config)
        self.newest = self.folder / "run" / "step-00000060"
        self.expected = (self.newest / "model.safetensors").read_bytes()

    def assert_skipped(self, *says):
        done = self.run_program("train", self.config)
        for part in ("checkpoint skipped", "step-00000060", *says):
            self.assertIn(part, done.err, str(done))
        self.assertIn("from run/step-00000050", done.out)
        self.assertTrue((self.newest / "model.safetensors").read_bytes() == self.expected)

    def test_checkpoint_with_a_changed_byte_is_skipped(self):
        data = bytearray(self.expected)
        data[len(data) // 2] ^= 1
        (self.newest / "model.safetensors").write_bytes(data)
        verified = self.run_program("checkpoint", "verify", self.newest, code=ERROR)
        self.assertIn("model.safetensors", verified.err)
        self.assert_skipped("model.safetensors")

    def test_checkpoint_without_manifest_is_skipped(self):
        (self.newest / "manifest.json").unlink()
        self.assert_skipped("manifest.json")

    def test_damaged_checkpoint_named_explicitly_is_refused(self):
        os.truncate(self.newest / "model.safetensors", 1000)
        done = self.run_program("train", self.config, "--load", "run/step-00000060", code=ERROR)
        self.assertIn("not a whole checkpoint", done.err)
        self.assertIn("model.safetensors", done.err)

    def test_list_reports_which_checkpoints_are_intact(self):
        os.truncate(self.newest / "model.safetensors", 1000)
        lines = self.run_program("checkpoint", "list", "run").out.splitlines()
        self.assertEqual(len(lines), 6)
        self.assertIn("model.safetensors", lines[-1])
        self.assertTrue(all(line.endswith("present") for line in lines[:-1]), lines)

    def test_every_reader_verifies_checksums(self):
        data = bytearray(self.expected)
        data[len(data) // 2] ^= 1
        (self.newest / "model.safetensors").write_bytes(data)
        lines = self.run_program("checkpoint", "list", "--verify", "run").out.splitlines()
        self.assertIn("model.safetensors", lines[-1])
        self.assertTrue(all(line.endswith("whole") for line in lines[:-1]), lines)
        for verb in (("eval",), ("sample", "--max-tokens", "2", "--checkpoint")):
            with self.subTest(verb[0]):
                done = self.run_program(*verb, self.newest, code=ERROR)
                self.assertIn("model.safetensors", done.err)
        for verb in (("eval", "run"), ("logits", "run", "logits.safetensors")):
            with self.subTest(verb[0] + " of the run"):
                done = self.run_program(*verb)
                self.assertIn("step-00000060: model.safetensors", done.err)
                self.assertIn("run/step-00000050", done.err)
        (self.newest / "manifest.json").unlink()
        done = self.run_program("eval", self.newest, code=ERROR)
        self.assertIn("without its manifest.json", done.err)


if __name__ == "__main__":
    unittest.main()
