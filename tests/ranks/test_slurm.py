"""Runs under a real Slurm of four virtual nodes, through the batch files of scripts/launch: the losses of one process; stop by
signal, requeue and resume; preemption; a rank that dies.
"""
import os
import re
import signal
import socket
import time
import unittest

from harness import PROGRAM, ROOT
from ranks import RanksTest
from slurm import CannotRun, Slurm

LAUNCH = ROOT / "scripts" / "launch"
SECONDS = 300


class SlurmTest(RanksTest):
    @classmethod
    def setUpClass(cls):
        try:
            cls.slurm = Slurm(nodes=4)
        except CannotRun as why:
            raise unittest.SkipTest(str(why)) from None
        cls.addClassCleanup(cls.slurm.stop)

    def environment(self):
        # The virtual nodes have no names that resolve: ranks meet at the loopback address.
        return {"ATHANOR": str(PROGRAM), "MASTER_ADDR": "127.0.0.1", "MAX_RESTARTS": "1"}

    def batch(self, script, *arguments, partition="low", nodes=4, tasks=1):
        done = self.slurm.run("sbatch", "--parsable", "-p", partition, "-N", str(nodes), "--ntasks-per-node", str(tasks),
                              "--time", "10", "--output", "job-%j.log", str(LAUNCH / script), str(self.config),
                              *map(str, arguments), cwd=self.folder, env=self.environment())
        return done.stdout.strip()

    def log(self, job):
        path = self.folder / f"job-{job}.log"
        return path.read_text() if path.exists() else ""

    def wait(self, job, what, reached, seconds=SECONDS):
        end = time.monotonic() + seconds
        while not reached(self.slurm.job(job)):
            if time.monotonic() > end:
                self.fail(f"{what} did not come within {seconds} s\n{self.slurm.job(job)}\n{self.log(job)}")
            time.sleep(0.1)

    def wait_end(self, job):
        self.wait(job, "the end", lambda j: j["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"))
        return self.slurm.job(job)

    def reached_step(self, run, step):
        return lambda job: (self.folder / run / "metrics.jsonl").exists() and max(self.losses(run), default=0) >= step

    def test_nodes_match_one_process(self):
        self.run_program("train", self.config, "--set", "save=one")
        for script, nodes, tasks in (("one_node.sbatch", 1, 2), ("many_nodes.sbatch", 4, 1)):
            job = self.batch(script, "--set", f"save={script}", nodes=nodes, tasks=tasks)
            self.assertEqual(self.wait_end(job)["JobState"], "COMPLETED", self.log(job))
            self.assertIn(f"all {nodes * tasks} ranks have joined", self.log(job))
            self.assert_same_losses(script, "one")

    def srun(self, *arguments, env=None):
        """The README's command: srun alone, without a batch file and a secret."""
        return self.slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", "--time", "10", str(PROGRAM), "train",
                              str(self.config), *arguments, cwd=self.folder, env=env or {}, check=False, timeout=SECONDS)

    def test_srun_alone_needs_no_secret(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            try:
                s.connect(("192.0.2.1", 9))  # sends nothing, but chooses an address of this machine
            except OSError:
                self.skipTest("this machine has no address but the loopback one")
            address = s.getsockname()[0]
        self.run_program("train", self.config, "--set", "save=one")
        done = self.srun("--set", "save=two", env={"MASTER_ADDR": address})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_losses("two", "one")
        self.assertEqual(list((self.folder / "two").glob(".job-*")), [], "the secret has been removed")

    def test_unresolvable_host_name_is_reported_early(self):
        done = self.srun("--set", "timeouts.connect=12")  # the virtual nodes have no names that resolve
        self.assertNotEqual(done.returncode, 0)
        said = done.stderr + done.stdout
        self.assertRegex(said, r"has not reached rank 0 at n\d: the name cannot be resolved: .*set MASTER_ADDR.*retrying")

    def test_resumes_after_signal_and_requeue(self):
        """Sends by hand the signal that --signal=USR1@300 sends before the limit."""
        steps = ("--set", "train_iters=100000", "--set", "save_interval=0", "--set", "eval_interval=0")
        job = self.batch("requeue.sbatch", *steps)
        self.wait(job, "step 3", self.reached_step("run", 3))
        self.slurm.run("scancel", "--signal=USR1", job)
        self.wait(job, "the second turn", lambda j: j["Restarts"] == "1" and j["JobState"] == "RUNNING")
        [first] = self.checkpoints()
        step = int(first[5:])
        self.wait(job, "steps of the second turn", self.reached_step("run", step + 3))
        self.slurm.run("scancel", "--signal=USR1", job)
        self.wait(job, "the third turn", lambda j: j["Restarts"] == "2")
        self.slurm.run("scancel", job)
        self.assertIn(f"from run/{first}", self.log(job))
        self.assertEqual(len(re.findall("User defined signal 1", self.log(job))), 2, self.log(job))
        self.assertEqual(sorted(self.losses()), list(range(1, max(self.losses()) + 1)), "every step once")

    def test_preempted_job_resumes(self):
        low = self.batch("requeue.sbatch", "--set", "train_iters=100000", "--set", "save_interval=0", "--set", "eval_interval=0")
        self.wait(low, "step 3", self.reached_step("run", 3))
        high = self.batch("many_nodes.sbatch", "--set", "save=high", partition="high")
        self.assertEqual(self.wait_end(high)["JobState"], "COMPLETED", self.log(high))
        self.assertEqual(len(self.checkpoints()), 1, f"SIGTERM made a checkpoint\n{self.log(low)}")
        self.wait(low, "its second turn", lambda j: j["Restarts"] == "1" and j["JobState"] == "RUNNING")
        self.wait(low, "resumption", lambda j: f"from run/{self.checkpoints()[0]}" in self.log(low))
        self.slurm.run("scancel", low)

    def test_killed_rank_restarts_all_ranks_once_and_then_ends_the_job(self):
        job = self.batch("many_nodes.sbatch", "--set", "train_iters=100000")
        self.wait(job, "step 5", self.reached_step("run", 5))
        os.kill(self.pid_of(job, rank=2), signal.SIGKILL)
        self.wait(job, "the restart", lambda j: "after 0 restarts" in self.log(job))
        self.wait(job, "its first step", self.reached_step("run", max(self.losses()) + 1))
        self.assertIn("from run/step-0", self.log(job))
        os.kill(self.pid_of(job, rank=2), signal.SIGKILL)
        begin = time.monotonic()
        end = self.wait_end(job)
        self.assertLess(time.monotonic() - begin, 200, self.log(job))
        self.assertEqual(end["JobState"], "FAILED", self.log(job))
        self.assertRegex(self.log(job), r"rank 2 \(\S+\) is gone")
        self.assertIn("after 1 restarts", self.log(job))
        self.assertEqual(self.pids(), [], "no orphan")

    def pids(self):
        return [p for p in self.slurm.left() if os.path.realpath(f"/proc/{p}/exe") == str(PROGRAM)]

    def pid_of(self, job, rank):
        for pid in self.pids():
            variables = dict(v.split(b"=", 1) for v in open(f"/proc/{pid}/environ", "rb").read().split(b"\0") if b"=" in v)
            if variables.get(b"SLURM_JOB_ID") == job.encode() and variables.get(b"SLURM_PROCID") == str(rank).encode():
                return pid
        self.fail(f"rank {rank} of job {job} does not run")


if __name__ == "__main__":
    unittest.main()
