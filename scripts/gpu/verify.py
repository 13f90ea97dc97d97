#!/usr/bin/env python3
"""Proves athanor right on a GPU, part by part; goes on past failures, ends with a table and a JSON report.

usage: verify.py [--parts A,B|rest] [--out DIR] [--data DIR] [--device cuda|cpu|emulated] [--minutes 9]
                 [--call-minutes M] [--earlier verify.json] [--list]
Runs in the folder that pack.sh makes (program, gpu_test_* programs, tests/golden, data). Each part ends after
--minutes.
Parts that compare with PyTorch run ATHANOR_PYTHON, or the Python that runs this.
--device cpu and emulated try the script itself, at smaller sizes: in a build folder, with the tests' programs for the
CPU backend or for the emulated GPU. They prove nothing about a GPU, and the report says which device it is of.
A part that did not run is never green: its status is 'not run', with the reason. Exit status, of what the report
holds: 0 all passed, 1 some failed, 3 none failed but some did not run.
All parts together take some half an hour (--list has estimates). --call-minutes starts no part that is thought to need
more than is left of the call; the next call with --parts rest does what has not passed yet. Reports of calls of one
commit on one kind of device are merged: DIR/verify.json, or the report given by --earlier, brings the parts of the calls
before.
"""
import argparse
import datetime
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import curves as curve_parts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench" / "gpu"))
from compare import commit  # noqa: E402

PARTS = {}
# Seconds that a part is thought to take on an H200, of which none has run one: starts of programs, plans of cuDNN,
# compiling of PyTorch, and steps at the rates of MODELS in bench/gpu/compare.py.
ESTIMATES = {}
# What stands in for a program of the bundle on each device that is no GPU: programs of the build folder's tests.
STAND_INS = {"cpu": {"athanor": "athanor", "gpu_test_cuda": "test_ops", "gpu_test_train": "test_train"},
             "emulated": {"athanor": "athanor_emulated", "gpu_test_cuda": "test_cuda_emulated",
                          "gpu_test_train": "test_train_emulated", "gpu_test_kernels": "test_emulator_fast"}}
# Their tests that a try of the script runs.
FEW = {("cpu", "ops"): "Family/Cpu*", ("emulated", "ops"): "*Rope*", ("emulated", "kernels"): "MatrixKernel.*",
       ("cpu", "parity"): "*Parity*", ("emulated", "parity"): "*Parity*/gpt2*",
       ("cpu", "laws"): "Engine.*:Precisions.*", ("emulated", "laws"): "Step.*:*gpt2_bf16*",
       ("cpu", "ranks"): "Ranks.ReplicasOfShardsAreTheSameRun:Ranks.TwiceIsTheSameBits", ("emulated", "ranks"): "Nccl.*"}


class NotRun(Exception):
    """Why a part could not run."""


class Failed(Exception):
    """What a part found."""


def part(seconds):
    def listed(function):
        PARTS[function.__name__], ESTIMATES[function.__name__] = function, seconds
        return function
    return listed


