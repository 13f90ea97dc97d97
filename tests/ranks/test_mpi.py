"""Ranks that mpirun starts, found by its variables."""
import shutil
import subprocess
import tempfile
import unittest

from harness import PROGRAM, REQUEUE, ROOT
from ranks import RanksTest

MPIRUN = ROOT / "scripts" / "launch" / "mpirun.sh"


@unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed: scripts/setup.sh --tests")
class MpirunTest(RanksTest):
    def setUp(self):
        super().setUp()
        self.program = MPIRUN
        # Open MPI keeps its sockets and shared memory in a folder, and talks to itself over the loopback interface alone.
        self.sessions = tempfile.mkdtemp(prefix="ompi-")  # a short path: it holds sockets
        self.addCleanup(shutil.rmtree, self.sessions, ignore_errors=True)
        self.variables = {"ATHANOR": str(PROGRAM), "TMPDIR": self.sessions, "OMPI_MCA_oob_tcp_if_include": "lo",
                          "OMPI_MCA_btl_tcp_if_include": "lo", "XDG_RUNTIME_DIR": str(self.folder)}

    def mpirun(self, ranks, *arguments, **named):
        return self.run_program(ranks, self.config, *arguments, env=self.variables, **named)

    def one(self):
        subprocess.run([str(PROGRAM), "train", str(self.config), "--set", "save=one"], cwd=self.folder, check=True,
                       capture_output=True)

    def test_tcp_ranks_are_found_by_mpiruns_variables(self):
        self.one()
        done = self.mpirun(2, "--set", "save=two")
        self.assertIn("(Open MPI)", done.err)
        self.assert_same_losses("two", "one")

    def test_signal_writes_one_checkpoint(self):
        process = self.start(2, self.config, "--set", "train_iters=100000", "--set", "save_interval=0", env=self.variables)
        self.assertTrue(self.wait_for_step(process, 3))
        process.send_signal(10)  # SIGUSR1, which mpirun passes on
        self.assertEqual(self.finish(process).code, REQUEUE)
        self.assertEqual(self.checkpoints(), [f"step-{max(self.losses()):08d}"])


if __name__ == "__main__":
    unittest.main()
