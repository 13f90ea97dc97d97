"""The parts of verify.py: each function returns its findings, or raises Failed or NotRun with the reason."""
import argparse
import json
import platform
import re
import shutil
import statistics
import sys
import time

import curves as curve_parts
from programs import ROOT, Failed, NotRun

sys.path.insert(0, str(ROOT / "scripts" / "bench" / "gpu"))
import compare  # noqa: E402

PARTS = {}
# Seconds that a part is thought to take on an H200, of which none has run one: starts of programs, plans of cuDNN, and
# steps at the rates of MODELS in scripts/bench/gpu/compare.py.
ESTIMATES = {}
# The parts of the three calls of nine minutes, those first that tell most: each call is of use if it is the last. What
# is in none, and what had no time, is asked for by name.
CALLS = {
    1: ("environment", "smoke", "bench_attention", "kernels", "ops", "attention", "attention_packed"),
    2: ("parity", "bench_step", "laws", "backend", "memory", "resume"),
    3: ("bench_gemm", "speed", "sanitizer", "ranks"),
}


def part(seconds):
    def listed(function):
        PARTS[function.__name__], ESTIMATES[function.__name__] = function, seconds
        return function
    return listed


def tiny(call, family, **changes):
    model = {"model_type": family, "vocab_size": 257, "hidden_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 64}
    if family != "gpt2":
        model |= {"num_key_value_heads": 2, "intermediate_size": 352, "rms_norm_eps": 1e-6}
    return {"model": model, "train_data": call.train_data, "device": call.config_device, "train_iters": 8,
            "global_batch_size": 8, "micro_batch_size": 4, "seq_length": 64, "learning_rate": 1e-3, "save_interval": 0,
            **changes}


@part(seconds=30)
def environment(call):
    """GPU, driver, libraries, clocks, measured rates."""
    facts = call.run_json("devices", [call.program("athanor"), "devices", "--json"])
    facts["host"], on_gpu = platform.platform(), call.device == "cuda"
    if call.config_device == "cuda" and not any(not g["problem"] for g in facts["gpus"]):
        raise Failed(f"no usable GPU: {facts['why_no_gpu'] or facts['gpus']}")
    rates = [call.program("athanor"), "bench", "device", "--device", call.config_device, "--json"]
    facts["rates"] = None if call.device == "emulated" else call.run_json("rates", rates)
    if facts["rates"] and not all(facts["rates"][k] > 0 for k in ("copy_bytes", "gemm_flops")):
        raise Failed(f"measured rates are not above 0: {facts['rates']}")
    facts["torch"] = call.torch_version()
    version = call.run("version", [call.program("athanor"), "--version"])
    if on_gpu and call.commit[:12] not in version:
        raise Failed(f"the program was built from another commit than {call.commit}: {version}; build it again")
    if shutil.which("nvidia-smi"):
        fields = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,ecc.mode.current"
        facts["nvidia_smi"] = call.run("nvidia_smi", ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]).strip()
    elif on_gpu:
        raise NotRun(f"nvidia-smi is missing, so the clocks are unknown; all else was found: {json.dumps(facts)}")
    return facts


# A quick test of each family of kernels.
SMOKE = ("Chain.ReplaysMatchSingleLaunchesBitExactly", "IndexSort.IsStable", "Attention.TilesOfEveryHeadSizeMatchReference",
         "AttentionWgmma.SequenceLengthsAndGqaGroupsMatchReference", "GemmTest.FusedEpiloguesMatchReference",
         "WgmmaGemm.SizesAroundTilesMatchReference", "WgmmaGemm.GradientsAroundTilesMatchReference",
         "QuantizeKernels.QuantizedValuesAndScalesMatchReference",
         "QuantizeKernels.TransposedQuantizationMatchesReference", "QuantizeKernels.NativeGemmsMatchReference",
         "CudnnAttentionTest.MatchesReference") + tuple(
    f"Cuda/OpCases.MatchReference/{op}" for op in
    ("basic_fill", "basic_reduce_sum", "basic_squared_norm", "gemm_column_sum", "norm_norm_fwd", "norm_norm_bwd",
     "norm_qk_norm_bwd", "mlp_swiglu_bwd", "embedding_embedding_bwd", "loss_cross_entropy", "rope_rope",
     "attention_merge_attention", "optimizer_adamw", "optimizer_adamw_8bit", "optimizer_normalize_matrix"))
SMOKE_SECONDS = 20  # of a test


