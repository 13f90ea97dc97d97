"""The whole program through its CUDA backend: on the emulated GPU (tests/cuda/emulated), or, with ATHANOR_CUDA_PROGRAM
set to a program on a machine with a GPU, on that. Losses follow the CPU backend's, resuming repeats bits, failures end
well.
"""
import json
import os
import signal
import socket
import unittest
from pathlib import Path

from harness import DONE, ERROR, PROGRAM, REQUEUE, USAGE, SystemTest, with_options

PEER_LOST = 4
EMULATED = PROGRAM.parent / "tests" / "athanor_emulated"
CUDA_PROGRAM = Path(os.environ.get("ATHANOR_CUDA_PROGRAM", EMULATED))
ON_EMULATOR = CUDA_PROGRAM == EMULATED

LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "intermediate_size": 48}
TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2, "fp16": 5e-3}


@unittest.skipUnless(CUDA_PROGRAM.exists(), f"no CUDA program at {CUDA_PROGRAM} (built without CUDA's headers)")
class CudaTest(SystemTest):
    program = CUDA_PROGRAM

    def config(self, name="tiny.json", **changes):
        base = {"train_iters": 6, "schedule": {"lr_warmup_iters": 2, "lr_decay_iters": 6}, "save_interval": 3,
                "device": "cuda", "autotune_seconds": 0, "tuning_cache": "none"}
        return self.make_config(name, **with_options(base, changes))

    def curve(self, save, **changes):
        self.run_program("train", self.config(f"{save}.json", save=save, **changes))
        return self.losses(save)

    def weights(self, run, step=6):
        return (self.folder / run / f"step-{step:08d}" / "model.safetensors").read_bytes()