class Call:
    """One call of the script: where things are, how long a part may take."""

    def __init__(self, args):
        self.device, self.minutes, self.out = args.device, args.minutes, Path(args.out).resolve()
        self.train_data = f"{Path(args.data).resolve()}/text_train_*.bin"
        self.config_device = "cpu" if self.device == "cpu" else "cuda"
        self.root = ROOT
        self.out.mkdir(parents=True, exist_ok=True)
        self.end, self.call_end = 0.0, time.monotonic() + 60 * args.call_minutes

    def left(self):
        return max(0.01, self.end - time.monotonic())

    def run(self, name, command, env=None):
        """Output goes to OUT/name.log; a time-out or a bad exit status is a failure with the log's end."""
        log = self.out / f"{name}.log"
        with log.open("w") as out:
            try:
                done = subprocess.run([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                      stdin=subprocess.DEVNULL, timeout=self.left(),
                                      env=dict(os.environ, **(env or {})))
                why = f"exit status {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                why = "did not end in time"
        text = log.read_text(errors="replace")
        if why:
            raise Failed(f"{name}: {why}\n" + "\n".join(text.splitlines()[-12:]))
        return text

    def program(self, name):
        folders = [ROOT, ROOT / "build", ROOT / "build" / "gpu"]
        if self.device in STAND_INS:
            if name not in STAND_INS[self.device]:
                raise NotRun(f"{name} needs a GPU")
            name, folders = STAND_INS[self.device][name], [ROOT / "build", ROOT / "build" / "tests"]
        for folder in folders:
            if os.access(folder / name, os.X_OK):
                return folder / name
        raise NotRun(f"no program {name} in {' or '.join(map(str, folders))}: pack with tests, or build them")

    def google_tests(self, part, name, filter_="*", env=None):
        """Runs a GoogleTest program, off a GPU a few of its tests.

        Returns {passed, failed: [...], skipped: [[name, why]]}.
        """
        filter_ = FEW.get((self.device, part), filter_)
        report = self.out / f"{part}.xml"
        report.unlink(missing_ok=True)
        problem = None
        try:
            self.run(part, [self.program(name), f"--gtest_filter={filter_}", f"--gtest_output=xml:{report}"], env)
        except Failed as failed:
            problem = failed
        if not report.exists():
            raise problem or Failed(f"{name} wrote no report")
        found = {"tests": filter_, "passed": 0, "failed": [], "skipped": []}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            title = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                found["failed"].append(title)
            elif case.get("result") == "skipped":
                found["skipped"].append([title, (case.find("skipped").get("message") or "").strip()])
            else:
                found["passed"] += 1
                if values := {p.get("name"): p.get("value") for p in case.iter("property")}:
                    found.setdefault("recorded", {})[title] = values
        if found["failed"] or problem:
            raise Failed(json.dumps(found["failed"]) + (f"\n{problem}" if problem else ""))
        if not found["passed"]:
            why = f"was skipped: {found['skipped'][0]}" if found["skipped"] else f"fails to match {filter_}"
            raise NotRun(f"every test of {name} {why}")
        return found

    def config(self, name, **changes):
        path = self.out / f"{name}.json"
        path.write_text(json.dumps(changes, indent=1))
        return path


def tiny(call, family, **changes):
    model = {"model_type": family, "vocab_size": 257, "hidden_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 64}
    if family != "gpt2":
        model |= {"num_key_value_heads": 2, "intermediate_size": 352}
    return {"model": model, "train_data": call.train_data, "device": call.config_device, "train_iters": 8,
            "global_batch_size": 8, "micro_batch_size": 4, "seq_length": 64, "learning_rate": 1e-3, "save_interval": 0,
            **changes}


# ---- the parts, in order


@part(seconds=30)
def environment(call):
    """GPU, driver, libraries, measured rates."""
    facts = json.loads(call.run("devices", [call.program("athanor"), "devices", "--json"]))
    facts["host"] = platform.platform()
    if shutil.which("nvidia-smi"):
        fields = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu,ecc.mode.current"
        facts["nvidia_smi"] = call.run("nvidia_smi", ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]).strip()
    if call.config_device == "cuda" and not any(not g["problem"] for g in facts["gpus"]):
        raise Failed(f"no usable GPU: {facts['why_no_gpu'] or facts['gpus']}")
    rates = [call.program("athanor"), "bench", "device", "--device", call.config_device, "--json"]
    facts["rates"] = None if call.device == "emulated" else json.loads(call.run("rates", rates))
    python = curve_parts.torch_python()
    version = [python, "-c", "import torch; print(torch.__version__)"]
    facts["torch"] = call.run("torch", version).strip() if python else None
    return facts


@part(seconds=150)
def ops(call):
    """Every op case on the GPU against the reference in float64: dtypes, odd shapes, determinism, guards."""
    return call.google_tests("ops", "gpu_test_cuda", "-*AttentionPair*")


@part(seconds=30)
def kernels(call):
    """The instructions themselves: what the emulated GPU assumes of PTX, on hardware."""
    return call.google_tests("kernels", "gpu_test_kernels")


SANITIZER_CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
REFUSED = ("device not supported", "is not supported", "terminated before first instrumented")


@part(seconds=480)
def sanitizer(call):
    """compute-sanitizer over a reduced set of op cases."""
    instead = "the emulated GPU's checking build stands in for it (test_cuda_emulated)"
    if call.device != "cuda":
        raise NotRun(f"needs a GPU; {instead}")
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise NotRun(f"compute-sanitizer is not installed; {instead}")
    found, end = {}, call.end
    for i, check in enumerate(SANITIZER_CHECKS):
        call.end = time.monotonic() + (end - time.monotonic()) / (len(SANITIZER_CHECKS) - i)  # none takes all the time
        found[check] = sanitize(call, tool, check)
    if problems := [f"{check}: {why}" for check, (status, why) in found.items() if status == "FAILED"]:
        raise Failed("\n".join(problems))
    if refused := [f"{check}: {why}" for check, (status, why) in found.items() if status == "not run"]:
        raise NotRun(f"{'; '.join(refused)}; {instead}; the others: {[c for c in found if found[c][0] == 'passed']}")
    return {check: why for check, (_, why) in found.items()}


def sanitize(call, tool, check):
    """(status, the tool's last line or why not)."""
    problem = None
    try:
        call.run(f"sanitizer_{check}", [tool, "--tool", check, "--error-exitcode", "9", call.program("gpu_test_cuda"),
                                        "--gtest_filter=*Forward*:*Backward*:-*Long*"])
    except Failed as why:
        problem = why
    log = (call.out / f"sanitizer_{check}.log").read_text(errors="replace")
    lines = log.strip().splitlines() or ["it said nothing"]
    if refused := [line for line in lines if any(word in line.lower() for word in REFUSED)]:
        return "not run", refused[0].strip()
    if problem:
        return "FAILED", str(problem)
    return ("passed" if "SUMMARY" in lines[-1] else "FAILED"), lines[-1].strip()


@part(seconds=90)
def backend(call):
    """check-backend: training steps of both families in which every op also runs on the reference."""
    found = {}
    for family in ("gpt2", "llama"):
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            name = f"backend_{family}_{precision}"
            config = call.config(name, **tiny(call, family, precision=precision, global_batch_size=2,
                                              micro_batch_size=2, seq_length=32))
            table = call.run(name, [call.program("athanor"), "check-backend", config, "--steps", "3"])
            found[f"{family} {precision}"] = [line for line in table.splitlines() if "e-" in line]
    return found


@part(seconds=60)
def parity(call):
    """Logits, gradients, losses and ten AdamW steps of six families against PyTorch's stored results."""
    return call.google_tests("parity", "gpu_test_train", "*Parity*:*Packed*")


@part(seconds=120)
def laws(call):
    """Recomputation, graphs, repetition and chunks change no bit; allocations are as planned; the host never waits."""
    return call.google_tests("laws", "gpu_test_train", "-*Parity*:*Packed*:Nccl*")


@part(seconds=90)
def resume(call):
    """A stopped and resumed run, a repeated one, one without graphs and two that recompute end with the same bits."""
    program, found = call.program("athanor"), {}
    ways = {"whole": [], "again": [], "stopped": [], "eager": ["cuda_graph=false"],
            "selective": ["recompute_granularity=selective"], "full": ["recompute_granularity=full"]}
    for family in ("gpt2", "llama"):
        weights = {}
        for name, settings in ways.items():
            save = call.out / f"resume_{family}_{name}"
            shutil.rmtree(save, ignore_errors=True)
            config = call.config(f"resume_{family}_{name}", **tiny(call, family, precision="bf16", save=str(save)))
            train = [program, "train", config]
            for setting in [*settings, "lr_decay_iters=8"]:
                train += ["--set", setting]
            if name == "stopped":
                call.run(f"resume_{family}_half", [*train, "--set", "train_iters=4"])
            call.run(f"resume_{family}_{name}", train)
            weights[name] = (save / "step-00000008" / "model.safetensors").read_bytes()
            shutil.rmtree(save)
        if len(set(weights.values())) != 1:
            others = [name for name, w in weights.items() if w != weights["whole"]]
            raise Failed(f"{family}: {others} ended with other weights")
        found[family] = f"equal bits: {', '.join(ways)}"
    return found


@part(seconds=60)
def memory(call):
    """Allocations are the plan's to the byte (the program stops where not); the device's total is plan and reserve."""
    save, reserve = call.out / "memory_run", 256
    shutil.rmtree(save, ignore_errors=True)
    changes = {"save": str(save), "train_iters": 3, "save_interval": 0, "eval_interval": 0, "lr_warmup_iters": 1,
               "lr_decay_iters": 3, "train_data": call.train_data, "runtime_reserve_mib": reserve}
    if call.device == "cuda":
        config, _, _ = curve_parts.gpu_config(ROOT, "llama")
        config |= changes
    else:
        config = tiny(call, "gpt2", **changes)
    before = gpu_memory_used() if call.device == "cuda" else None
    call.run("memory", [call.program("athanor"), "train", call.config("memory", **config)])
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["event"] == "step"][-1]
    shutil.rmtree(save)
    found = {"planned": last["memory_planned"], "reserve": reserve << 20, "used": last["memory_used"], "before": before}
    if before is None:
        return found | {"remark": "the total of a device was not measured here"}
    return found | {"share": judge_memory(found)}


