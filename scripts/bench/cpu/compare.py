#!/usr/bin/env python3
"""Times training steps of athanor and of PyTorch side by side: same model, batch, optimizer, cores, precision.

The sides take turns, several rounds each, so that a machine that slows down or is shared slows both. PyTorch stays
alive between its turns, asleep, and is measured eager and compiled, with MKL and with oneDNN; its best counts. Results
go to a table and to JSON. See README.md beside this file.

usage: compare.py --athanor build/athanor        compare.py --torch-only
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# glibc gives freed tensors back to the system and PyTorch faults them in again at every step, for up to a tenth of it.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_MMAP_THRESHOLD_": "100000000000",
               "MALLOC_TOP_PAD_": "1000000000"}
# Instruction set of both sides: athanor's, PyTorch's own kernels', oneDNN's, MKL's.
ISAS = {
    "avx2": {"ATHANOR_CPU_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ATHANOR_CPU_ISA": "avx512", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
               "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}
DISTURBED = 0.05  # share of the cores that other programs may take
SETTLE_SECONDS = 0.5  # threads of the other side that still spin for work fall asleep

# steps and warmup are those of one turn
SHAPES = {
    "gpt2-3m": dict(layers=4, hidden=256, heads=4, time=128, batch=16, vocab=256, steps=20, warmup=3),
    "gpt2-11m": dict(layers=6, hidden=384, heads=6, time=256, batch=8, vocab=256, steps=10, warmup=2),
    "gpt2-124m": dict(layers=12, hidden=768, heads=12, time=256, batch=4, vocab=50257, steps=4, warmup=1),
    "mixtral-11m": dict(layers=4, hidden=256, heads=4, time=256, batch=8, vocab=256, experts=8, chosen=2, width=384, steps=10, warmup=2),
    "vit-s16": dict(layers=12, hidden=384, heads=6, time=197, batch=8, vocab=1000, image=224, patch=16, steps=6, warmup=1),
}


class TorchSide:
    """torch_worker.py as a process that lives through all turns."""

    def __init__(self, shape, variant, args):
        numbers = {k: v for k, v in shape.items() if k not in ("steps", "warmup")}
        command = [args.python, str(HERE / "torch_worker.py"), "--shape", json.dumps(numbers), "--variant", variant,
                   "--threads", str(args.threads), "--precision", args.precision]
        self.name = "torch " + variant
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | KEEP_MEMORY)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, steps, warmup):
        try:
            self.process.stdin.write(json.dumps(dict(steps=steps, warmup=warmup)) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.process.kill()
            raise SystemExit(f"{self.name}: torch_worker.py ended with status {self.process.wait()}") from None

    def close(self):
        if self.process.poll() is None:
            self.process.communicate()  # closes its input, which ends it


class AthanorSide:
    """A fresh `athanor bench step` for every turn: its start costs milliseconds and is not in the step times."""

    def __init__(self, shape, args, folder):
        self.name = "athanor"
        self.binary = args.athanor
        self.config = folder / "config.json"
        self.settings = [word for s in args.set for word in ("--set", s)]
        self.config.write_text(json.dumps(athanor_config(shape, args), indent=2))

    def cpu_seconds(self):
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def turn(self, steps, warmup):
        command = [str(self.binary), "bench", "step", str(self.config), "--steps", str(steps), "--warmup", str(warmup),
                   "--json", *self.settings]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"athanor: {' '.join(command)} ended with status {done.returncode}")
        lines = done.stdout.strip().splitlines()
        if not lines:
            raise SystemExit(f"athanor: {' '.join(command)} printed nothing; expected one line of JSON")
        return json.loads(lines[-1])

    def close(self):
        self.config.unlink()


def athanor_config(shape, args):
    vit = {"model_type": "vit", "image_size": shape["image"], "patch_size": shape["patch"]} if "image" in shape else {}
    mixture = {"model_type": "mixtral", "num_experts": shape["experts"], "num_experts_per_tok": shape["chosen"],
               "intermediate_size": shape["width"], "rope_theta": 10000, "router_aux_loss_coef": 0} if "experts" in shape else {}
    return {
        "model": {"model_type": "gpt2", "vocab_size": shape["vocab"], "hidden_size": shape["hidden"],
                  "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"],
                  "max_position_embeddings": shape["time"]} | mixture | vit,
        "seq_length": shape["time"], "global_batch_size": shape["batch"], "micro_batch_size": shape["batch"],
        "precision": args.precision, "train_iters": 1000, "learning_rate": 3e-4, "threads": args.threads,
    }


def machine_busy_seconds():
    """Seconds of work of all processes on all cores since boot."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(end):
    """Returns once the machine does next to nothing, or when time.monotonic() reaches `end`."""
    while time.monotonic() < end:
        busy = machine_busy_seconds()
        time.sleep(0.5)
        if machine_busy_seconds() - busy < 0.5 * DISTURBED * os.cpu_count():
            return