class TrainingTest(CudaTest):
    def test_losses_match_the_cpu(self):
        for family in ({}, LLAMA):
            for precision, tolerance in TOLERANCE.items():
                kind = family.get("model_type", "gpt2")
                with self.subTest(family=kind, precision=precision):
                    here = self.curve(f"{kind}-{precision}", model=family, precision=precision)
                    there = self.curve(f"{kind}-{precision}-cpu", model=family, precision=precision, device="cpu")
                    self.assertEqual(list(here), list(there))
                    for step, loss in here.items():
                        self.assertAlmostEqual(loss, there[step], delta=tolerance * there[step], msg=f"step {step}")

    def test_graphs_and_recomputation_are_bit_exact(self):
        plain = self.curve("plain", precision="bf16", cuda_graph=False)
        for recompute in ("none", "selective", "full"):
            for graph in (True, False):
                save = f"{recompute}-{graph}"
                other = self.curve(save, precision="bf16", cuda_graph=graph, recompute_granularity=recompute)
                self.assertEqual(plain, other, save)
                self.assertEqual(self.weights("plain"), self.weights(save), save)

    def test_resumed_run_is_bit_exact(self):
        whole = self.curve("whole", precision="bf16", model=LLAMA)
        config = self.config("stopped.json", save="stopped", precision="bf16", model=LLAMA)
        self.run_program("train", config, "--set", "exit_duration_in_mins=1e-9", code=REQUEUE)
        self.run_program("train", config)
        self.assertEqual(whole, self.losses("stopped"))
        self.assertEqual(self.weights("whole"), self.weights("stopped"))

    def test_evaluation_and_sampling_use_the_gpu(self):
        (self.folder / "text.txt").write_text("".join(f"the {i} times quick brown fox. " for i in range(4000)))
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "words/text")
        config = self.config(precision="bf16", eval_interval=3, eval_iters=1, train_data="words/text_train_*.bin",
                             valid_data="words/text_val_*.bin")
        self.run_program("train", config)
        evaluations = [r for r in self.records() if r["event"] == "eval"]
        self.assertEqual([r["step"] for r in evaluations], [3, 6])
        for words in (("eval", "run/step-00000006", "--data", "words/*_val_*.bin", "--json"),
                      ("sample", "--checkpoint", "run", "--prompt", "a", "--prompt", "the", "--max-tokens", "3", "--json")):
            self.assertIn("loss" if words[0] == "eval" else "text", json.loads(self.run_program(*words).out.splitlines()[-1]))
            if ON_EMULATOR:  # without memory on the GPU neither can do anything
                failed = self.run_program(*words, code=ERROR, env={"EMULATED_FAILURE": "cudaMalloc:1:2"})
                self.assertIn("bytes were requested", failed.err)

    def test_autotuning_choices_are_cached_and_restored(self):
        tried = {"precision": "bf16", "autotune_seconds": 600, "tuning_cache": "cache",
                 "model": {"hidden_size": 64, "max_position_embeddings": 32}}
        first = self.run_program("train", self.config("one.json", save="one", **tried))
        self.assertRegex(first.err, "GEMMs: .* attention: 2 problems, 2 tried")
        [cache] = (self.folder / "cache").glob("gemms-*.json")
        self.assertEqual(len(list((self.folder / "cache").glob("attention-*.plan"))), 2)
        chosen = (self.folder / "one" / "step-00000006" / "tuning.json").read_text()
        self.assertEqual(len(json.loads(chosen)["attention"]), 2)
        resumed = self.run_program("train",
                                   self.config("one.json", save="one", train_iters=7, schedule={"lr_decay_iters": 7},
                                               **tried))
        self.assertNotIn("different ones", resumed.err)  # no search: the checkpoint's choices stand
        self.assertEqual((self.folder / "one" / "step-00000007" / "tuning.json").read_text(), chosen)
        cache.write_text("{")
        damaged = self.run_program("train", self.config("two.json", save="two", **tried))
        self.assertIn("is not used", damaged.err)

    def test_benches_and_checks_run_the_gemms_of_training(self):
        config = self.config(precision="bf16", autotune_seconds=1, tuning_cache="cache", global_batch_size=2,
                             attention="builtin")
        first = self.run_program("bench", "step", config, "--steps", "1", "--warmup", "2", "--json")
        self.assertRegex(first.err, r"GEMMs: \d+ different ones, [1-9]\d* tried")
        self.assertGreater(json.loads(first.out)["host_cores"], 0)
        self.assertRegex(json.loads(first.out)["attention"], "^attention: ")
        again = self.run_program("check-backend", config, "--steps", "1")
        self.assertIn("\nattention: ", again.out)
        self.assertRegex(again.err, r"GEMMs: \d+ different ones, \d+ tried")

    def test_bench_gemms_lists_quantized_gemms(self):
        config = self.config(precision="fp8_blockwise", global_batch_size=2, autotune_seconds=0)
        found = json.loads(self.run_program("bench", "gemm", config, "--json", "--rates", "8e14", "4e12").out)
        self.assertEqual((found["rates"]["quantized"], found["rates"]["floats"]), (16e14, 8e14 / 15), "by ratio")
        kinds = {p["factors"] for p in found["gemms"]}
        self.assertEqual(kinds, {"matrices", "quantized"})
        for p in found["gemms"]:
            self.assertAlmostEqual(p["of_rate"], p["flops"] / (8e14 if p["factors"] == "matrices" else 16e14), places=9)
            self.assertRegex(p["method"]["words"], r"algorithm \d+")
        self.assertTrue(any("f32 per 1x128 and f32 per 128x128" in p["gemm"] for p in found["gemms"]), found)
        text = self.run_program("bench", "gemm", config, "--set", "precision=mxfp8", "--rates", "8e14", "4e12").out
        self.assertIn(", of dequantized values 53.3T", text)

    def test_bench_gemms_lists_gemms_with_fused_epilogues(self):
        config = self.config(precision="bf16", global_batch_size=2, autotune_seconds=0)
        found = json.loads(self.run_program("bench", "gemm", config, "--json", "--rates", "8e14", "4e12").out)
        for p in found["gemms"]:
            self.assertRegex(p["method"]["words"], r"algorithm \d+")
        self.assertTrue(any(p["within"] for p in found["gemms"] if not p["launches"]), "epilogues in parts")

    def test_first_record_names_the_attention_implementation_and_reason(self):
        model = {"hidden_size": 64, "max_position_embeddings": 32}
        documents = {"documents": {"reset_attention_mask": True, "eod_token_id": 0}}
        for i, (changes, words) in enumerate(((dict(attention="builtin"), "by the program's own kernels: as configured"),
                                              (dict(attention="cudnn"), "by cuDNN's, as configured"),
                                              (documents, "by the program's own kernels, without autotuning"),
                                              (dict(documents, attention="cudnn"), "by cuDNN's, as configured"))):
            save = f"run{i}"
            done = self.run_program("train", self.config(f"{save}.json", save=save, precision="bf16", model=model,
                                                         train_iters=1, **changes))
            for text in (self.records(save)[0]["text"], done.err):
                self.assertIn(f"attention: forward {words}; backward {words}", text)

    @unittest.skipUnless(ON_EMULATOR, "libraries of a real machine stay where they are")
    def test_missing_library_ends_training_but_not_cpu_commands(self):
        environment = dict(os.environ, EMULATED_CUBLASLT="none")
        config = self.config(device="auto", save="run")
        done = self.run_program("train", config, code=ERROR, env=environment)
        self.assertIn("install apt: libcublas-13-0, or pip: nvidia-cublas", done.err)
        plan = self.run_program("plan", config, env=environment)
        self.assertIn("using the CPU, although there is a GPU; cuBLASLt", plan.err)
        self.run_program("plan", self.config("cuda.json"), code=ERROR, env=environment)

    def test_cudnn_attention_follows_the_builtin_kernels(self):
        model = {"hidden_size": 64, "max_position_embeddings": 32}
        own = self.curve("own", precision="bf16", model=model, attention="builtin")
        other = self.curve("cudnn", precision="bf16", model=model, attention="cudnn")
        for step, loss in own.items():
            self.assertAlmostEqual(loss, other[step], delta=1e-2 * loss, msg=f"step {step}")

    def test_memory_used_is_reported_from_the_device(self):
        self.curve("run")
        step = [r for r in self.records() if r["event"] == "step"][-1]
        self.assertGreater(step["memory_used"], 0)


