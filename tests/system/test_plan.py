"""The verb plan: memory, limits and traffic of runs, on this machine and on GPUs that are only described."""
import json
import re
import subprocess
import sys
import unittest

from harness import DONE, PROGRAM, ROOT, USAGE, SystemTest


class PlanTest(SystemTest):
    def test_plan_predicts_and_advises(self):
        config = self.make_config(model={"intermediate_size": 100})
        out = self.run_program("plan", config).out
        self.assertIn("predicted step", out)
        self.assertIn("model.intermediate_size 100 is not a multiple of 16: its GEMMs cost what 112 costs", out)
        self.assertNotIn("intermediate_size", self.run_program("plan", self.make_config("round.json")).out)

    def test_plan_reports_the_roofline_of_every_op(self):
        out = self.run_program("plan", self.make_config()).out
        rows = re.findall(r"^(gemm|attention_fwd|attention_bwd|adamw) +(\d+) ", out, re.M)
        self.assertEqual({name for name, _ in rows}, {"gemm", "attention_fwd", "attention_bwd", "adamw"})
        self.assertEqual(dict(rows)["attention_fwd"], "4", "two blocks, two micro-batches")
        self.assertRegex(out, r"limit of the step: [\d.e-]+ ms")
        shapes = self.run_program("plan", self.make_config(), "--shapes").out
        self.assertIn("gemm 64x96x32", shapes, "tokens x (q, k, v) x hidden")

    def plan_on(self, gpu, config, *sets):
        flags = [word for s in sets for word in ("--set", s)]
        out = self.run_program("plan", ROOT / "configs" / f"{config}.json", "--gpu", gpu, *flags).out
        size = re.search(r"of (\d+) sequences of (\d+) tokens", out)
        return (int(size.group(1)) * int(size.group(2)), re.search(r"recomputation +(\w+)", out).group(1),
                float(re.search(r"predicted step +([\d.]+) ms", out).group(1)))

    def test_predicted_mfu_scales_with_the_configured_peak(self):
        shares = []
        for peak, shown in ((0, "989T"), (989.4, "989T"), (1978.8, "1.98P")):
            out = self.run_program("plan", ROOT / "configs" / "gpt2-124m.json", "--gpu", "h200", "--set",
                                   f"logging.peak_tflops={peak}").out
            share, of = re.search(r"(\d+) % MFU of (\S+) FLOP/s", out).groups()
            self.assertEqual(of, shown)
            shares.append(int(share))
        self.assertEqual(shares[0], shares[1])
        self.assertAlmostEqual(shares[2], shares[0] / 2, delta=1)

    def test_plan_works_for_a_described_gpu(self):
        tokens, recompute, ms = self.plan_on("h200", "gpt2-124m")
        self.assertEqual((tokens, recompute), (131072, "none"))
        self.assertGreater(ms, 524288 / 800e3 * 1e3, "beyond what an H200 can do")
        self.assertLess(ms, 524288 / 500e3 * 1e3)
        self.assertGreater(self.plan_on("a100", "gpt2-124m")[2], 2 * ms)
        tokens, recompute, _ = self.plan_on("h200", "llama-8b", "master_weights=bf16", "seq_length=8192")
        self.assertGreaterEqual(tokens, 8192)
        done = self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--gpu", "h100", "--set",
                                "adam.exp_avg_dtype=fp32", code=USAGE)
        self.assertIn("smaller with adam.exp_avg_dtype", done.err)
        done = self.run_program("plan", self.make_config(), "--gpu", "h300", code=USAGE)
        self.assertIn("known are b200, h200, h100, a100", done.err)

    def test_plan_reports_memory_and_time_of_offload(self):
        def plan(*sets, **code):
            flags = [word for s in ("master_weights=split", "micro_batch_size=2", *sets) for word in ("--set", s)]
            return self.run_program("plan", ROOT / "configs" / "qwen2.5-0.5b.json", "--gpu", "rtx4090", *flags, **code)

        out = plan("offload.optimizer=cpu", "global_batch_size=4").out
        self.assertRegex(out, r"host memory per rank[\s\S]*masters[\s\S]*optimizer[\s\S]*one pinned allocation, exact")
        link, exposed, share = re.search(r"host link .* back in each step, ([\d.]+) ms at 25.0G B/s each way at once, "
                                         r"of which ([\d.]+) ms, ([\d.]+) % of the step, are not hidden", out).groups()
        self.assertLess(float(exposed), float(link))
        batch = int(re.search(r"at most 5 % of a step from global_batch_size (\d+) on", out).group(1))
        self.assertGreater(float(share), 5)
        more = plan("offload.optimizer=cpu", f"global_batch_size={batch}").out
        self.assertLessEqual(float(re.search(r"([\d.]+) % of the step, are not hidden", more).group(1)), 5.05)
        self.assertNotIn("host link", plan("offload.optimizer=auto").out, "it fits")
        done = plan("offload.optimizer=cpu", "offload.host_memory_limit_gib=0.5", code=USAGE)
        self.assertRegex(done.err, r"offload.optimizer keeps [\d.]+ MiB in pinned host memory.* but 512.0 MiB")
        done = self.run_program("plan", ROOT / "configs" / "qwen2.5-0.5b.json", "--set", "offload.optimizer=cpu",
                                "--set", "device=cpu", code=USAGE)
        self.assertIn("offload.optimizer: cpu moves optimizer states from a GPU", done.err)

    def test_qlora_of_8b_fits_12_gib_and_of_70b_an_h200(self):
        qlora = ["lora.rank=16", "lora.base_precision=nf4", "init_from=base", "seq_length=2048", "micro_batch_size=1",
                 "global_batch_size=16", "recompute_granularity=full"]
        large = ["model.hidden_size=8192", "model.num_hidden_layers=80", "model.num_attention_heads=64",
                 "model.intermediate_size=28672"]
        for limit, sets in ((12, []), (48, large)):
            for base, code in (("nf4", DONE), ("none", USAGE)):
                flags = [word for s in (*qlora, *sets, f"lora.base_precision={base}", f"memory_limit_gib={limit}")
                         for word in ("--set", s)]
                self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--gpu", "h200", *flags, code=code)

    def test_offload_of_10b_fits_24_gb_and_of_70b_an_h200(self):
        def plan(gpu, *sets, **code):
            away = ["offload.optimizer=auto", "offload.activations=auto", "offload.params=auto",
                    "recompute_granularity=full", "grad_dtype=bf16", "checkpoint.async_save=off"]
            flags = [word for s in (*away, *sets) for word in ("--set", s)]
            return self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--gpu", gpu, *flags, **code)

        def moved(out):
            return [int(n) for n in re.search(r"of (\d+) of (\d+) units are in host memory", out).groups()]

        small = ["model.num_hidden_layers=42", "seq_length=1024", "micro_batch_size=16", "offload.host_memory_limit_gib=104"]
        done = plan("rtx4090", *small)
        self.assertRegex(done.out, r"parameters +10\.2G")
        self.assertTrue(0 < moved(done.err)[0] < 44, done.err)
        self.assertRegex(done.out, r"units +[\d.]+ GiB of weights and [\d.]+ GiB of gradients to the GPU and [\d.]+ GiB "
                                   r"back in each micro-batch.* at 25.0G B/s each way at once, of which [\d.]+ ms")
        size = int(re.search(r"hidden from micro_batch_size (\d+) on", done.out).group(1))
        self.assertTrue(1 < size < 16, size)
        plan("rtx4090", *small, "offload.params=none", code=USAGE)
        self.assertEqual(moved(plan("rtx4090", *small, "offload.params=cpu").err), [44, 44])

        large = ["model.hidden_size=8192", "model.num_hidden_layers=80", "model.num_attention_heads=64",
                 "model.intermediate_size=28672", "seq_length=4096", "micro_batch_size=4", "offload.host_memory_limit_gib=512"]
        done = plan("h200", *large, "optimizer=adamw_8bit")
        self.assertRegex(done.out, r"parameters +70\.6G")
        self.assertTrue(30 < moved(done.err)[0] < 60, done.err)
        many = self.run_program("plan", ROOT / "configs" / "llama-3b.json", "--gpu", "h200", "--ranks", "2", "--set",
                                "offload.params=cpu", "--set", "zero_stage=1", code=USAGE).err
        self.assertIn("offload.params: works on one rank, or on ranks that share out weights", many)
        done = plan("h200", *large, code=USAGE)
        self.assertRegex(done.err, r"offload.params keeps [\d.]+ MiB in pinned host memory, but 524288.0 MiB")

    def test_plan_reports_layers_that_are_faster_in_bf16(self):
        """With what it suggests for fp8.exclude the plan is the one it promised, and suggests nothing more."""
        def plan(*sets):
            flags = [word for s in ("micro_batch_size=32", "seq_length=1024", *sets) for word in ("--set", s)]
            out = self.run_program("plan", ROOT / "configs" / "qwen2.5-0.5b.json", "--gpu", "h200", *flags).out
            return out, float(re.search(r"limit of the step: ([\d.]+) ms", out).group(1))

        def steps(out):
            row = r"^  (\S+|all that .*?) {2,}(?:\d+ x \d+)? +([\d.]+) +[+-][\d.]+ %$"
            return {name: float(ms) for name, ms in re.findall(row, out, re.M)}

        out, ms = plan("precision=fp8_rowwise_gw_hp")
        suggested = re.search(r'faster in bf16: "fp8": {"exclude": (\[.*\])}', out).group(1)
        found = steps(out)
        self.assertEqual(len(found), 5, out)
        best = found.pop("all that are shorter, together")
        self.assertEqual({name for name, of in found.items() if of < ms}, set(json.loads(suggested)))
        for name, of in found.items():
            self.assertAlmostEqual(plan("precision=fp8_rowwise_gw_hp", f'fp8.exclude=["{name}"]')[1], of, delta=0.1, msg=name)
        left, reached = plan("precision=fp8_rowwise_gw_hp", f"fp8.exclude={suggested}")
        self.assertAlmostEqual(reached, best, delta=0.1)
        self.assertIn("none of them is faster in bf16", left)
        one = plan("precision=fp8_rowwise_gw_hp", "fp8.exclude=" + json.dumps([n for n in found if "gate" not in n]))[0]
        (last,) = steps(one).values()
        self.assertAlmostEqual(last, plan("precision=bf16")[1], delta=0.1, msg="without the only layer that is left")
        head = plan("precision=fp8_rowwise_gw_hp", "fp8.lm_head=true", "fp8.exclude=" + json.dumps([n for n in found if "gate" not in n]))[0]
        (last,) = steps(head).values()
        self.assertAlmostEqual(last, plan("precision=bf16")[1], delta=0.1, msg="a head alone is not in 8 bits either")
        self.assertNotIn("layers in 8 bits", plan("precision=mxfp8")[0], "emulated there")

    def test_auto_chooses_micro_batch_and_recomputation_that_fit(self):
        """The smaller the memory, the longer the step; where it hardly suffices, all is recomputed."""
        found = [self.plan_on("h200", "gpt2-1558m", f"memory_limit_gib={gib}") for gib in (140, 100, 60, 50, 40, 32)]
        self.assertEqual([mode for _, mode, _ in found[:2]], ["none", "selective"], found)
        self.assertIn("full", [mode for _, mode, _ in found])
        times = [ms for _, _, ms in found]
        self.assertEqual(times, sorted(times), found)
        model = {"hidden_size": 64, "num_hidden_layers": 8, "max_position_embeddings": 256}
        config = self.make_config(model=model, micro_batch_size="auto", global_batch_size=32, runtime_reserve_mib=0,
                                  loss_chunk_rows=256)
        for mib, expected in ((400, ("32", "none")), (9.2, ("1", "full"))):
            out = self.run_program("plan", config, "--set", f"memory_limit_gib={mib / 1024}").out
            size, mode = (re.search(what, out).group(1) for what in (r"of (\d+) sequences", r"recomputation +(\w+)"))
            self.assertEqual((size, mode), expected)
        done = self.run_program("plan", config, "--set", "memory_limit_gib=0.001", code=USAGE)
        self.assertIn("smaller with", done.err)

    def test_auto_is_near_the_best_of_a_sweep(self):
        """By the model of the limit, on a GPU that is not here: what fits of every power of two, and of recomputation
        more or less. The model with 7B parameters hardly fits: steps with larger micro-batches, for which much would
        have to be recomputed, are slower than with small ones."""
        modes = ("recompute_granularity=none", "recompute_granularity=selective", "recompute_granularity=full",
                 "recompute_granularity=full recompute_num_layers=3")
        for config, largest in (("gpt2-124m", 128), ("llama-1b", 64), ("qwen2.5-7b", 8)):
            reserve = "runtime_reserve_mib=256"
            auto = self.plan_on("h200", config, reserve)[2]
            swept = [self.plan_on("h200", config, reserve, f"micro_batch_size={2 ** i}", *mode.split())[2]
                     for i in range(largest.bit_length()) for mode in modes]
            self.assertLessEqual(auto, 1.02 * min(swept), (config, swept))

    def test_auto_sends_less_over_a_slow_network(self):
        """Weights travel with every micro-batch: between machines larger ones pay, at the price of recomputation."""
        sizes = []
        for nodes in (1, 16):
            out = self.run_program("plan", ROOT / "configs" / "qwen2.5-7b.json", "--gpu", "h200", "--ranks", 16,
                                   "--nodes", nodes, "--set", "zero_stage=3", "--set", "memory_limit_gib=12", "--set",
                                   "model.num_hidden_layers=8").out
            sizes.append(int(re.search(r"^ +16 +\d+ +(\d+) x", out, re.M).group(1)))
        self.assertEqual(sizes, [1, 4])

    def test_plan_counts_tensor_parallel_all_reduces(self):
        path = ROOT / "configs" / "gpt2-124m.json"
        config, layers, hidden = json.loads(path.read_text()), 12, 768
        tokens = config["global_batch_size"] * config["seq_length"]
        out = self.run_program("plan", path, "--gpu", "h200", "--ranks", 4, "--set", "tensor_parallel_size=4", "--set",
                               "recompute_granularity=selective").out
        self.assertIn("tensor_parallel_size 4, a step of", out)
        sent = float(re.search(r"^ +4 +1 +\d+ x \d+ +[\d.]+ GiB +([\d.]+) GiB", out, re.M).group(1))
        each = tokens * hidden * 2  # bytes, in bf16
        of_loss = tokens * 12  # the largest logit, the sum of exponentials, the target's logit
        self.assertAlmostEqual(sent, ((4 * layers + 2) * each + of_loss) * 2 * 3 / 4 / 2**30, delta=0.005 * sent)
        share, whole = (float(re.search(r"activations +([\d.]+) MiB", self.run_program(
            "plan", self.make_config("plan.json", precision="fp32", model={"hidden_size": 256, "intermediate_size": 1024,
                                                                            "max_position_embeddings": 512}),
            "--set", f"tensor_parallel_size={ranks}").out).group(1)) for ranks in (2, 1))
        self.assertLess(share, 0.75 * whole)
        none = self.run_program("plan", path, "--gpu", "h200", "--ranks", 1).out
        self.assertRegex(none, r"(?m)^ +1 +1 +\d+ x \d+ +[\d.]+ GiB +0 ")

    def test_plan_counts_context_parallel_keys_and_values(self):
        path = ROOT / "configs" / "gpt2-124m.json"
        config, layers, hidden = json.loads(path.read_text()), 12, 768
        out = self.run_program("plan", path, "--gpu", "h200", "--set", "context_parallel_size=4").out
        self.assertIn("4, as context_parallel_size says", out)
        tokens = config["global_batch_size"] * config["seq_length"]
        want = 3 * layers * tokens * 2 * hidden * 2 * 3 / 4 / 2**30  # two gathers and a sum, bf16, in GiB
        sent = float(re.search(r"sent for context +([\d.]+) GiB", out).group(1))
        self.assertAlmostEqual(sent, want, delta=0.005 * want)
        self.assertRegex(out, r"keys and values +ring: per block .* in 9 hops, .*\n +instead of gather: .* in 3 collectives, ")
        gather = self.run_program("plan", path, "--gpu", "h200", "--set", "context_parallel_size=4", "--set",
                                  "context_parallel_method=gather").out
        self.assertRegex(gather, r"keys and values +gather: .*\n +instead of ring: ")
        self.assertAlmostEqual(float(re.search(r"sent for context +([\d.]+) GiB", gather).group(1)), want, delta=0.005 * want)
        alone, many = (self.run_program("plan", path, "--gpu", "h200", "--ranks", 4, "--set",
                                        f"context_parallel_size={size}").out for size in (1, 4))
        self.assertIn("context_parallel_size 4, a step of", many)
        total = lambda text, unit: float(re.search(rf"^ +4 +1 +\d+ x \d+ .* ([\d.]+) {unit}", text, re.M).group(1))
        rest = total(alone, "MiB") / 1024  # of gradients and weights: the same, for all share out
        self.assertAlmostEqual(total(many, "GiB"), sent + rest, delta=0.005 * sent)
        one = self.run_program("plan", path, "--gpu", "h200", "--ranks", 4, "--set", "global_batch_size=1", "--set",
                               "context_parallel_size=4").out  # fewer sequences than ranks
        self.assertRegex(one, r"(?m)^ +4 +1 +1 x 1 ")

    NUMBER, SIZE = r"([\d.]+)", r"(?:0|[\d.]+ [KMGT]iB|\d+ B)"

    def ways_of(self, out):
        """The rows of the table of ways: (copies, shards, context, tensor, sequence) -> what stands behind them, the sizes
        in bytes; in the order of the table."""
        cells = [r"\d+ x \d+", *[self.SIZE] * 5, *[self.NUMBER[1:-1]] * 3]
        rows = re.findall(r"(?m)^ *(\d+) +(\d+) +(\d+) +(\d+) +(-|yes|no) +" + " +".join(f"({c})" for c in cells) + " ",
                          out.split("ways to divide")[1].split("memory of a rank")[0])
        names = ["micro", "memory", "copies", "shards", "context", "tensor", "compute", "exposed", "step"]
        scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
        sent = lambda text: float(text.split()[0]) * scale[(text + " B").split()[1]]
        return {(*map(int, row[:4]), row[4]): {name: cell if name in ("micro", "memory") else
                                               float(cell) if name in ("compute", "exposed", "step") else sent(cell)
                                               for name, cell in zip(names, row[5:])} for row in rows}

    def test_plan_compares_meshes(self):
        path = ROOT / "configs" / "gpt2-124m.json"
        out = self.run_program("plan", path, "--gpu", "h200", "--ranks", 8, "--nodes", 2).out
        ways, rest = self.ways_of(out), out.split("memory of a rank\n")[1]
        self.assertEqual(set(ways), {(c, 8 // c // t // x, x, t, s) for t in (1, 2, 4) for x in (1, 2, 4, 8) for c in (1, 2)
                                     for s in (("yes", "no") if t > 1 else "-") if 8 % (c * t * x) == 0})
        steps = [row["step"] for row in ways.values()]
        self.assertEqual(steps, sorted(steps))
        for way, row in ways.items():
            copies, shards, context, tensor, _ = way
            cut = 12 * 12 * 768**2 + 50257 * 768 + 12 * 7 * 768  # parameters of GPT-2 that tensor parallelism cuts,
            held = cut / tensor + 1024 * 768 + (12 * 6 + 2) * 768  # positions, norms, biases of outputs
            n = shards * context
            self.assertAlmostEqual(row["shards"], (n - 1) / n * held * (4 + 2), delta=0.01 * row["shards"], msg=str(way))
            want = 2 * (copies - 1) / copies * held / n * 4
            self.assertAlmostEqual(row["copies"], want, delta=0.01 * want, msg=str(way))
            self.assertEqual((row["context"] > 0, row["tensor"] > 0), (context > 1, tensor > 1), way)
        own = re.search(r"(?m)^ +8 +2 +(\d+ x \d+) +([\d.]+ GiB)", out)  # as configured, in the table before
        configured = ways[1, 8, 1, 1, "-"]
        self.assertEqual(own.groups(), (configured["micro"], configured["memory"]))
        self.assertRegex(rest, r"(?m)^ +1 +8 +1 +1 +- +[\d.]+ [GM]iB +[\d.]+ [GM]iB")
        waits = {(*map(int, row[:4]), row[4]): [float(ms) for ms in row[5:]] for row in re.findall(
            rf"(?m)^ *(\d+) +(\d+) +(\d+) +(\d+) +(-|yes|no) +{self.NUMBER} +{self.NUMBER} +{self.NUMBER} +(?:-|[\d.]+ of [\d.]+)"
            r" +(?:-|[\d.]+ of [\d.]+)$", rest)}
        self.assertEqual(set(waits), set(ways))
        for way, row in ways.items():
            self.assertAlmostEqual(sum(waits[way]), row["exposed"], delta=0.02, msg=str(way))
        two, muon = (self.ways_of(self.run_program("plan", path, "--gpu", "h200", "--ranks", 2, "--set", "global_batch_size=2",
                                                   "--set", "seq_length=64", "--set", f"optimizer={o}").out)
                     for o in ("adamw", "muon"))
        for sequence in ("yes", "no"):  # half of each matrix to its owner, and half of its update back, in bf16
            way = 1, 1, 1, 2, sequence
            self.assertEqual((muon[way]["copies"], muon[way]["shards"]), (0, 0), "both ranks share GEMMs")
            sent = muon[way]["tensor"] - two[way]["tensor"]
            self.assertAlmostEqual(sent, 12 * 12 * 768**2 * 2 / 2, delta=0.1 * sent)
        copies, shards, context, tensor, sequence = next(iter(ways))
        best = f"dp_replicate {copies}, dp_shard {shards}, cp {context}, tp {tensor}"
        best += " with sequence_parallel" if sequence == "yes" else ""
        self.assertIn(f"best: {best}: a step computes for", rest)
        self.assertRegex(rest, r"(?m)^next: dp_replicate .*: .*[+-][\d.]+")
        small = self.run_program("plan", path, "--gpu", "h200", "--ranks", 8, "--set", "global_batch_size=2",
                                 code=USAGE).out  # as configured; the others are listed
        self.assertRegex(small, r"not possible: dp_replicate .* and \d+ more: global_batch_size: 2 sequences do not divide")
        self.assertRegex(small, r"not possible: .*tp 8 and 1 more: tensor_parallel_size: num_attention_heads 12")

    def test_plan_attributes_tensor_parallel_sums_to_their_group(self):
        """On four ranks qwen2.5-1.5b replicates its two key heads, and each rank has parts of the gradients of norms: both are
        all-reduced once per step in the tensor-parallel group. There are no other shards, so nothing else is sent."""
        done = self.run_program("plan", ROOT / "configs" / "qwen2.5-1.5b.json", "--gpu", "h200", "--ranks", 4, "--set",
                                "recompute_granularity=selective")
        ways, hidden, layers = self.ways_of(done.out), 1536, 28
        tokens, passes = 256 * 4096, (4 * layers + 2) * hidden * 2  # bytes in bf16 of a token, in all passes
        loss, heads = 12 * tokens, layers * 2 * 128 * (hidden + 1) * 2 * 4  # of a token's loss; repeated key heads, fp32
        for sequence, gathers, norms in (("no", 0, 0), ("yes", layers, (2 * layers + 1) * hidden * 4)):
            row = ways[1, 1, 1, 4, sequence]
            again = gathers * 2 * hidden * 2 / 2  # of a token, gathered once more by backward, two for each block
            want = (tokens * (passes + again) + loss + heads + norms) * 2 * 3 / 4
            self.assertEqual((row["copies"], row["shards"]), (0, 0))
            self.assertAlmostEqual(row["tensor"], want, delta=0.005 * want)
            self.assertRegex(done.out, rf"(?m)^ +1 +1 +1 +4 +{sequence} +0.00 +0.00 +[1-9]")

    def test_plan_finds_sequence_parallelism_fastest(self):
        """For little memory: half of the parameters on a rank fit with half of the rows between GEMMs alone."""
        sets = ("seq_length=65536", "model.max_position_embeddings=65536", "global_batch_size=8", "micro_batch_size=1",
                "recompute_granularity=full", "model.num_hidden_layers=4", "memory_limit_gib=14")
        flags = [word for s in sets for word in ("--set", s)]
        plan = lambda *more, code=DONE: self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--gpu", "h100", "--ranks",
                                                         8, *flags, *more, code=code).out
        found = plan(code=USAGE)  # not as configured
        self.assertIn("best: dp_replicate 1, dp_shard 4, cp 1, tp 2 with sequence_parallel: ", found)
        self.assertIn("not possible: dp_replicate 1, dp_shard 4, cp 1, tp 2: memory: ", found)
        own = plan("--set", "tensor_parallel_size=2", "--set", "sequence_parallel=true")
        self.assertEqual(self.ways_of(own), self.ways_of(found))

    def test_plan_distinguishes_links_within_and_between_nodes(self):
        path = ROOT / "configs" / "gpt2-124m.json"

        def ways(*arguments):
            return self.ways_of(self.run_program("plan", path, "--gpu", "h200", *arguments, "--set", "global_batch_size=480",
                                                 "--set", "micro_batch_size=1", "--set", "context_parallel_method=gather").out)

        whole = ways("--ranks", 24, "--nodes", 4, "--network", 1)  # 6 ranks on a node
        self.assertEqual({way[3] for way in whole}, {1, 2, 3, 6})
        cut = ways("--ranks", 24, "--nodes", 3, "--network", 1)  # 8, so that every third group of three is on two
        self.assertEqual({way[3] for way in cut}, {1, 2, 4})
        asked = ways("--ranks", 24, "--nodes", 3, "--network", 1, "--set", "tensor_parallel_size=3")
        slow = asked[1, 8, 1, 3, "no"]["exposed"]
        self.assertEqual(set(asked) - set(cut), {(1, 8, 1, 3, "no")}, "what is configured, and nothing else across nodes")
        self.assertGreater(slow, 20 * whole[1, 8, 1, 3, "no"]["exposed"])
        out = self.run_program("plan", path, "--gpu", "h200", "--ranks", 20, "--set", "global_batch_size=480").out
        self.assertIn("ways to divide 20 ranks on 4 nodes", out, "of five ranks, since three have not as many each")
        done = self.run_program("plan", path, "--gpu", "h200", "--ranks", 20, "--nodes", 3, code=USAGE)
        self.assertIn("20 ranks do not divide among 3 nodes", done.err)

    def test_plan_reports_assumed_and_given_link_rates(self):
        path = ROOT / "configs" / "gpt2-124m.json"

        def plan(*arguments):
            out = self.run_program("plan", path, "--gpu", "h200", "--ranks", 8, "--set", "memory_limit_gib=100", *arguments).out
            return out, self.ways_of(out)[1, 8, 1, 1, "-"]

        out, usual = plan()
        self.assertRegex(out, r"of a GPU: GEMMs [\d.]+T FLOP/s, attention .*, copies [\d.]+T B/s; 100 GiB of memory may be used")
        self.assertIn("450 GB/s to others of its node, 50 GB/s to other nodes, of which 80 % are reached; for each collective 20 us,"
                      " and 5 us more per doubling", out)
        self.assertIn("tried: tensor_parallel_size with all ranks of a group on one node, without and with sequence_parallel; "
                      "context_parallel_size up to 64; one copy", out)
        # Stage 1 waits for the first of 14 sums (embedding, blocks, last norm), and for 14 gathers.
        for flags, more in ((("--latency", 120), 15 * 0.1), (("--doubling-latency", 105), 15 * 3 * 0.1)):
            self.assertAlmostEqual(plan(*flags)[1]["exposed"] - usual["exposed"], more, delta=0.02)
        bytes_alone = ("--latency", 0, "--doubling-latency", 0)
        half, all_of_it = (plan(*bytes_alone, "--bandwidth-share", share)[1]["exposed"] for share in (0.5, 1))
        self.assertAlmostEqual(half, 2 * all_of_it, delta=0.02)

    def test_plan_includes_the_configured_mesh(self):
        path = ROOT / "configs" / "gpt2-124m.json"
        across = self.run_program("plan", path, "--gpu", "h200", "--ranks", 16, "--nodes", 8, "--set",
                                  "tensor_parallel_size=4").out
        self.assertIn((1, 4, 1, 4, "no"), self.ways_of(across), "beyond a node")
        self.assertIn("as configured: dp_replicate 1, dp_shard 4, cp 1, tp 4: ", across)
        long = self.run_program("plan", path, "--gpu", "h200", "--ranks", 128, "--set", "context_parallel_size=128").out
        self.assertIn((1, 1, 128, 1, "-"), self.ways_of(long), "more than are tried")
        refused = self.run_program("plan", path, "--gpu", "h200", "--ranks", 16, "--set", "data_parallel_shard_size=8",
                                   code=USAGE)
        self.assertNotIn("as configured", refused.out)
        self.assertIn("1 copies in shards over 8 ranks do not make the 16 ranks", refused.err)

    def test_log_covers_only_the_configured_mesh(self):
        sets = ("context_parallel_size=2", "global_batch_size=1", "optimizer=lamb", "seq_length=16384",
                "model.max_position_embeddings=16384", "memory_limit_gib=2.65",
                "runtime_reserve_mib=256")
        flags = [word for s in sets for word in ("--set", s)]
        done = self.run_program("plan", ROOT / "configs" / "gpt2-124m.json", "--gpu", "h200", "--ranks", 2, *flags)
        self.assertRegex(done.out, "instead of (ring|gather): per block")
        self.assertEqual(done.err.count("more is recomputed than configured"), 1, done.err)

    def test_table_of_ranks_continues_after_meshes_that_do_not_fit(self):
        out = self.run_program("plan", ROOT / "configs" / "llama-8b.json", "--gpu", "h100", "--ranks", 0, "--set",
                               "micro_batch_size=1", "--set", "global_batch_size=16").out
        self.assertRegex(out, r"(?m)^ +1 +1  does not fit: memory: the run needs [\d.]+ MiB .* may be used")
        self.assertRegex(out, r"(?m)^ +16 +2 +1 x 1 +[\d.]+ GiB ")
        path = ROOT / "configs" / "gpt2-124m.json"
        out = self.run_program("plan", path, "--gpu", "h200", "--ranks", 0, "--nodes", 3, "--set", "global_batch_size=12").out
        self.assertEqual(re.findall(r"(?m)^ +(\d+) +3 +\d+ x \d+ ", out), ["3", "6", "12"])
        done = self.run_program("plan", path, "--gpu", "h200", "--ranks", 0, "--nodes", 3, code=USAGE)
        self.assertIn("global_batch_size 512 cannot be divided among 3, 6, 12 ... ranks", done.err)
        done = self.run_program("plan", path, "--gpu", "h200", "--ranks", 0, "--set", "data_parallel_replicate_size=3", code=USAGE)
        self.assertIn("global_batch_size 512 cannot be divided among 3, 6, 12 ... ranks", done.err)
        done = self.run_program("plan", path, "--gpu", "h200", "--ranks", 0, "--nodes", 65535, "--set", "seq_length=131072",
                                "--set", "model.max_position_embeddings=131072", "--set", "context_parallel_size=65536", code=USAGE)
        self.assertIn("the table ends at 1024 ranks, but the nodes and groups of", done.err)
        self.assertIn("need at least 4294901760", done.err)

    def test_json_has_the_forecast_and_its_assumptions(self):
        path = ROOT / "configs" / "gpt2-124m.json"
        flags = (path, "--gpu", "h200", "--ranks", 8)
        one = json.loads(self.run_program("plan", *flags, "--json").out)
        text = self.run_program("plan", *flags).out
        low, high = one["range_seconds"]
        self.assertLess(one["bound_seconds"], one["expected_seconds"])
        self.assertTrue(low < one["expected_seconds"] < high, one)
        self.assertRegex(text, r"expected step \S+, between \S+ and \S+ if each assumption errs by 20 %; no step beats \S+\n")
        self.assertEqual(re.findall(r"(?m)^  (\w+) +[\d.e-]+ +[-+][\d.]+ % step time if 20 % better", text),
                         [s["assumption"] for s in one["sensitivity"]])
        half = json.loads(self.run_program("plan", *flags, "--json", "--assume", "gemms=0.41").out)
        self.assertGreater(half["expected_seconds"], 1.5 * one["expected_seconds"])
        self.assertEqual(half["bound_seconds"], one["bound_seconds"])
        wrong = self.run_program("plan", *flags, "--assume", "gemms=0", code=USAGE)
        self.assertIn("--assume gemms=0: gemms is a share", wrong.err)
        found = json.loads(self.run_program("plan", *flags, "--search", "--price", 3, "--json").out)
        self.assertLessEqual(found["fastest"][0]["expected_seconds"], one["expected_seconds"])
        self.assertIn("precision fp8_tensorwise", [c["change"] for c in found["fastest"][-1]["one_change"]])
        wrong = self.run_program("plan", *flags, "--search", "--write", self.folder, code=USAGE)
        self.assertNotIn("ways are possible", wrong.out, "refused before the search")

    def test_plan_of_ranks_without_a_gpu_describes_this_machine(self):
        config = self.make_config(device="cpu")
        steps = [json.loads(self.run_program("plan", config, "--ranks", n, "--json").out) for n in (1, 2)]
        self.assertEqual([s["gpu"] for s in steps], [None, None])
        self.assertGreater(steps[1]["parts_seconds"]["gradients_and_weights"], 0, "sent, and hidden by nothing")
        self.assertIn("2 ranks, each with 1 thread; measured: GEMMs ", self.run_program("plan", config, "--ranks", 2).out)
        for flags in (("--ranks", 0), ("--ranks", 2, "--search")):
            self.assertIn("name one with --gpu", self.run_program("plan", config, *flags, code=USAGE).err)
        done = self.run_program("plan", config, "--ranks", 2, "--nodes", 2, code=USAGE)
        self.assertIn("--nodes requires --gpu", done.err)

    def test_published_step_times_are_compared(self):
        script = ROOT / "scripts" / "bench" / "plan" / "published.py"
        out = self.folder / "out.json"
        done = subprocess.run([sys.executable, script, "--program", PROGRAM, "--only", "nanochat", "--out", out],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(out.read_text())["rows"]
        self.assertEqual([r["name"] for r in rows], ["d26 BF16", "d26 FP8"])
        for row in rows:
            error = 100 * (row["expected_seconds"] / row["published_seconds"] - 1)
            self.assertAlmostEqual(row["error"], error, delta=0.06)
            self.assertIn(f"| {row['name']} | nanochat | 8 h100 | held out |", done.stdout)
        self.assertAlmostEqual(rows[0]["published_seconds"], 524288 / 630e3, places=6)
        none = subprocess.run([sys.executable, script, "--program", PROGRAM, "--only", "no such row"], capture_output=True, text=True)
        self.assertIn("no row has 'no such row' in its name", none.stderr)

    def test_ring_is_not_compared_beyond_512_ranks(self):
        out = self.run_program("plan", ROOT / "configs" / "gpt2-124m.json", "--gpu", "h200", "--set", "context_parallel_size=4096",
                               "--set", "seq_length=8192", "--set", "model.max_position_embeddings=8192").out
        self.assertRegex(out, r"keys and values +gather: .*\n +instead of ring: not compared with more than 512 ranks")

    def test_recomputation_chosen_for_memory_is_bit_exact(self):
        model = {"hidden_size": 64, "num_hidden_layers": 8, "max_position_embeddings": 64}
        common = dict(model=model, train_iters=3, schedule={"lr_warmup_iters": 0}, runtime_reserve_mib=0, micro_batch_size=4)
        plans = [self.run_program("plan", self.make_config("plan.json", **common, recompute_granularity=mode)).out
                 for mode in ("none", "full")]
        none, full = (float(re.search(r"total +([\d.]+) MiB", out).group(1)) for out in plans)
        losses = []
        for name, limit in (("wide", 0), ("narrow", (none + full) / 2048)):
            config = self.make_config(f"{name}.json", **common, save=name, memory_limit_gib=limit)
            done = self.run_program("train", config)
            losses.append(self.losses(name))
        self.assertEqual(losses[0], losses[1])
        self.assertIn("more is recomputed than configured", done.err + done.out)


if __name__ == "__main__":
    unittest.main()