@part(seconds=100)
def smoke(call):
    """A test of each family of kernels, each in its own process, and tiny trainings; kernels that start early off, then on."""
    found, problems = {}, []
    for early in ("0", "1"):
        try:
            found[f"early_{early}"] = call.google_tests("smoke", "gpu_test_cuda", ":".join(SMOKE), alone=True,
                                                        env={"ATHANOR_TEST_EARLY_STARTS": early}, test_seconds=SMOKE_SECONDS)
        except Failed as why:
            found[f"early_{early}"] = why.found
            problems.append(f"early starts {early}: {why}")
    losses = {}
    for graphs in ("false", "true"):
        for early in ("false", "true"):
            name = f"smoke_graphs_{graphs}_early_{early}"
            save = call.work / name
            # Trials choose by time, and another kernel rounds otherwise.
            config = call.config(name, **tiny(call, "llama", save=str(save), train_iters=4, precision="bf16",
                                              autotune_seconds=0, attention="builtin"))
            settings = ["--set", f"cuda_graph={graphs}", "--set", f"programmatic_launch={early}"]
            try:
                call.run(name, [call.program("athanor"), "train", config, *settings], quiet=call.quiet)
                losses[name] = [record["loss"] for record in step_records(save)]
            except Failed as why:
                problems.append(f"training with graphs {graphs}, early starts {early}: {why}")
    found["losses"] = losses
    failed = {test: why for early in ("0", "1") for test, why in (found[f"early_{early}"] or {}).get("failed", {}).items()}
    if len(set(map(str, losses.values()))) > 1:
        problems.append(f"losses differ: {losses}")
    if problems:
        raise Failed("\n".join(problems), found | {"failed": failed})
    return found


@part(seconds=150)
def ops(call):
    """Every op case on the GPU against the reference in float64: dtypes, odd shapes, determinism, guards."""
    return call.google_tests("ops", "gpu_test_cuda", "-*AttentionPair*")


@part(seconds=30)
def kernels(call):
    """The instructions themselves: what the emulated GPU assumes of PTX, on hardware."""
    return call.google_tests("kernels", "gpu_test_kernels", may_skip="needs compute capability")


SANITIZER_CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
REFUSED = ("device not supported", "is not supported", "terminated before first instrumented")


@part(seconds=480)
def sanitizer(call):
    """compute-sanitizer over a reduced set of op cases."""
    instead = "the emulated GPU's checking build stands in for it (test_cuda_emulated)"
    if call.device != "cuda":
        raise NotRun(f"needs a GPU; {instead}")
    tool = next(filter(None, (shutil.which("compute-sanitizer", path=p) for p in (None, *SANITIZER_PLACES))), None)
    if not tool:
        raise NotRun(f"compute-sanitizer is not installed; {instead}")
    found, end = {}, call.end
    for i, check in enumerate(SANITIZER_CHECKS):
        call.end = time.monotonic() + (end - time.monotonic()) / (len(SANITIZER_CHECKS) - i)  # none takes all the time
        found[check] = sanitize(call, tool, check)
    return judge_sanitizer(found, instead)


def judge_sanitizer(found, instead):
    if problems := [f"{check}: {why}" for check, (status, why) in found.items() if status == "FAILED"]:
        raise Failed("\n".join(problems))
    if missed := [f"{check}: {why}" for check, (status, why) in found.items() if status == "not run"]:
        raise NotRun(f"{'; '.join(missed)}; {instead}; clean were {[c for c in found if found[c][0] == 'passed']}")
    return {check: why for check, (_, why) in found.items()}


def sanitize(call, tool, check):
    """(status, the tool's last line or the reason). A tool that times out is neither passed nor failed."""
    problem, command = None, [tool, "--tool", check, "--error-exitcode", "9", call.program("gpu_test_cuda"),
                              "--gtest_filter=*Forward*:*Backward*:*_fwd:*_bwd:-*Long*"]
    try:
        call.run(f"sanitizer_{check}", command)
    except (Failed, NotRun) as why:
        problem = str(why)
    text = (call.work / f"sanitizer_{check}.log").read_text(errors="replace")
    lines = text.strip().splitlines() or ["it said nothing"]
    tests = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
    if refused := [line for line in lines if any(word in line.lower() for word in REFUSED)]:
        return "not run", refused[0].strip()
    if problem and "in time" in problem.splitlines()[0] and "=========     at " not in text:
        return "not run", f"{len(re.findall(r'^.       OK ', text, re.M))} tests were clean, then its time was up"
    if problem:
        return "FAILED", problem
    if not tests or not re.search(r"SUMMARY: 0 (errors|hazards)", lines[-1]):
        return "FAILED", f"{tests} tests, {lines[-1].strip()}"
    return "passed", f"{tests} tests, {lines[-1].strip()}"