@unittest.skipUnless(ON_EMULATOR, "what the emulated GPU's sensors say is known")
class SensorTest(CudaTest):
    def test_every_step_records_power_temperature_and_clocks(self):
        self.curve("run")
        for step in [r for r in self.records() if r["event"] == "step"]:
            sensors = ("gpu_watts", "gpu_celsius", "gpu_sm_mhz", "gpu_memory_mhz", "gpu_throttle")
            self.assertEqual([step[k] for k in sensors], [690, 61, 1755, 3201, 0])
        self.run_program("report", "run")
        page = (self.folder / "run" / "report.html").read_text()
        for part in ("GPU power", "GPU temperature", "GPU clock", "Where the memory goes", "activations"):
            self.assertIn(part, page)

    def test_thermal_throttling_warns_and_the_power_limit_does_not(self):
        alarms = lambda: [r["text"] for r in self.records() if r["event"] == "warn"]
        self.run_program("train", self.config(), env={"EMULATED_THROTTLE": "0x44"})
        self.assertEqual([a for a in alarms() if "GPU clocks" in a],
                         ["GPU clocks are held down: heat (by the hardware)"])
        self.run_program("train", self.config("limit.json", save="limit"), env={"EMULATED_THROTTLE": "0x4"})
        records = self.records("limit")
        self.assertEqual([r for r in records if r["event"] == "warn" and "GPU clocks" in r["text"]], [])
        self.assertEqual([r["gpu_throttle"] for r in records if r["event"] == "step"], [4] * 6)

    def test_missing_nvml_changes_nothing_and_prints_nothing(self):
        there = self.curve("there")
        config = self.config("without.json", save="without")
        quiet = self.run_program("train", config, env={"EMULATED_FAILURE": "nvmlInit_v2:1:9"})
        self.assertNotIn("NVML", quiet.err + quiet.out)
        self.assertEqual(self.losses("without"), there)
        self.assertNotIn("gpu_watts", [r for r in self.records("without") if r["event"] == "step"][0])
        debug = self.run_program("train", self.config("debug.json", save="debug", logging={"level": "debug"}),
                                 env={"EMULATED_FAILURE": "nvmlInit_v2:1:9"})
        self.assertEqual(debug.err.count("Driver Not Loaded"), 1)


