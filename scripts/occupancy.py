#!/usr/bin/env python3
"""Computes how the program's kernels fill an H200: resident threads, and what the last wave of blocks wastes.

usage: occupancy.py [--build-dir DIR] [--models A,B] [--set key=value] [--markdown]
Launches are those of an optimizer step of the models of scripts/bench/gpu/compare.py, at full size (kernel_launches of the
tests, on the emulated GPU); registers and static shared memory are read from the objects that nvcc made for sm_90a
(machine_code.py). Nothing here is measured. Columns:
    in a step   launches
    occupancy   threads of a multiprocessor that are resident, of 2048, when all its blocks are; and what bounds it:
                registers, shared memory, threads, or the number of blocks
    waves       blocks over those that are resident at once on all 132 multiprocessors
    filled      waves over whole waves: the rest is idle time of the last one, if all blocks took equally long. Below
                one wave it is the share of the multiprocessors that have a block
"""
import argparse
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine_code

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "bench" / "gpu"))
from compare import MODELS  # noqa: E402

# CUDA C++ Programming Guide, "Compute Capabilities", 9.0; registers are given out by 256 to a warp, shared memory by
# 128 bytes, and a block takes 1 KiB of it for the system.
MULTIPROCESSORS, THREADS, BLOCKS, REGISTERS, SHARED, RESERVED = 132, 2048, 32, 65536, 228 << 10, 1 << 10
ARCHITECTURE = "sm_90a"


@dataclass
class Occupancy:
    blocks: int  # resident on a multiprocessor
    share: float  # of its threads
    bound: str
    waves: float
    filled: float


def round_up(x, multiple):
    return -(-x // multiple) * multiple


def occupancy(threads, registers, shared, blocks):
    """Of `blocks` blocks with so many threads, each of so many registers, and bytes of shared memory."""
    warps = round_up(threads, 32) // 32
    bounds = {"threads": THREADS // (warps * 32), "blocks": BLOCKS,
              "shared memory": SHARED // round_up(shared + RESERVED, 128),
              "registers": REGISTERS // (round_up(max(registers, 1) * 32, 256) * warps)}
    bound = min(bounds, key=bounds.get)
    resident = bounds[bound]
    if resident == 0:
        raise ValueError(f"no block fits on a multiprocessor: {bound}")
    waves = blocks / (resident * MULTIPROCESSORS)
    filled = waves / math.ceil(waves) if waves > 1 else min(1, blocks / MULTIPROCESSORS)
    return Occupancy(resident, resident * warps * 32 / THREADS, bound, waves, filled)


def bare(name):
    """A demangled kernel without its result and parameters, as the emulated GPU names it."""
    name, depth = name.removeprefix("void "), 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous namespace)", at):
            return name[:at]
    return name


def short(name):
    name = re.sub(r"athanor::|cuda::|attention::|\(anonymous namespace\)::|__nv_", "", name)
    return re.sub(r"\((\w+)\)(\d)", r"\2", name)


def compiled(build):
    objects = sorted((build / "cuda").glob("*.o"))
    kernels = machine_code.read_kernels(machine_code.tool_folder(), objects)
    return {bare(k.name): k for k in kernels.values() if k.architecture == ARCHITECTURE}


def launches(program, model, settings):
    """[(times in a step, blocks, threads, dynamic bytes, kernel)] and a line about the step."""
    setup = MODELS[model]
    words = [f"seq_length={setup['seq']}", f"global_batch_size={setup['tokens'] // setup['seq']}",
             "micro_batch_size=auto"]
    words += ["master_weights=bf16"] if setup.get("state") == "bf16" else []
    done = subprocess.run([program, ROOT / "configs" / f"{model}.json", *words, *settings], capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"occupancy.py: {model}: {done.stderr.strip()}")
    head, *lines = done.stdout.splitlines()
    return head.removeprefix("# "), [(*map(int, line.split(" ", 4)[:4]), line.split(" ", 4)[4]) for line in lines]


def print_model(model, head, rows, kernels, markdown):
    columns = ["kernel", "in a step", "blocks x threads", "registers", "shared bytes", "occupancy", "waves", "filled"]
    form = "| {} | {} | {} | {} | {} | {} | {} | {} |"
    form = form if markdown else "{:72} {:>9} {:>16} {:>9} {:>12} {:>20} {:>8} {:>6}"
    print(f"{'**' if markdown else ''}{model}: {head}{'**' if markdown else ''}\n")
    print(form.format(*columns))
    if markdown:
        print("|" + "---|" * len(columns))
    for times, blocks, threads, dynamic, name in sorted(rows, key=lambda r: -r[0] * r[1] * r[2]):
        if name not in kernels:
            sys.exit(f"occupancy.py: {name} is launched, but no object in the build folder has it for {ARCHITECTURE}")
        k = kernels[name]
        o = occupancy(threads, k.registers, k.shared + dynamic, blocks)
        print(form.format(short(name), times, f"{blocks} x {threads}", k.registers, k.shared + dynamic,
                          f"{100 * o.share:.0f} % ({o.bound})", f"{o.waves:.2f}", f"{100 * o.filled:.0f} %"))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="of the configs (may repeat)")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if unknown := [m for m in args.models.split(",") if m not in MODELS]:
        parser.error(f"unknown model {unknown[0]}; known are {', '.join(MODELS)}")
    program = args.build_dir / "tests" / "kernel_launches"
    try:
        kernels = compiled(args.build_dir)
    except machine_code.NotHere as why:
        sys.exit(f"occupancy.py: {why}")
    if not kernels or not program.exists():
        lacking = program.name if kernels else f"kernels for {ARCHITECTURE}"
        sys.exit(f"occupancy.py: {args.build_dir} has no {lacking}: build the tests with nvcc and --cuda-arch 90a")
    for model in args.models.split(","):
        print_model(model, *launches(program, model, args.set), kernels, args.markdown)


if __name__ == "__main__":
    main()