@part(seconds=90)
def backend(call):
    """check-backend: training steps of both families in which every op also runs on the reference."""
    found = {}
    for family in ("gpt2", "llama"):
        for precision in ("fp32", "tf32", "bf16", "fp16") if call.device != "emulated" else ("bf16",):
            name = f"backend_{family}_{precision}"
            config = call.config(name, **tiny(call, family, precision=precision, global_batch_size=2,
                                              micro_batch_size=2, seq_length=32))
            table = call.run(name, [call.program("athanor"), "check-backend", config, "--steps", "3"])
            found[f"{family} {precision}"] = worst_errors(table)
    return found


def worst_errors(table):
    """{op: {tensor: [launches, nmse, peak]}} of check-backend's table."""
    rows = re.findall(r"^(\w+) +(\w+) +\w+ +(\d+) +([\d.e+-]+) +([\d.e+-]+)\b", table, re.M)
    found = {}
    for op, tensor, launches, nmse, peak in rows:
        found.setdefault(op, {})[tensor] = [int(launches), float(nmse), float(peak)]
    if missing := {"gemm", "attention_fwd", "attention_bwd", "cross_entropy", "adamw"} - found.keys():
        raise Failed(f"check-backend compared no {', '.join(sorted(missing))}:\n{table}")
    return found


@part(seconds=60)
def parity(call):
    """Logits, gradients, losses and ten AdamW steps of six families against PyTorch's stored results."""
    return call.google_tests("parity", "gpu_test_train", "*Parity*:*Packed*")


@part(seconds=120)
def laws(call):
    """Recomputation, graphs, repetition and chunks change no bit; allocations are as planned; the host never waits."""
    return call.google_tests("laws", "gpu_test_train", "-*Parity*:*Packed*:Nccl*", may_skip="CUPTI")


@part(seconds=90)
def resume(call):
    """A stopped and resumed run, a repeated one, two that launch in other ways and two that recompute end with the same bits."""
    program, found = call.program("athanor"), {}
    ways = {"whole": [], "again": [], "stopped": [], "eager": ["cuda_graph=false"],
            "waiting": ["programmatic_launch=false"], "selective": ["recompute_granularity=selective"], "full": ["recompute_granularity=full"]}
    search = {}
    if call.device == "emulated":  # it takes seconds for each, and a search that runs out of time may choose differently
        ways = {name: ways[name] for name in ("whole", "stopped", "eager", "waiting")}
        search = {"autotune_seconds": 0}
    for family in ("gpt2", "llama") if call.device != "emulated" else ("gpt2",):
        weights = {}
        for name, settings in ways.items():
            save = call.work / f"resume_{family}_{name}"
            config = call.config(f"resume_{family}_{name}", **tiny(call, family, precision="bf16", save=str(save), **search))
            train = [program, "train", config]
            for setting in [*settings, "schedule.lr_decay_iters=8"]:
                train += ["--set", setting]
            if name == "stopped":
                call.run(f"resume_{family}_half", [*train, "--set", "train_iters=4"])
            call.run(f"resume_{family}_{name}", train)
            weights[name] = (save / "step-00000008" / "model.safetensors").read_bytes()
            steps = [record["step"] for record in step_records(save)]
            if steps != list(range(1, 9)):  # a run that began anew would end with the same weights
                raise Failed(f"{family} {name}: steps {steps}, expected each of 8 once")
        if len(set(weights.values())) != 1:
            others = [name for name, w in weights.items() if w != weights["whole"]]
            raise Failed(f"{family}: {others} ended with different weights")
        found[family] = f"equal bits: {', '.join(ways)}"
    return found


def step_records(save):
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == "step"]


CONTEXT = 512 << 20  # bytes of a CUDA context on an H100, before any kernel is loaded