def measure_once(side, steps, warmup):
    """One turn, checked, with the share of all cores that other programs took meanwhile."""
    busy, own, start = machine_busy_seconds(), side.cpu_seconds(), time.monotonic()
    result = side.turn(steps, warmup)
    wall = time.monotonic() - start
    others = (machine_busy_seconds() - busy) - (side.cpu_seconds() - own)
    if len(result["step_ms"]) != steps:
        raise SystemExit(f"{side.name}: expected {steps} step times, got {len(result['step_ms'])}")
    result["others"] = max(0.0, others / (wall * os.cpu_count()))
    return result


def measure(side, steps, warmup, patience):
    """One turn. For `patience` seconds it is put off while other programs work, and repeated if they disturbed it."""
    time.sleep(SETTLE_SECONDS)
    end = time.monotonic() + patience
    best = None
    while best is None or (best["others"] > DISTURBED and time.monotonic() < end):
        wait_until_idle(end)
        result = measure_once(side, steps, warmup)
        if best is None or result["others"] < best["others"]:
            best = result
    return best


def check_same_work(shape, threads, results):
    tokens = shape["batch"] * shape["time"]
    parameters = {r["parameters"] for turns in results.values() for r in turns if "parameters" in r}
    if len(parameters) > 1:
        raise SystemExit(f"the sides differ in parameters: {sorted(parameters)}")
    for name, turns in results.items():
        for r in turns:
            if r["tokens_per_step"] != tokens or r["threads"] != threads:
                raise SystemExit(f"{name}: expected {tokens} tokens a step on {threads} threads, ran "
                                 f"{r['tokens_per_step']} on {r['threads']}")


def summarize(turns, tokens):
    """Numbers of one side: all steps together, and the median of each turn for the spread."""
    steps = [t for r in turns for t in r["step_ms"]]
    median = statistics.median(steps)
    return {"median_ms": round(median, 3), "fastest_ms": round(min(steps), 3), "slowest_ms": round(max(steps), 3),
            "tokens_per_second": round(tokens / median * 1e3, 1),
            "turn_medians_ms": [round(statistics.median(r["step_ms"]), 3) for r in turns],
            "cpu_taken_by_others": round(max(r["others"] for r in turns), 3), "steps": len(steps)}


def compare_shape(name, args, folder):
    shape = dict(SHAPES[name])
    shape["steps"] = args.steps or shape["steps"]
    sides = [] if args.torch_only else [AthanorSide(shape, args, folder)]
    torch_sides = [TorchSide(shape, variant, args) for variant in args.variants]
    sides += torch_sides
    try:
        for side in torch_sides:
            side.turn(1, 1)  # compilation
        results = {side.name: [] for side in sides}
        for turn in range(args.rounds):
            first = turn % len(sides)
            for side in sides[first:] + sides[:first]:  # nobody is always first
                results[side.name].append(measure(side, shape["steps"], shape["warmup"], args.wait_idle))
    finally:
        for side in sides:
            side.close()
    check_same_work(shape, args.threads, results)
    tokens = shape["batch"] * shape["time"]
    out = {"name": name, **shape, "sides": {side: summarize(turns, tokens) for side, turns in results.items()}}
    out["parameters"] = results[torch_sides[0].name][0]["parameters"]
    out["best_torch"] = min((s.name for s in torch_sides), key=lambda side: out["sides"][side]["median_ms"])
    if not args.torch_only:
        ours = out["sides"]["athanor"]["turn_medians_ms"]
        for side in torch_sides:
            ratios = [t / o for o, t in zip(ours, out["sides"][side.name]["turn_medians_ms"])]
            out["sides"][side.name]["athanor_speedup"] = round(statistics.median(ratios), 3)
            out["sides"][side.name]["athanor_speedup_range"] = [round(min(ratios), 3), round(max(ratios), 3)]
        out["speedup"] = out["sides"][out["best_torch"]]["athanor_speedup"]
    return out


