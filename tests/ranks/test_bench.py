"""bench step on several ranks: the time of all, and what each block waits for beside what the model expects."""
import json
import os
import re
import signal
import time
from pathlib import Path

from harness import USAGE
from ranks import RanksTest

START = 20e-6 + 5e-6  # seconds of a collective of two ranks without its bytes; docs/distributed.md
RATE = 0.8 * 5e9      # bytes per second between CPU ranks of one machine
BLOCKS = ("transformer.h.0", "transformer.h.1")
MODEL = {"hidden": 32, "seq_length": 32, "weights": 12 * 32 * 32 + 13 * 32}  # of a block


class BenchStepTest(RanksTest):
    def bench(self, ranks, *options, **named):
        command = ("launch", "--ranks", ranks) if ranks else ()
        return self.run_program(*command, "bench", "step", self.config, "--steps", 2, "--warmup", 1, *options, **named)

    def report(self, ranks, *options):
        report = json.loads(self.bench(ranks, "--json", "--ops", *options).out)
        self.assertEqual(report["ranks"], ranks)
        self.assertEqual(len(report["step_ms"]), 2)
        self.assertAlmostEqual(report["tokens_per_second"] * report["median_ms"] / 1e3 / (4 * MODEL["seq_length"]), 1)
        rows = {(r["layer"], r["group"]): r for r in report["communication"]}
        self.assertLess(sum(r["ms"] for r in rows.values()), report["profiled_ms"])
        for row in rows.values():
            self.assertGreater(row["exposed_ms"], 0, row)
            self.assertEqual(row["exposed_ms"], row["ms"], "CPU ranks send and compute in turns")
        # Only collectives of the whole step are not modelled, and every modelled collective is called.
        self.assertEqual({layer for (layer, _), r in rows.items() if r["modelled_exposed_ms"] is None}, {""})
        self.assertTrue(all(r["calls"] for r in rows.values()), rows)
        return rows

    def test_tensor_parallel_all_reduces_match_the_model(self):
        rows = self.report(2, "--set", "tensor_parallel_size=2")
        for block in BLOCKS:
            # Each of four micro-batches all-reduces two GEMMs forward and two backward.
            self.assertEqual(rows[block, "tp"]["calls"], 4 * 4)
            sent = MODEL["seq_length"] * MODEL["hidden"] * 4
            self.assertAlmostEqual(rows[block, "tp"]["modelled_exposed_ms"], 16e3 * (START + sent / RATE), places=6)
        self.assertFalse([group for _, group in rows if group not in ("tp", "world")], rows)

    def test_sharded_weight_collectives_match_the_model(self):
        rows = self.report(2, "--set", "zero_stage=3")
        for block in BLOCKS:
            row = rows[block, "dp_shard"]
            self.assertEqual(row["calls"], 2 * 3)  # each of two micro-batches: two all-gathers and a reduce-scatter
            modelled = 6e3 * (START + MODEL["weights"] * 4 / 2 / RATE)
            self.assertAlmostEqual(row["modelled_exposed_ms"] / modelled, 1, delta=0.02)  # each weight on a cache line
        self.assertFalse([group for _, group in rows if group in ("tp", "cp")], rows)

    def test_bench_and_profile_print_the_same_table(self):
        table = r"collectives of +group +calls +exposed ms +modelled ms +ms\n"
        row = r"transformer\.h\.0 +tp +16\.0 +[\d.]+ +0\.4164 +[\d.]+\n"
        tensor = ("--set", "tensor_parallel_size=2")
        for command, said in ((self.bench(2, *tensor).out, "median of 2 steps of 2 ranks"),
                              (self.launch(2, *tensor, "--profile", "profile.json").out, "step")):
            for part in (table, row, said):
                self.assertRegex(command, part)
        rows = re.findall(r"^(\S+|whole step) +(?:tp|world|dp) +\d", self.bench(2, *tensor).out, re.M)
        self.assertEqual(rows[1:3], list(BLOCKS), "in the order of the model")

    def test_one_process_prints_no_communication(self):
        report = json.loads(self.bench(0, "--json", "--ops").out)
        self.assertFalse({"ranks", "communication"} & report.keys())
        out = self.bench(0).out
        self.assertNotIn("collectives", out)
        self.assertIn("median of 2 steps: ", out)
        self.assertIn("tensor_parallel_size", self.bench(0, "--set", "tensor_parallel_size=2", code=USAGE).err)

    def test_a_killed_rank_is_named(self):
        for pause in (1, 4, 16, 64):  # in which it may not have begun its steps on a machine with other work
            launcher = self.start("launch", "--ranks", 2, "bench", "step", self.config, "--warmup", 10**9)
            time.sleep(pause)
            while len(ranks := Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()) < 2:
                time.sleep(0.1)
            os.kill(int(ranks[1]), signal.SIGKILL)
            done = self.finish(launcher)
            self.assertEqual(done.code, 128 + signal.SIGKILL, str(done))
            if re.search(r"rank 1 \(\S+\) is gone.*rank 0 \(\S+\) was at step \d+", done.err):
                return
        self.fail(str(done))