def gpu_memory_used():
    """Bytes that others hold, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True)
    return int(done.stdout.split()[0]) << 20 if done.returncode == 0 else None


def judge_memory(found):
    allowed, used = found["planned"] + found["reserve"], found["used"] - found["before"]
    if abs(used - allowed) > 0.01 * allowed:
        raise Failed(f"the device holds {used} bytes for this run, plan and reserve are {allowed}: more than 1 % apart "
                     "(runtime_reserve_mib is what the libraries need)")
    return used / allowed


def attention_part(call, part, tests):
    if call.device == "cpu":
        raise NotRun("needs a GPU or the emulated one: the CPU backend has one attention")
    return call.google_tests(part, "gpu_test_cuda", f"AttentionPair.{tests}")


@part(seconds=240)
def attention(call):
    """cuDNN's attention and the program's own agree, forward and backward, for sequences of one length."""
    return attention_part(call, "attention", "Dense")


@part(seconds=240)
def attention_packed(call):
    """The same for documents of different lengths in one batch."""
    return attention_part(call, "attention_packed", "Packed")


@part(seconds=150)
def ranks(call):
    """Two and four ranks, threads on one GPU, over NCCL: collectives, 20 steps of each stage, lost or hanging peers.

    On the CPU: ranks of one process that meet in its memory.
    """
    # Ranks of one process: those of several would take turns on the GPU, under collectives that wait for each other.
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
    return call.google_tests("ranks", "gpu_test_train", "Nccl*", env=shared)


def curve_part(call, family):
    if call.device == "emulated":
        raise NotRun("needs a GPU or the CPU backend: the emulated GPU is too slow")
    python = curve_parts.torch_python()
    if not python:
        raise NotRun("no PyTorch in ATHANOR_PYTHON or this Python")
    if call.device == "cuda":
        config, steps, micro = curve_parts.gpu_config(ROOT, family)
        config |= {"train_data": call.train_data, "precision": "bf16"}
    else:
        steps, micro = 20, 4
        config = tiny(call, family, precision="fp32" if family == "gpt2" else "bf16")
    try:
        return curve_parts.compare(call, python, f"curves_{family}", config, steps, micro)
    except ValueError as error:
        raise Failed(str(error)) from error


@part(seconds=220)
def curves_gpt2(call):
    """300 steps of gpt2-124m on real text follow PyTorch's within the spread of two of its seeds."""
    return curve_part(call, "gpt2")