def print_shape(result):
    tokens = f"{result['batch']} x {result['time']} tokens a step"
    print(f"\n{result['name']}: {result['parameters']:,} parameters, {tokens}")
    columns = "".join(f"{title:>10}" for title in ("median ms", "fastest", "slowest", "tokens/s"))
    print(f"  {'':22}{columns}{'others':>8}  athanor is faster by")
    for side, s in result["sides"].items():
        faster = ""
        if "athanor_speedup" in s:
            low, high = s["athanor_speedup_range"]
            faster = f"{s['athanor_speedup']:8.2f}x ({low:.2f} .. {high:.2f})"
            faster += "  <- its best" if side == result["best_torch"] else ""
        print(f"  {side:22}{s['median_ms']:10.1f}{s['fastest_ms']:10.1f}{s['slowest_ms']:10.1f}"
              f"{s['tokens_per_second']:10.0f}{s['cpu_taken_by_others']:8.0%}{faster}")
    if max(s["cpu_taken_by_others"] for s in result["sides"].values()) > DISTURBED:
        print("  other programs were running: these times say little, repeat on an idle machine")
    sys.stdout.flush()


def describe_run(args):
    cpu = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    git = lambda *words: subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, text=True).stdout
    packages = subprocess.run([args.python, "-c", "import torch, platform; print(torch.__version__, "
                               "platform.python_version(), torch.backends.cpu.get_cpu_capability())"],
                              stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "cpu": cpu,
            "cores": os.cpu_count(), "threads": args.threads, "rounds": args.rounds, "precision": args.precision,
            "isa": args.isa or "best", "commit": git("rev-parse", "--short=12", "HEAD").strip(),
            "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no", "src").strip()),
            "torch": packages[0], "python": packages[1], "torch_cpu_capability": packages[2]}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--athanor", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--torch-only", action="store_true", help="measure PyTorch alone")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="of both sides; bf16 is autocast in PyTorch (default: %(default)s)")
    parser.add_argument("--variants", nargs="+",
                        help="of PyTorch: eager, compile or a mode of torch.compile, +onednn in fp32 (default: "
                             "eager and compile, in fp32 each with and without +onednn)")
    parser.add_argument("--isa", choices=ISAS, help="instruction set of both sides (default: the best of this CPU)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="of one turn (default: by shape)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--wait-idle", type=float, default=0.0, metavar="SECONDS",
                        help="put a turn off for so long while other programs work, and repeat it if they disturbed it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to athanor")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for the results")
    args = parser.parse_args()
    if args.variants is None:
        args.variants = ["eager", "compile"] + (["eager+onednn", "compile+onednn"] if args.precision == "fp32" else [])
    if args.precision != "fp32" and any("+onednn" in variant for variant in args.variants):
        parser.error(f"--variants {' '.join(args.variants)}: +onednn is for fp32; bf16 GEMMs are oneDNN's anyway")
    if not args.torch_only and not args.athanor.is_file():
        parser.error(f"{args.athanor} does not exist: build it, or name it with --athanor, or use --torch-only")
    return args


def main():
    args = parse_arguments()
    if args.isa:
        os.environ |= ISAS[args.isa]
    cores = sorted(os.sched_getaffinity(0))
    if args.threads > len(cores):
        raise SystemExit(f"--threads {args.threads}: only {len(cores)} cores may be used")
    os.sched_setaffinity(0, cores[:args.threads])  # and so do all sides
    report = describe_run(args)
    print(f"{report['cpu']}, {args.threads} threads, {args.precision}, {report['isa']} instruction set; torch {report['torch']}; commit {report['commit']}")
    report["results"] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.shapes:
            result = compare_shape(name, args, pathlib.Path(folder))
            print_shape(result)
            report["results"].append(result)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=2) + "\n")
        print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
