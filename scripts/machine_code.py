"""Kernels as nvcc compiled them: resources, instructions, loops, and what stands in a loop in which order.

Read from objects with cuobjdump and nvdisasm, which .cache/python has (scripts/setup.sh --tests) or the CUDA toolkit.
"""
import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+) )?([A-Z][A-Za-z0-9_.]*)([^;]*);")


class NotHere(Exception):
    pass


@dataclass
class Instruction:
    address: int
    predicate: str  # "@!P0", or empty
    name: str       # with its modifiers: "MUFU.EX2"
    operands: str

    def target(self):
        """Of a branch, else None."""
        if self.name.split(".")[0] not in ("BRA", "CALL", "BSSY"):
            return None
        found = re.search(r"0x([0-9a-f]+)\s*$", self.operands)
        return int(found[1], 16) if found and self.name.startswith("BRA") else None


@dataclass
class Kernel:
    architecture: str
    name: str
    registers: int
    stack: int
    shared: int  # static
    local: int
    code: list = field(default_factory=list)

    @property
    def instructions(self):
        return {i.name for i in self.code}


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
        sys.exit(f"cuobjdump {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, text.splitlines()))


def read_kernels(folder, objects):
    """{(architecture, mangled name): Kernel} without instructions."""
    kernels = {}
    for path in objects:
        for block in re.split(r"^arch = ", call(folder, "--dump-resource-usage", str(path)), flags=re.M)[1:]:
            architecture = block.split("\n", 1)[0]
            for name, *numbers in USAGE.findall(block):
                kernels[architecture, name] = Kernel(architecture, name, *map(int, numbers))
    names = demangled(sorted({name for _, name in kernels}))
    for (_, name), kernel in kernels.items():
        kernel.name = names[name]
    return kernels


def read_instructions(folder, objects, architectures, kernels):
    for path, architecture in itertools.product(objects, architectures):
        for name, code in parse(call(folder, "--dump-sass", "-arch", architecture, str(path))):
            if (architecture, name) in kernels:
                kernels[architecture, name].code = code


def parse(text):
    """[(mangled name, instructions)] of what cuobjdump prints."""
    functions = []
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            functions.append((match[1], []))
        elif functions and (match := LINE.match(line)):
            functions[-1][1].append(Instruction(int(match[1], 16), match[2] or "", match[3], match[4].strip()))
    return functions


# ---- loops

def blocks_of(code):
    """(blocks as [first, past the last) indices of code, their successors)."""
    index = {i.address: n for n, i in enumerate(code)}
    starts = {0}
    for n, i in enumerate(code):
        if i.target() in index:
            starts.add(index[i.target()])
        if i.name.startswith(("BRA", "EXIT", "RET", "BRX")):
            starts.add(n + 1)
    starts = sorted(s for s in starts if s < len(code))
    blocks = list(zip(starts, [*starts[1:], len(code)]))
    number, after = {first: b for b, (first, _) in enumerate(blocks)}, []
    for b, (_, end) in enumerate(blocks):
        last, out = code[end - 1], []
        if last.target() in index:
            out.append(number[index[last.target()]])
        leaves = last.name.startswith(("BRA", "EXIT", "RET", "BRX"))
        # "BRA.U UP0" and "BRA P0, 0x.." are conditional without a predicate in front.
        conditional = last.predicate or re.match(r"!?U?P\d", last.operands) or last.name.startswith("BRA.DIV")
        if b + 1 < len(blocks) and (not leaves or conditional):
            out.append(b + 1)
        after.append(out)
    return blocks, after


# Of global memory; what has no state space may be.
TOUCHES_GLOBAL = re.compile(r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED)(\.|$)")


def touched_before_wait(code):
    """Instructions that touch global memory on a way from the start without griddepcontrol.wait (ACQBULK)."""
    blocks, after = blocks_of(code) if code else ([], [])
    found, seen, ahead = [], set(), [0] if blocks else []
    while ahead:
        b = ahead.pop()
        if b in seen:
            continue
        seen.add(b)
        instructions = code[slice(*blocks[b])]
        waits = [n for n, i in enumerate(instructions) if i.name == "ACQBULK" and not i.predicate]
        found += [i for i in instructions[:waits[0] if waits else None] if TOUCHES_GLOBAL.match(i.name)]
        if not waits:
            ahead += after[b]
    return found


def loops_of(code):
    """[instructions by address] of each natural loop; code behind a loop that only waits and jumps back belongs to it."""
    if not code:
        return []
    blocks, after = blocks_of(code)
    before = [[] for _ in blocks]
    for b, out in enumerate(after):
        for s in out:
            before[s].append(b)
    everything = (1 << len(blocks)) - 1
    dominators, changed = [1] + [everything] * (len(blocks) - 1), True
    while changed:
        changed = False
        for b in range(1, len(blocks)):
            now = everything
            for p in before[b]:
                now &= dominators[p]
            now |= 1 << b
            changed, dominators[b] = changed or now != dominators[b], now
    loops = {}
    for b in reached_from(0, after):
        for head in after[b]:
            if dominators[b] >> head & 1:
                loops.setdefault(head, {head}).update(reached_from(b, before, {head}))
    return [[i for b in sorted(nodes) for i in code[slice(*blocks[b])]] for nodes in sorted(loops.values(), key=min)]


def reached_from(start, edges, seen=()):
    """`start`, what its edges lead to, and `seen`, beyond which nothing is followed."""
    seen = {*seen}
    todo = [start] if start not in seen else []
    seen.add(start)
    while todo:
        for s in edges[todo.pop()]:
            if s not in seen:
                seen.add(s)
                todo.append(s)
    return seen


# ---- the order of what is asynchronous

# H wgmmas, W1 and W0 waits until so many groups of them are left, e exponentials, T copies by TMA, B barriers of threads,
# M waits for a barrier in shared memory, A arrivals there.
WORDS = [("H", re.compile(r"[HQ]GMMA")), ("W", re.compile(r"WARPGROUP\.DEPBAR")), ("e", re.compile(r"MUFU\.EX2")),
         ("T", re.compile(r"UTMA|UBLKCP")), ("B", re.compile(r"BAR\.")), ("M", re.compile(r"SYNCS\.PHASECHK")),
         ("A", re.compile(r"SYNCS\.ARRIVE"))]


def word(instruction):
    found = next((letter for letter, pattern in WORDS if pattern.match(instruction.name)), "")
    return f"W{int(instruction.operands.split()[-1], 16)}" if found == "W" else found


def order(loop):
    """Such as "H12 W1 e66 W0": 12 wgmmas, and 66 exponentials between two waits."""
    words = filter(None, map(word, loop))
    runs = ((key, len(list(group))) for key, group in itertools.groupby(words))
    return " ".join(key + (str(count) if count > 1 and key[0] != "W" else "") for key, count in runs)


def without_waits(code, chosen):
    """Loops without the turns of a wait."""
    waits = {i.address for loop in loops_of(code) if {word(i)[:1] for i in loop} - {""} == {"M"} for i in loop}
    return [[i for i in loop if i.address not in waits] for loop in chosen]


def innermost(code, *letters):
    """The loops that have such words, of those inside each other the smallest."""
    chosen = [loop for loop in loops_of(code) if set(letters) <= {word(i)[:1] for i in loop}]
    places = [{i.address for i in loop} for loop in chosen]
    smallest = [loop for loop, place in zip(chosen, places) if not any(other < place for other in places)]
    return without_waits(code, smallest)


def wgmma_loops(code):
    return innermost(code, "H")


def copy_loops(code):
    """Of a producer: it waits for room, and copies."""
    return innermost(code, "M", "T")


def loop_around(code, inner):
    """The smallest loop with more in it than `inner` and waits; empty if there is none."""
    places = {i.address for i in inner}
    around = [loop for loop in loops_of(code) if places < {i.address for i in without_waits(code, [loop])[0]}]
    return min(around, key=len, default=[])


def loops_around_wgmma(code):
    """Such as those over heads, but for loops that copy."""
    found = []
    for loop in (loop_around(code, inner) for inner in wgmma_loops(code)):
        if loop and loop not in found and "T" not in map(word, loop):
            found.append(loop)
    return without_waits(code, found)


def orders(code):
    """Of the loops with wgmmas, those with copies and those around wgmmas: "M H8 W1 A e64 W0; M A T2"."""
    return "; ".join(map(order, wgmma_loops(code) + copy_loops(code) + loops_around_wgmma(code)))


def exponentials(loop):
    """(all, those while a group of wgmmas may be running): a later turn of the loop counts."""
    running = total = beside = 0
    for turn in range(2):
        total = beside = 0
        for i in loop:
            kind = word(i)
            if kind == "H" and "gsb0" in i.operands:
                running += 1
            elif kind[:1] == "W":
                running = min(running, int(kind[1:]))
            elif kind == "e":
                total, beside = total + 1, beside + (running > 0)
    return total, beside
