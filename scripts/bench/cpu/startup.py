#!/usr/bin/env python3
"""Times starts: how long the program needs to say its version, to plan a run, and to the end of a run's first step.

usage: startup.py [--program build/athanor] [--runs 50] [--out scripts/bench/results/startup.json]
Every time is a process of its own, with its files in the page cache. Prints medians; --out writes all of them.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOAL_VERSION_MS = 50


def milliseconds(command, folder):
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"startup.py: {' '.join(map(str, command))}: {done.stderr.decode()[-500:]}")
    return (time.monotonic() - begin) * 1e3


def write_shard(path, count):
    """llm.c version 1 with every byte value in turn."""
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *([0] * 253)) +
                     struct.pack(f"<{count}H", *(i % 257 for i in range(count))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    program = args.program.resolve()
    quickstart = ROOT / "configs" / "quickstart.json"
    with tempfile.TemporaryDirectory(prefix="athanor-startup-") as folder:
        write_shard(Path(folder) / "data.bin", 100_000)
        one_step = ["--set", "train_data=data.bin", "--set", "valid_data=data.bin", "--set", "save=", "--set", "train_iters=1",
                    "--set", "schedule.lr_warmup_iters=0", "--set", "eval_interval=0"]
        commands = {
            "version": [program, "--version"],
            "plan quickstart": [program, "plan", quickstart],
            "plan llama-1b": [program, "plan", ROOT / "configs" / "llama-1b.json", "--set", "micro_batch_size=1", "--set",
                              "seq_length=2048", "--set", "memory_limit_gib=1000"],
            "first step of quickstart": [program, "train", quickstart, *one_step],
        }
        times = {name: sorted(milliseconds(c, folder) for _ in range(args.runs)) for name, c in commands.items()}
    for name, values in times.items():
        print(f"{name:26} median {statistics.median(values):8.1f} ms, fastest {values[0]:8.1f}, slowest {values[-1]:8.1f}")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")
    if args.out:
        model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.machine())
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "program": version, "cpu": model,
            "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "runs": args.runs,
            "median_ms": {name: round(statistics.median(v), 2) for name, v in times.items()},
            "all_ms": {name: [round(x, 2) for x in v] for name, v in times.items()}}, indent=1) + "\n")
    slow = statistics.median(times["version"]) > GOAL_VERSION_MS
    print(f"--version starts in {'MORE than' if slow else 'at most'} {GOAL_VERSION_MS} ms")


if __name__ == "__main__":
    main()
