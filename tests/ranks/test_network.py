"""Ranks on two hosts that a cable joins: with delay and loss they are the run of one process; when it is cut in mid-step both
sides end, and the run goes on from its last checkpoint.
"""
import json
import os
import sys
import time
import unittest
from pathlib import Path

from harness import DONE
from network import ADDRESSES, CannotRun, Network
from ranks import PEER_LOST, RanksTest

LIMIT = 60  # seconds: the 8 s that are said below, and a machine with other work


class NetworkTest(RanksTest):
    def setUp(self):
        super().setUp()
        try:
            self.network = Network()
        except CannotRun as why:
            self.skipTest(str(why))
        self.addCleanup(self.network.stop)

    def start_on_hosts(self, *arguments, **more):
        """Without a secret: rank 0 puts one into the save folder, which both hosts see."""
        environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29600", **more)
        return [self.start_command([*self.network.inside(r), str(self.program), "train", str(self.config), *arguments],
                                   env=dict(environment, RANK=str(r))) for r in range(2)]

    def test_packet_delay_and_loss_do_not_change_losses(self):
        self.run_program("train", self.config, "--set", "save=one")
        for process in self.start_on_hosts("--set", "save=two"):
            done = self.finish(process)
            self.assertEqual(done.code, DONE, str(done))
        self.assert_same_losses("two", "one")
        self.assertEqual(list((self.folder / "two").glob(".job-*")), [], "the secret has been removed")

    def test_compares_low_communication_methods(self):
        self.network.stop()
        script = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "ranks" / "slow_network.py"
        self.make_data("text", tokens=20000)
        done = self.finish(self.start_command([
            sys.executable, str(script), "--athanor", str(self.program), "--short", "--steps", "6", "--train-data",
            "text/*_train_*.bin", "--valid-data", "text/*_val_*.bin", "--out", "report.json"]))
        self.assertEqual(done.code, DONE, str(done))
        rows = json.loads((self.folder / "report.json").read_text())["rows"]
        self.assertEqual(len(rows), 9)
        whole, alone = rows["adamw, gradients in fp32"], rows["adamw on one host"]
        self.assertAlmostEqual(whole["loss"], alone["loss"], places=4)
        self.assertGreater(whole["seconds_per_step"], 0.01, "there and back over a cable of 5 ms")

    def test_broken_network_link_ends_both_sides(self):
        processes = self.start_on_hosts("--set", "train_iters=100000", "--set", "schedule.lr_decay_iters=12",
                                        ATHANOR_SOCKET_IFNAME="=eth0")
        self.assertTrue(self.wait_for_step(processes[0], 6))
        self.network.cut()
        begin = time.monotonic()
        for rank, process in enumerate(processes):
            done = self.finish(process)
            self.assertEqual(done.code, PEER_LOST, str(done))
            self.assertRegex(done.err, rf"rank {1 - rank} \(\S+\) gave no sign of life for 8 s", str(done))
            self.assertRegex(done.err, rf"rank {rank} \(\S+\) was at (saving |evaluation after )?step \d+")
            self.assertLess(time.monotonic() - begin, LIMIT, str(done))
        last = int(self.checkpoints()[-1][5:])
        self.launch(2, "--set", f"train_iters={last + 2}", "--set", "schedule.lr_decay_iters=12")
        self.assertEqual(max(self.losses()), last + 2)


if __name__ == "__main__":
    unittest.main()