@part(seconds=60)
def memory(call):
    """Allocations are the plan's to the byte (the program stops where not); what the libraries take is less than the reserve."""
    save, reserve = call.work / "memory_run", 1024
    changes = {"save": str(save), "train_iters": 3, "save_interval": 0, "eval_interval": 0,
               "schedule": {"lr_warmup_iters": 1, "lr_decay_iters": 3}, "train_data": call.train_data, "runtime_reserve_mib": reserve}
    if call.device == "cuda":
        config, _, _ = curve_parts.gpu_config(call.root, "llama")
        config |= changes
    else:
        config = tiny(call, "gpt2", **changes)
    before = gpu_memory_used(call) if call.device == "cuda" else None
    call.run("memory", [call.program("athanor"), "train", call.config("memory", **config)])
    last = step_records(save)[-1]
    shutil.rmtree(save)
    found = {"planned": last["memory_planned"], "reserve": reserve << 20, "used": last["memory_used"], "before": before}
    if call.device != "cuda":
        return found | {"remark": "the total of a device was not measured here"}
    if before is None:
        raise NotRun(f"nvidia-smi is missing, so the memory of other programs and the total are unknown: {found}")
    return found | {"libraries": judge_memory(found)}


def gpu_memory_used(call):
    """Bytes held by other processes, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(call.run("memory_before", query).split()[0]) << 20


def judge_memory(found):
    """Bytes that the libraries took besides plan and context: at most the reserve."""
    libraries = found["used"] - found["before"] - found["planned"] - CONTEXT
    if libraries < -CONTEXT:
        raise Failed(f"the device holds {-libraries - CONTEXT} bytes less for this run than its plan: {found}")
    if libraries > found["reserve"]:
        raise Failed(f"libraries took {libraries} bytes besides plan and context, the reserve is {found['reserve']}: raise the "
                     "default of runtime_reserve_mib")
    return max(0, libraries)


def attention_part(call, part, tests):
    if call.device == "cpu":
        raise NotRun("needs a GPU or the emulated one: the CPU backend has one attention")
    return call.google_tests(part, "gpu_test_cuda", f"AttentionPair.{tests}")


@part(seconds=240)
def attention(call):
    """cuDNN's attention and the program's own agree, forward and backward, for sequences of one length."""
    return attention_part(call, "attention", "MatchesCudnnOnDenseSequences")


@part(seconds=240)
def attention_packed(call):
    """The same for documents of different lengths in a sequence, and for windows."""
    return attention_part(call, "attention_packed",
                          "MatchesCudnnOnPackedDocuments:AttentionPair.MatchesCudnnOnSlidingWindows")


@part(seconds=60)
def bench_attention(call):
    """Rates of attention by the program's own kernels and by cuDNN's, forward and backward; their bits repeat."""
    small = ["--lengths", "32", "--tokens", "64", "--hidden", "128"] if call.device != "cuda" else []
    command = [call.program("athanor"), "bench", "attention", "--device", call.config_device, "--json", *small]
    try:
        return call.run_json("bench_attention", command)
    except Failed as why:
        found = json_of((call.work / "bench_attention.log").read_text(errors="replace"))
        raise Failed("\n".join(wrong_rows(found)) if found else str(why)) from why


def json_of(text):
    try:
        return json.loads(text[text.find("{"):text.rfind("}") + 1])
    except ValueError:
        return None


def wrong_rows(found):
    """What failed in the rows of bench attention, each with its op and shape; random numbers have one seed."""
    for row in found["rows"]:
        shape = ", ".join(f"{k} {row[k]}" for k in ("length", "sequences", "heads", "head_dim", "mask", "window", "group"))
        for side in ("own", "cudnn"):
            one = row.get(side, {})
            if side == "own" and "why_not" in one:
                yield f"attention, {side}, {shape}: {one['why_not']}"
            for op in ("forward", "backward"):
                if not one.get(op, {"repeated": True})["repeated"]:
                    yield f"attention {op}, {side}, {shape}, seed 0: other bits the second time"


def bench_config(call, name, model):
    """As scripts/bench/gpu/compare.py times it, or a tiny one."""
    if call.device == "cuda":
        arguments = argparse.Namespace(device="cuda", threads=0)
        return compare.make_config(name, model, arguments, call.work)
    return call.config(name, **tiny(call, "gpt2" if name.startswith("gpt2") else "llama", precision="bf16"))


def of_models(call, kind, names, command):
    """{model: output of the program}: a failing model does not stop the others."""
    found, failed, too_large = {}, [], []
    for name in names:
        config = bench_config(call, name, compare.MODELS[name])
        try:
            program = [call.program("athanor"), "bench", kind, config, "--json", *command]
            found[name] = call.run_json(f"{kind}_{name}", program)
        except Failed as why:
            (too_large if "error memory: " in str(why) else failed).append(f"{name}: {why}")
    if failed:
        raise Failed("\n".join(failed) + f"\nmeasured: {json.dumps(found)}", found)
    if too_large:
        raise NotRun(f"needs more memory than this GPU has (an H200 has enough); measured were {', '.join(found) or 'none'}\n" +
                     "\n".join(too_large), found)
    return found


def rates_given(call):
    """Those of a GPU are measured; the large GEMM of that would take the emulated one minutes."""
    return [] if call.device == "cuda" else ["--rates", "1e14", "1e12"]


@part(seconds=120)
def bench_step(call):
    """Whole steps of gpt2-124m and llama-8b, and what every op takes beside its limit, those that lose most first."""
    steps = ["--steps", "3" if call.device == "cuda" else "1", "--warmup", "2", "--ops"]
    return of_models(call, "step", ("gpt2-124m", "llama-8b"), [*steps, *rates_given(call)])


@part(seconds=60)
def early_starts(call):
    """Steps of gpt2-124m with kernels that start before the one ahead has ended, and with those that wait, in turns."""
    config, steps = bench_config(call, "gpt2-124m", compare.MODELS["gpt2-124m"]), ("5" if call.device == "cuda" else "1")
    times = {"true": [], "false": []}
    for turn in range(2):
        for early in times:
            found = call.run_json(f"early_{early}_{turn}", [
                call.program("athanor"), "bench", "step", config, "--json", "--steps", steps, "--warmup", "2",
                *rates_given(call), "--set", f"programmatic_launch={early}"])
            times[early] += found["step_ms"]
    early, waiting = (statistics.median(times[way]) for way in ("true", "false"))
    return {"early_ms": times["true"], "waiting_ms": times["false"], "waiting_over_early": waiting / early}


@part(seconds=60)
def bench_gemm(call):
    """Every GEMM of a step of gpt2-124m and llama-8b: its time, rate and algorithm."""
    return of_models(call, "gemm", ("gpt2-124m", "llama-8b"), rates_given(call))


@part(seconds=240)
def speed(call):
    """scripts/gpu/compare.sh: whole steps beside PyTorch's, as many models as there is time for."""
    if call.device == "emulated":
        raise NotRun("needs a GPU or the CPU backend: the emulated GPU is too slow")
    minutes = min(call.left() / 60 - 0.2, 4.0)
    few = [] if call.device == "cuda" else ["--rounds", "1", "--steps", "1", "--models", "tiny-gpt2"]
    call.run("speed", [call.torch_python(), call.root / "scripts" / "bench" / "gpu" / "compare.py", "--device", call.config_device,
                       "--out", call.work, "--athanor", call.program("athanor"), "--minutes", f"{minutes:.2f}", *few])
    found = json.loads((call.work / "compare.json").read_text())
    if not any(row["status"] == "measured" for row in found["models"].values()):
        raise NotRun(f"no model was measured: { {name: row['why'] for name, row in found['models'].items()} }")
    return found