@part(seconds=330)
def curves_llama(call):
    """60 steps of llama-1b on real text follow PyTorch's within the spread of two of its seeds."""
    return curve_part(call, "llama")


# ---- the report


def load_report(paths, device):
    """What earlier calls of this commit found on this kind of device; without a known commit there are none."""
    head = {"commit": commit() or "unknown", "device": device}
    for path in paths:
        if path and path.exists() and head["commit"] != "unknown":
            report = json.loads(path.read_text())
            if all(report.get(k) == v for k, v in head.items()):
                return report
    return head | {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "parts": {}}


def run_part(name, call):
    begin = time.monotonic()
    call.end = begin + call.minutes * 60
    entry = {"device": call.device}
    if begin + ESTIMATES[name] > call.call_end:
        why = (f"{call.call_end - begin:.0f} s were left of the call, about {ESTIMATES[name]} are needed: call again "
               "with --parts rest")
        return entry | {"status": "not run", "seconds": 0.0, "why": why}
    try:
        entry |= {"status": "passed", "found": PARTS[name](call)}
    except NotRun as why:
        entry |= {"status": "not run", "why": str(why)}
    except Failed as why:
        entry |= {"status": "FAILED", "why": str(why)}
    except Exception as error:  # of this script or of what a program wrote; the other parts go on
        entry |= {"status": "FAILED", "why": f"{type(error).__name__}: {error}"}
    entry["seconds"] = round(time.monotonic() - begin, 1)
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", default=os.environ.get("OUT", "verify-out"))
    parser.add_argument("--device", choices=("cuda", "cpu", "emulated"), default="cuda")
    parser.add_argument("--data", default=ROOT / "data", help="folder with text_train_*.bin, tokens of bytes")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--call-minutes", type=float, default=math.inf, help="of all parts together; default: no limit")
    parser.add_argument("--earlier", type=Path, help="report of earlier calls, where --out is another folder")
    parser.add_argument("--list", action="store_true", help="the parts and the seconds that they may take")
    args = parser.parse_args()
    if args.list:
        for name, function in PARTS.items():
            print(f"{name:16} {ESTIMATES[name]:4} s  {function.__doc__.strip().splitlines()[0]}")
        print(f"{'together':16} {sum(ESTIMATES.values()):4} s")
        return 0
    call = Call(args)
    path = call.out / "verify.json"
    report = load_report([path, args.earlier], args.device)
    names = args.parts.split(",")
    if names == ["rest"]:
        names = [n for n in PARTS if report["parts"].get(n, {}).get("status") != "passed"]
    if unknown := [n for n in names if n not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; --list names them")
    for name in names:
        print(f"{name} ...", flush=True)
        entry = run_part(name, call)
        before = report["parts"].get(name, {}).get("status", "not run")
        if entry["status"] != "not run" or before == "not run":  # what did run stays
            report["parts"][name] = entry
        report["parts"] = {n: report["parts"][n] for n in PARTS if n in report["parts"]}
        path.write_text(json.dumps(report, indent=1) + "\n")
    return show(report)


def show(report):
    print(f"\n{'part':16} {'status':8} {'seconds':>8}  remark")
    for name, entry in report["parts"].items():
        remark = entry.get("why", "").splitlines()
        print(f"{name:16} {entry['status']:8} {entry['seconds']:8.1f}  {remark[0][:90] if remark else ''}")
    statuses = [entry["status"] for entry in report["parts"].values()]
    counts = {s: statuses.count(s) for s in ("passed", "FAILED", "not run")}
    counts["not run"] += len(PARTS) - len(statuses)
    print(", ".join(f"{n} {status}" for status, n in counts.items()), f"of {len(PARTS)} parts on {report['device']}, "
          f"commit {report['commit'][:12]}")
    return 1 if counts["FAILED"] else 3 if "not run" in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
