#!/usr/bin/env python3
"""Holds the compiled kernels to their budget: registers, spills, and the instructions that their speed rests on.

usage: check_kernels.py [--build-dir DIR] [--budget FILE] [--update] [--list]
Reads the objects of DIR/cuda (made by nvcc) with cuobjdump and nvdisasm, which .cache/python has (scripts/setup.sh --tests)
or the CUDA toolkit. FILE (default tests/cuda/kernel_budget.txt) has a line per group of kernels:
    architecture | regular expression of the kernel's name | most registers | instructions that each must have
A kernel of a line uses no stack (registers that do not fit are spilled there), unless the line ends in "| stack N" bytes.
Kernels in no line are off the hot path. Every line must match a kernel. All kernels with wgmma or TMA are held to two rules
more: products wait in groups, not one by one, which ptxas arranges where it finds their registers in use and does not count
as a warning; and static shared memory ends on a boundary of 1024 bytes, where swizzled tiles begin. --update sets registers
and stack of the lines to what is there; --list prints all kernels with their resources.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests" / "cuda" / "kernel_budget.txt"
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Za-z0-9_.]*)")


@dataclass
class Kernel:
    architecture: str
    name: str
    registers: int
    stack: int
    shared: int  # static
    local: int
    instructions: set = field(default_factory=set)
    products: int = 0  # wgmma
    waited: int = 0    # of these, how many end a group


@dataclass
class Line:
    number: int
    architecture: str
    pattern: str
    registers: int
    instructions: list
    stack: int

    def matches(self, kernel):
        return kernel.architecture == self.architecture and re.search(self.pattern, kernel.name)


class NotHere(Exception):
    pass


def tool_folder():
    """The folder with cuobjdump and nvdisasm; they come as a pair."""
    folders = [str(p.parent) for p in (ROOT / ".cache" / "python").glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump")]
    found = shutil.which("cuobjdump")
    folders += [os.path.dirname(found)] if found else []
    for folder in folders:
        if os.access(Path(folder) / "nvdisasm", os.X_OK) or shutil.which("nvdisasm"):
            return folder
    raise NotHere("cuobjdump and nvdisasm are not installed: run scripts/setup.sh --tests")


def call(folder, *arguments):
    env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
    done = subprocess.run([f"{folder}/cuobjdump", *arguments], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"check_kernels.py: cuobjdump {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, text.splitlines()))


def read_kernels(folder, objects):
    kernels = {}
    for path in objects:
        architecture = ""
        for block in re.split(r"^arch = ", call(folder, "--dump-resource-usage", str(path)), flags=re.M)[1:]:
            architecture = block.split("\n", 1)[0]
            for name, *numbers in USAGE.findall(block):
                kernels[architecture, name] = Kernel(architecture, name, *map(int, numbers))
    names = demangled(sorted({name for _, name in kernels}))
    for (_, name), kernel in kernels.items():
        kernel.name = names[name]
    return kernels


def read_instructions(folder, objects, architectures, kernels):
    for path in objects:
        for architecture in architectures:
            name = None
            for line in call(folder, "--dump-sass", "-arch", architecture, str(path)).splitlines():
                if match := re.search(r"Function : (\S+)", line):
                    name = match[1]
                elif (match := INSTRUCTION.match(line)) and (architecture, name) in kernels:
                    kernel = kernels[architecture, name]
                    kernel.instructions.add(match[1])
                    kernel.products += match[1].startswith("HGMMA")
                    kernel.waited += match[1].startswith("HGMMA") and "gsb0" in line


def read_budget(path):
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        parts = [p.strip() for p in text.split(" | ")]
        if len(parts) not in (4, 5) or not parts[2].isdigit():
            sys.exit(f"{path}:{number}: expected architecture | pattern | registers | instructions [| stack N]")
        stack = int(parts[4].removeprefix("stack ")) if len(parts) == 5 else 0
        lines.append(Line(number, parts[0], parts[1], int(parts[2]), parts[3].split(), stack))
    return lines


def has(kernel, wanted):
    """An instruction counts with any further modifiers: LDG.E.128 is also LDG.E.128.CONSTANT."""
    return any(i == wanted or i.startswith(wanted + ".") for i in kernel.instructions)


def asynchronous_problems(kernel):
    if 2 * kernel.waited > kernel.products:
        yield f"{kernel.name}: {kernel.waited} of {kernel.products} wgmma end a group: ptxas has made them wait one by one"
    swizzled = any(i.startswith(("HGMMA", "UTMA")) for i in kernel.instructions)
    if swizzled and kernel.shared % 1024:
        yield f"{kernel.name}: dynamic shared memory begins after {kernel.shared} static bytes, expected a multiple of 1024"


def problems_of(kernels, lines, budget):
    out = [problem for kernel in kernels for problem in asynchronous_problems(kernel)]
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
    return out


def update(path, lines, kernels):
    text = path.read_text().splitlines()
    for line in lines:
        parts = text[line.number - 1].split(" | ")
        matching = [k for k in kernels if line.matches(k)]
        parts[2] = str(max((k.registers for k in matching), default=line.registers))
        stack = max((k.stack for k in matching), default=line.stack)
        parts[4:] = [f"stack {stack}"] if stack else []
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
    if args.list:
        for k in sorted(kernels.values(), key=lambda k: (k.architecture, k.name)):
            print(f"{k.architecture:8} {k.registers:4} registers {k.stack:4} stack  {k.name}")
        return 0
    built = {k.architecture for k in kernels.values()}
    lines = [line for line in read_budget(args.budget) if line.architecture in built]
    if args.update:
        update(args.budget, lines, kernels.values())
        return 0
    read_instructions(folder, objects, sorted({line.architecture for line in lines}), kernels)
    problems = problems_of(kernels.values(), lines, args.budget)
    print("\n".join(problems) if problems else f"{len(kernels)} kernels keep the {len(lines)} lines of their budget")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
