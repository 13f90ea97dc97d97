#!/usr/bin/env python3
"""Checks compiled kernels against their budget: registers, spills, and speed-critical instructions and their order.

usage: check_kernels.py [--build-dir DIR] [--budget FILE] [--update] [--list]
Reads the objects of DIR/cuda (made by nvcc) with cuobjdump and nvdisasm, which .cache/python has (scripts/setup.sh --tests)
or the CUDA toolkit. FILE (default tests/cuda/kernel_budget.txt) has a line per group of kernels:
    architecture | regular expression of the kernel's name | most registers | instructions that each must have
A kernel of a line uses no stack (registers that do not fit are spilled there), unless the line has "| stack N" bytes.
"| order M H8 W1 e64 W0; M A T2" is the order of what is asynchronous in the loops with wgmmas, then in those with
copies, then in those around wgmmas, such as the loop over heads, as machine_code.py reads it: H wgmmas, W1 and W0 waits until so many groups of them are left, e exponentials, T
copies by TMA, B barriers of threads, M waits for a barrier in shared memory, A arrivals there.
Kernels in no line are off the hot path. Every line must match a kernel. All kernels with wgmma or TMA are held to three
rules more: wgmmas wait in groups, not one by one, which ptxas arranges where it finds their registers in use and does not
count as a warning; exponentials in a loop with wgmmas run while some of these do, since ptxas may move a wait above them;
and static shared memory ends on a boundary of 1024 bytes, where swizzled tiles begin. On sm_90 and later every kernel waits for
those before it (griddepcontrol.wait) before it touches global memory, since its launch may be programmatic. --update sets registers, stack and
order of the lines to what is there; --list prints all kernels with their resources, and with their order where they have one.
"""
import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from machine_code import (NotHere, exponentials, orders, wgmma_loops, read_instructions, read_kernels, tool_folder,
                          touched_before_wait)

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests" / "cuda" / "kernel_budget.txt"


@dataclass
class Line:
    number: int
    architecture: str
    pattern: str
    registers: int
    instructions: list
    stack: int
    order: str  # empty: any

    def matches(self, kernel):
        return kernel.architecture == self.architecture and re.search(self.pattern, kernel.name)


def read_budget(path):
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        parts = [p.strip() for p in text.split(" | ")]
        more = dict(p.partition(" ")[::2] for p in parts[4:])
        if len(parts) < 4 or not parts[2].isdigit() or not more.keys() <= {"stack", "order"}:
            sys.exit(f"{path}:{number}: expected architecture | pattern | registers | instructions [| stack N] [| order ...]")
        lines.append(Line(number, parts[0], parts[1], int(parts[2]), parts[3].split(), int(more.get("stack", 0)),
                          more.get("order", "")))
    return lines


def has(kernel, wanted):
    """An instruction counts with any further modifiers: LDG.E.128 is also LDG.E.128.CONSTANT."""
    return any(i == wanted or i.startswith(wanted + ".") for i in kernel.instructions)


def asynchronous_problems(kernel):
    wgmmas = [i for i in kernel.code if i.name.startswith(("HGMMA", "QGMMA"))]
    waited = sum("gsb0" in i.operands for i in wgmmas)
    if 2 * waited > len(wgmmas):
        yield f"{kernel.name}: {waited} of {len(wgmmas)} wgmma end a group: ptxas has made them wait one by one"
    for loop in wgmma_loops(kernel.code) if wgmmas else []:
        number, beside = exponentials(loop)
        if beside < number:
            yield (f"{kernel.name}: {number - beside} of {number} exponentials of its loop run while no wgmma does "
                   f"({orders(kernel.code)}): hold the wait back with wgmma_wait_after()")
    swizzled = any(i.startswith(("HGMMA", "QGMMA", "UTMA")) for i in kernel.instructions)
    if swizzled and kernel.shared % 1024:
        yield f"{kernel.name}: dynamic shared memory begins after {kernel.shared} static bytes, expected a multiple of 1024"


def start_problems(kernel):
    if int(re.search(r"\d+", kernel.architecture)[0]) < 90:
        return
    if early := touched_before_wait(kernel.code):
        yield (f"{kernel.name}: {early[0].name} at {early[0].address:#x} comes before griddepcontrol.wait, expected "
               "ptx::wait_for_earlier_kernels() before all that reads or writes global memory")


def problems_of(kernels, lines, budget):
    out = [problem for kernel in kernels for find in (asynchronous_problems, start_problems) for problem in find(kernel)]
    for line in lines:
        where, matching = f"{budget.name}:{line.number}", [k for k in kernels if line.matches(k)]
        if not matching:
            out.append(f"{where}: no kernel of {line.architecture} matches {line.pattern}")
        for kernel in matching:
            if kernel.registers > line.registers:
                out.append(f"{where}: {kernel.name} uses {kernel.registers} registers, budget {line.registers}")
            if kernel.local or kernel.stack > line.stack:
                out.append(f"{where}: {kernel.name} uses {kernel.stack} bytes of stack and {kernel.local} of local memory, "
                           f"budget {line.stack} and 0: spills cost memory traffic in inner loops")
            out += [f"{where}: {kernel.name} has no {i}" for i in line.instructions if not has(kernel, i)]
            if line.order and (found := orders(kernel.code)) != line.order:
                out.append(f"{where}: {kernel.name} has the order {found}, budget {line.order}")
    return out


def update(path, lines, kernels):
    text = path.read_text().splitlines()
    for line in lines:
        parts = text[line.number - 1].split(" | ")
        matching = [k for k in kernels if line.matches(k)]
        parts[2] = str(max((k.registers for k in matching), default=line.registers))
        stack = max((k.stack for k in matching), default=line.stack)
        order = orders(matching[0].code) if line.order and matching else line.order
        parts[4:] = [f"stack {stack}"] * (stack > 0) + [f"order {order}"] * (order != "")
        text[line.number - 1] = " | ".join(parts)
    path.write_text("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default="build")
    parser.add_argument("--budget", type=Path, default=BUDGET)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    objects = sorted((Path(args.build_dir) / "cuda").glob("*.o"))
    if not objects:
        print(f"skipped: no objects of kernels in {args.build_dir}/cuda (no nvcc, or ATHANOR_CUDA=OFF)")
        return 0
    try:
        folder = tool_folder()
    except NotHere as why:
        print(f"skipped: {why}")
        return 0
    kernels = read_kernels(folder, objects)
    built = {k.architecture for k in kernels.values()}
    lines = [line for line in read_budget(args.budget) if line.architecture in built]
    read_instructions(folder, objects, sorted(built if args.list else {line.architecture for line in lines}), kernels)
    if args.list:
        for k in sorted(kernels.values(), key=lambda k: (k.architecture, k.name)):
            print(f"{k.architecture:8} {k.registers:4} registers {k.stack:4} stack  {k.name}  {orders(k.code)}".rstrip())
        return 0
    if args.update:
        update(args.budget, lines, kernels.values())
        return 0
    problems = problems_of(kernels.values(), lines, args.budget)
    print("\n".join(problems) if problems else f"{len(kernels)} kernels keep the {len(lines)} lines of their budget")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