@unittest.skipUnless(ON_EMULATOR, "CUPTI is emulated")
class ProfileTest(CudaTest):
    def profile(self, save="run", **env):
        config = self.config(f"{save}.json", save=save, eval_interval=3, eval_iters=1)
        done = self.run_program("train", config, "--profile", f"{save}-trace.json", env=env)
        return done, json.loads((self.folder / f"{save}-trace.json").read_text())

    def rows(self, out):
        table = out[out.index("op, per step"):]
        return {line.split()[0]: line.split() for line in table.splitlines()[1:] if line[:1] not in (" ", "")}

    def test_table_and_trace_contain_kernels_of_replayed_graphs(self):
        plain = self.curve("plain", eval_interval=3, eval_iters=1)
        done, trace = self.profile()
        self.assertEqual(self.losses("run"), plain, "a profile changes no bit")
        self.assertNotIn("CUPTI", done.err)
        for part in ("times: kernels, by CUPTI 13.0.1", "the GPU was idle", "communication that no computing hid: 0 ms"):
            self.assertIn(part, done.out)
        rows = self.rows(done.out)
        for op in ("gemm", "adamw", "attention_fwd", "attention_bwd"):
            self.assertGreater(float(rows[op][5]), 0, rows[op])
        names, kernels = {e["name"] for e in trace}, {e.get("cat") for e in trace}
        self.assertLessEqual({"gemm", "adamw", "attention_bwd", "[copy]"}, names)
        self.assertIn("cublasLtMatmul", kernels)

    def test_missing_cupti_falls_back_to_events_and_is_reported(self):
        plain = self.curve("plain", eval_interval=3, eval_iters=1)
        for kind, why in (("none", "libcupti.so.13 is nowhere"), ("old", "version 12.8.0")):
            done, trace = self.profile(save=kind, EMULATED_CUPTI=kind)
            self.assertEqual(self.losses(kind), plain)
            for part in (why, "cuda-cupti-13-0", "nvidia-cuda-cupti", "launched one by one"):
                self.assertIn(part, done.err)
            self.assertIn("times: events around every op, launched one by one", done.out)
            self.assertGreater(float(self.rows(done.out)["gemm"][5]), 0)
            self.assertIn("gemm", {e["name"] for e in trace})

    def test_lost_records_are_reported(self):
        done, _ = self.profile(EMULATED_CUPTI="full")
        self.assertRegex(done.out, r"[0-9]+ records of activities were lost: times are too low")

    def test_failing_call_ends_the_profile_and_not_the_run(self):
        done, _ = self.profile(EMULATED_FAILURE="cuptiActivityFlushAll:5:999")
        self.assertIn("CUPTI: cuptiActivityFlushAll: CUPTI_ERROR_UNKNOWN (999)", done.err)
        self.assertIn("times: events around every op", done.out)
        self.assertEqual(max(self.losses()), 6)

    def test_devices_lists_cupti(self):
        libraries = json.loads(self.run_program("devices", "--json").out)["libraries"]
        self.assertIn("CUPTI", [l["name"] for l in libraries])


@unittest.skipUnless(ON_EMULATOR, "failures are planned on the emulated GPU only")
class FailureTest(CudaTest):
    def fails(self, says, code=ERROR, config=None, **env):
        done = self.run_program("train", config or self.config(), code=code, env=env)
        for part in says:
            self.assertIn(part, done.err, str(done))

    def test_missing_gpu_is_refused_unless_device_is_auto(self):
        self.fails(["device cuda", "no GPU"], code=USAGE, EMULATED_GPU="none")
        self.run_program("train", self.config(device="auto"), env={"EMULATED_GPU": "none"}, code=DONE)
        self.assertIn("the driver sees no GPU", self.run_program("devices", env={"EMULATED_GPU": "none"}).out)

    def test_insufficient_memory_is_refused(self):
        self.fails(["memory", "Largest parts"], code=USAGE, EMULATED_MEMORY_MIB="1",
                   config=self.config(runtime_reserve_mib=0))

    def test_failed_planned_allocation_is_reported(self):
        self.fails(["bytes were requested", "smaller micro-batch"], EMULATED_FAILURE="cudaMalloc:1:2")

    def test_failing_launch_is_named_and_leaves_the_checkpoint(self):
        config = self.config()
        self.run_program("train", config, "--set", "train_iters=3")
        self.fails(["illegal memory access"], EMULATED_FAILURE="cudaGraphLaunch:9:700", config=config)
        self.assertEqual(self.checkpoints(), ["step-00000003"])
        self.run_program("train", config)
        self.assertEqual(max(self.losses()), 6)


