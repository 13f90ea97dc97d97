"""Ranks that mpirun starts: over TCP, found by its variables, and over MPI itself through the plug-in."""
import os
import shutil
import subprocess
import tempfile
import unittest

from harness import DONE, PROGRAM, REQUEUE, ROOT, TIMEOUT, USAGE
from ranks import RanksTest

PLUGIN = PROGRAM.parent / "libathanor_mpi.so"
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

    def test_signal_makes_one_checkpoint(self):
        process = self.start(2, self.config, "--set", "train_iters=100000", "--set", "save_interval=0", env=self.variables)
        self.assertTrue(self.wait_for_step(process, 3))
        process.send_signal(10)  # SIGUSR1, which mpirun passes on
        self.assertEqual(self.finish(process).code, REQUEUE)
        self.assertEqual(self.checkpoints(), [f"step-{max(self.losses()):08d}"])

    @unittest.skipUnless(PLUGIN.exists(), "libathanor_mpi.so was not built: no MPI")
    def test_mpi_is_the_same_run_to_the_bit(self):
        self.one()
        # Parts of products and a ring of keys too, with sums of gradients in bf16.
        shared = ("tensor_parallel_size=2", "context_parallel_size=2", "context_parallel_method=ring", "grad_dtype=bf16")
        for ranks, stage, precision, more in ((2, 1, "fp32", ()), (4, 3, "fp32", ()), (2, 2, "bf16", ()), (4, 1, "bf16", shared)):
            both = [word for key in (f"zero_stage={stage}", f"precision={precision}", *more) for word in ("--set", key)]
            for transport in ("tcp", "mpi"):
                done = self.mpirun(ranks, *both, "--set", f"transport={transport}", "--set", f"save={transport}")
                self.assertEqual("tensors travel by Open MPI" in done.err, transport == "mpi", done.err)
            self.assertEqual(self.losses("tcp"), self.losses("mpi"))
            if precision == "fp32":
                self.assert_same_losses("mpi", "one")
            weights = [{p.name: p.read_bytes() for p in (self.folder / t / "step-00000012").glob("*.safetensors")}
                       for t in ("tcp", "mpi")]
            self.assertGreater(len(weights[0]), 0)
            self.assertTrue(weights[0] == weights[1], both)
            for transport in ("tcp", "mpi"):
                shutil.rmtree(self.folder / transport)

    @unittest.skipUnless(PLUGIN.exists(), "libathanor_mpi.so was not built: no MPI")
    def test_bench_over_mpi(self):
        command = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else []), "-n", "2", str(PROGRAM),
                   "bench", "comm", "--transport", "mpi", "--max-bytes", "65536", "--seconds", "0.02", "--json"]
        done = subprocess.run(command, env=dict(os.environ, **self.variables), capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn('"transport":"mpi"', done.stdout)


class WithoutMpiTest(RanksTest):
    def test_absent_plugin_says_what_to_do(self):
        alone = self.folder / "athanor"
        shutil.copy(PROGRAM, alone)
        self.program = alone
        done = self.launch(2, "--set", "transport=mpi", code=USAGE)
        self.assertIn("libathanor_mpi.so", done.err)
        self.assertIn("set transport to tcp", done.err)
        needed = subprocess.run(["ldd", str(alone)], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("mpi", needed)


if __name__ == "__main__":
    unittest.main()