@part(seconds=150)
def ranks(call):
    """Two and four ranks, threads on one GPU, over NCCL: collectives, 20 steps of each stage, lost or hanging peers.

    On the CPU: ranks of one process that meet in its memory.
    """
    # Ranks of one process: those of several would take turns on the GPU, under collectives that wait for each other.
    # NCCL's advice for ranks that share a GPU: a queue for each stream, and no module loaded while others wait.
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
              "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
    return call.google_tests("ranks", "gpu_test_train", "Nccl*", env=shared)


def curve_part(call, family):
    if call.device == "emulated":
        raise NotRun("needs a GPU or the CPU backend: the emulated GPU is too slow")
    python = call.torch_python()
    if call.device == "cuda":
        config, steps, micro = curve_parts.gpu_config(call.root, family)
        config |= {"train_data": call.train_data, "precision": "bf16"}
    else:
        steps, micro = 20, 4
        config = tiny(call, family, precision="fp32" if family == "gpt2" else "bf16")
    try:
        return curve_parts.compare(call, python, f"curves_{family}", config, steps, micro)
    except ValueError as error:
        raise Failed(str(error)) from error


@part(seconds=180)
def curves_gpt2(call):
    """300 steps of gpt2-124m on real text follow PyTorch's within the spread of two of its seeds."""
    return curve_part(call, "gpt2")


@part(seconds=300)
def curves_llama(call):
    """60 steps of llama-1b on real text follow PyTorch's within the spread of two of its seeds."""
    return curve_part(call, "llama")