@unittest.skipUnless(ON_EMULATOR, "NCCL between processes is emulated")
class ManyRanksTest(CudaTest):
    """Ranks with a GPU each, over an NCCL whose ranks are processes."""
    env = {"EMULATED_NCCL": "processes", "EMULATED_GPUS": "2"}

    def launch(self, config, *arguments, code=DONE, **env):
        return self.run_program("launch", "--ranks", 2, "train", config, *arguments, code=code, env={**self.env, **env})

    def config(self, name="tiny.json", **changes):
        return super().config(name, **{"micro_batch_size": 1, **changes})

    def start_ranks(self, *arguments):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        config = self.config(train_iters=100000, save_interval=0)
        return [self.start("train", config, *arguments,
                           env=dict(self.env, RANK=str(r), WORLD_SIZE="2", LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1",
                                    MASTER_PORT=str(port), XDG_RUNTIME_DIR=str(self.folder)))
                for r in range(2)]

    def test_every_zero_stage_matches_one_rank(self):
        self.run_program("train", self.config(save="one"))
        want = self.losses("one")
        for stage in range(4):
            self.launch(self.config(save=f"stage{stage}", zero_stage=stage, eval_interval=3, eval_iters=2,
                                    autotune_seconds=600 * stage, cuda_graph=stage != 1))
            got = self.losses(f"stage{stage}")
            self.assertEqual(list(got), list(want))
            for step, loss in want.items():
                self.assertAlmostEqual(got[step], loss, delta=1e-5 * loss, msg=f"stage {stage} step {step}")
        start = next(r for r in self.records("stage3") if r["event"] == "start")
        self.assertRegex(start["text"], r"NCCL 2\.\d+\.\d+; 2 ranks: 0-1 on .* \(2 x .*H200")
        # One rank goes on from what two have written.
        self.run_program("train", self.config(save="stage3", zero_stage=3, train_iters=7))
        self.assertEqual(max(self.losses("stage3")), 7)

    def test_tensor_and_context_parallel_ranks_match_one_rank(self):
        self.run_program("train", self.config(save="one", eval_interval=3, eval_iters=2))
        want = self.losses("one")
        for key, more in (("tensor_parallel_size", {}), ("tensor_parallel_size", {"sequence_parallel": True}),
                          ("context_parallel_size", {"context_parallel_method": "ring"})):
            run = "-".join((key, *more))
            done = self.launch(self.config(save=run, eval_interval=3, eval_iters=2, **{key: 2}, **more))
            self.assertEqual(done.err.count(f"{key} 2: ranks that share "), 1, done.err)
            self.assertIn("are unverified on GPUs; compare the losses of a few steps with", done.err)
            self.assertEqual(list(self.losses(run)), list(want))
            for step, loss in self.losses(run).items():
                self.assertAlmostEqual(loss, want[step], delta=1e-5 * want[step], msg=f"{run} step {step}")
            evaluated = [[r["loss"] for r in self.records(each) if r["event"] == "eval"] for each in (run, "one")]
            for got, loss in zip(*evaluated, strict=True):
                self.assertAlmostEqual(got, loss, delta=1e-5 * loss, msg=run)
        # One rank goes on from what two have written.
        self.run_program("train", self.config(save="tensor_parallel_size", train_iters=7))
        self.assertEqual(max(self.losses("tensor_parallel_size")), 7)

    def test_killed_rank_ends_the_other(self):
        for victim, key in ((0, "data_parallel_shard_size"), (1, "data_parallel_shard_size"),
                            (1, "tensor_parallel_size"), (0, "context_parallel_size")):
            run = f"killed{victim}-{key}"
            processes = self.start_ranks("--set", f"save={run}", "--set", f"{key}=2")
            self.assertTrue(self.wait_for_step(processes[0], 3, run=run))
            processes[victim].kill()
            processes[victim].communicate()
            done = self.finish(processes[1 - victim])
            self.assertEqual(done.code, PEER_LOST, str(done))
            self.assertRegex(
                done.err, rf"rank {victim} \(\S+\) is gone.*; rank {1 - victim} \(\S+\) (was )?at step \d+, ")

    def test_frozen_rank_is_named_within_the_timeout(self):
        processes = self.start_ranks()
        self.assertTrue(self.wait_for_step(processes[0], 3))
        processes[1].send_signal(signal.SIGSTOP)
        done = self.finish(processes[0])
        processes[1].kill()
        processes[1].communicate()
        self.assertEqual(done.code, PEER_LOST, str(done))
        self.assertIn("rank 1", done.err)

    def test_two_ranks_on_one_gpu_are_refused_unless_allowed(self):
        done = self.launch(self.config(), EMULATED_GPUS="1", code=USAGE)
        self.assertIn("ranks 0 and 1 would share one GPU", done.err)
        self.launch(self.config(train_iters=2, schedule={"lr_decay_iters": 2}), EMULATED_GPUS="1",
                    NCCL_MULTI_RANK_GPU_ENABLE="1")

    def test_startup_failures_are_named(self):
        done = self.launch(self.config(), EMULATED_NCCL="none", code=ERROR)
        self.assertIn("libnccl2", done.err)
        done = self.launch(self.config(), EMULATED_FAILURE="ncclCommInitRank:1:2", code=PEER_LOST)
        self.assertIn("making a communicator of 2 ranks: NCCL: ", done.err)
        done = self.launch(self.config(), EMULATED_FAILURE="ncclAllReduce:3:3", code=PEER_LOST)
        self.assertIn("all_reduce of [", done.err)
        self.assertIn(" at step 1: ", done.err)


if __name__ == "__main__":
    unittest.main()
