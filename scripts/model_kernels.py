#!/usr/bin/env python3
"""Models how fast an H200 runs the loops with tensor-core products, from the machine code that nvcc made for sm_90a.

usage: model_kernels.py [--build-dir DIR]
For every kernel with wgmma in the objects of DIR/cuda: one turn of the loop with its products, on the way that takes the
fewest instructions past all products and exponentials (nothing hidden, no rows cleared, no wait repeated). Columns:
    tile        cycles of a multiprocessor in which both consumer warpgroups' turns end, by the model
    tensor      cycles that their products take on the tensor cores
    exp, issue, alu, smem   cycles of the other units, of the busiest of the four partitions: exponentials; one
                instruction of a warp each; comparisons, integers and conversions; shared memory
    regs        registers of a thread
    share       tensor / tile: an upper bound for long sequences, before prologue, epilogue and hidden tiles
    TFLOP/s     share x 989 (H200, dense 16-bit), at most 795, to which its power limit holds products [docs/speed.md]; of
                codes of 8 bits twice as much, at most 1,590, as plans take it.
                Backward is two kernels, which make scores twice, seven products where five are counted: one rate for both
    order       what is asynchronous (machine_code.py)
A second table is of products with SwiGLU (gemm/wgmma_product.cu), for layers of some models and 131,072 tokens, a
third of those that give its gradient, and others of those of queries, keys and values with RoPE, for heads of 64 and 128:
    loop, end   cycles of a tile of 128 x 256: its steps along k, and its end, from the code between two tiles' products:
                sums into results, SwiGLU or RoPE, and their way to memory. The model lets none of it run beside products
    own         microseconds: whole waves of such tiles, at the clock at which a large product has its 795 TFLOP/s (its
                edges, last wave and pipeline taken out), at most 795 TFLOP/s, and not less than the bytes at 4.3 TB/s
    product, apart      of the library's product, by the model of plans (src/perf/roofline.cc), and of the op apart at
                4.3 TB/s: SwiGLU reads 4 bytes and writes 2 for each result, its gradient reads 6 and writes 4, RoPE reads
                and writes 2 of queries and keys
The last table is of products of codes (gemm/wgmma_codes.cu), the same layers' three products: microseconds of the own kernel
with one scale per matrix and with blocks of 128, likewise but from the shortest end of a tile (bf16, no bias), in whole
waves of pairs of tiles of 256 x 128, and of the library by the model of plans.
Nothing here is measured; the first run on a GPU is to be held against it. Assumptions, with their sources:
  - a wgmma m64 nN k16 takes N/2 cycles: 989 TFLOP/s at 132 multiprocessors and 1.83 GHz are 4096 FLOP a cycle [H200 data
    sheet]; k32 in 8 bits takes as long. It reads its operands from shared memory at 128 bytes a cycle [CUDA C++
    Programming Guide, 9.0], N x 32 bytes, and 2048 more where the left one is not in registers; the slower of the two
    counts as its time on the tensor cores;
  - per partition and cycle one instruction is issued [Programming Guide, multiprocessor of 9.0], and its 32 lanes take 8
    cycles for MUFU, 2 for comparisons, minima, integers other than additions and logic, and for conversions, 1 else
    [Programming Guide, throughput of native instructions: 16, 64 and 128 results a cycle]; uniform instructions cost their
    issue;
  - a warp's load or store of 32, 64, 128 bits takes 1, 2, 4 cycles of shared memory, a tile copied by TMA 1 for 128 bytes;
  - a part between two waits takes a lone warp as long as its busiest unit, its instructions DEPENDENT cycles apart on
    average [assumed: 4 cycles of latency, two independent chains]; the two warps of a partition share the units;
  - groups of products run one after the other, in the order of issue; the two warpgroups start half a turn apart at best.
"""
import argparse
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import machine_code

WARPGROUPS, PEAK, MOST = 2, 989.4, 795.0
SUMS = ["fast", "promoted", "squares", "blocks"]  # of gemm/wgmma_codes.cu
MULTIPROCESSORS, CLOCK, COPY = 132, 1.83e9, 4.3e12
TOKENS = 131072
LAYERS = [("qwen2.5-0.5b", 896, 4864), ("qwen2.5-1.5b", 1536, 8960), ("llama-1b", 2048, 8192), ("llama-8b", 4096, 14336)]
HEADS = {"qwen2.5-0.5b": (14, 2, 64), "qwen2.5-1.5b": (12, 2, 128), "llama-1b": (32, 8, 64), "llama-8b": (32, 8, 128)}
ARCHITECTURE, DEPENDENT = "sm_90a", 2.0
UNITS = ("issue", "exp", "alu", "smem")
HALF_RATE = ("FMNMX", "FSEL", "FSETP", "ISETP", "IMNMX", "VIMNMX", "SEL", "F2FP", "F2F", "SHF", "PRMT", "LEA", "I2F", "F2I",
             "SHFL", "VOTE")


@dataclass
class Part:
    """What a warp does from one wait or product to the next."""
    needs: dict = field(default_factory=lambda: dict.fromkeys(UNITS, 0.0))  # cycles of each unit
    product: float = 0  # cycles of tensor cores that it then starts
    ends_group: bool = False
    wait: int = -1      # or: it then waits until so many groups are left

    @property
    def alone(self):
        return max(*self.needs.values(), DEPENDENT * self.needs["issue"], 1e-6)


def product_cycles(instruction):
    """(tensor cores, shared memory) of a wgmma."""
    n = int(re.search(r"64x(\d+)x", instruction.name)[1])
    operands = instruction.operands.split(",")
    shared = n * 32 + (2048 if operands[1].strip().startswith("gdesc") else 0)
    return n / 2, shared / 128


def unit_cycles(instruction):
    """{unit: cycles of a partition} of one warp's instruction."""
    name = instruction.name
    cycles = {"issue": 1.0}
    if name.startswith("MUFU"):
        cycles["exp"] = 8.0
    elif name.startswith(HALF_RATE):
        cycles["alu"] = 2.0
    elif name.startswith(("LDS", "STS", "LDSM", "STSM")):
        width = 4 if ".128" in name or "SM" in name else 2 if ".64" in name else 1
        cycles["smem"] = 4.0 * width  # of the multiprocessor, whose other partitions do the same
    return cycles


def hot_path(loop):
    """The shortest way through a loop that meets all its products and exponentials."""
    blocks, after = machine_code.blocks_of(loop)
    must = [b for b, (first, end) in enumerate(blocks)
            if any(machine_code.word(i)[:1] in ("H", "e") for i in loop[first:end])]
    best = {0: (blocks[0][1] - blocks[0][0], [0])}
    for b in range(len(blocks)):  # by address; jumps backwards are turns of inner loops or of this one
        if b not in best:
            continue
        for s in after[b]:
            skipped = [m for m in must if b < m < s]
            if s <= b or skipped:
                continue
            length = best[b][0] + blocks[s][1] - blocks[s][0]
            if s not in best or length < best[s][0]:
                best[s] = (length, best[b][1] + [s])
    head = loop[0].address
    ends = [b for b in best if b >= max(must) and (loop[blocks[b][1] - 1].target() == head)]
    if not ends:
        raise ValueError("the loop has no end behind its products")
    _, way = min(best[b] for b in ends)
    return [i for b in way for i in loop[slice(*blocks[b])]]


def parts_of(path):
    parts, now = [], Part()
    for i in path:
        for unit, cycles in unit_cycles(i).items():
            now.needs[unit] += cycles
        kind = machine_code.word(i)
        if kind == "H":
            now.product, now.ends_group = max(product_cycles(i)), "gsb0" in i.operands
        elif kind[:1] == "W":
            now.wait = int(kind[1:])
        else:
            continue
        parts.append(now)
        now = Part()
    return [*parts, now]


class Warpgroup:
    def __init__(self, parts, delay):
        self.parts, self.at, self.left, self.groups, self.ends = parts, 0, delay + parts[0].alone, [], []

    @property
    def over(self):
        return self.at == len(self.parts)

    def blocked(self, now):
        wait = self.parts[self.at].wait
        return self.left <= 0 and wait >= 0 and len([end for end in self.groups if end > now]) > wait


def play(sequences, delays):
    """[[when each part ends] of each warpgroup's parts]; a warpgroup begins after its delay."""
    groups = [Warpgroup(*s) for s in zip(sequences, delays)]
    now, tensor_free = 0.0, 0.0
    while not all(g.over for g in groups):
        for g in groups:  # end what is done
            while not g.over and g.left <= 1e-9 and not g.blocked(now):
                part = g.parts[g.at]
                if part.product:
                    tensor_free = max(tensor_free, now) + part.product
                    if part.ends_group:
                        g.groups = [end for end in g.groups if end > now] + [tensor_free]
                g.ends.append(now)
                g.at += 1
                g.left = 0 if g.over else g.parts[g.at].alone
        active = [g for g in groups if not g.over and g.left > 1e-9]
        ends = [end for g in groups for end in g.groups if end > now]
        rate = 1.0
        for unit in UNITS:
            used = sum(g.parts[g.at].needs[unit] / g.parts[g.at].alone for g in active)
            rate = min(rate, 1 / used) if used > 1 else rate
        step = min([g.left / rate for g in active] + [end - now for end in ends], default=0)
        for g in active:
            g.left -= step * rate
        now += step
    return [g.ends for g in groups]


def simulate(parts, turns=24):
    """Cycles of one turn of both warpgroups, late enough that the start is forgotten."""
    delays = [g * sum(p.alone for p in parts) / WARPGROUPS for g in range(WARPGROUPS)]
    ends = [e[len(parts) - 1::len(parts)] for e in play([parts * 2 * turns] * WARPGROUPS, delays)]
    half = turns // 2
    return max((e[turns - 1] - e[half - 1]) / (turns - half) for e in ends)


@dataclass
class Model:
    name: str
    registers: int
    tile: float
    tensor: float
    units: dict
    share: float
    order: str


def short_name(kernel):
    name = kernel.name.replace("(anonymous namespace)::", "").replace("athanor::cuda::", "")
    name = re.sub(r"\(Sums\)(\d)", lambda number: SUMS[int(number[1])], name)
    return re.sub(r"^.*?(\w+<[^(]*>)\(.*$", r"\1", name)


def model(kernel):
    loops = machine_code.product_loops(kernel.code)
    loop = max(loops, key=len)
    path = hot_path(loop)
    parts = parts_of(path)
    units = {u: WARPGROUPS * sum(p.needs[u] for p in parts) for u in UNITS}
    products = [i for i in path if machine_code.word(i) == "H"]
    units["smem"] += WARPGROUPS * sum(product_cycles(i)[1] for i in products)
    tensor = WARPGROUPS * sum(product_cycles(i)[0] for i in products)
    tile = max(simulate(parts), *units.values())
    return Model(short_name(kernel), kernel.registers, tile, tensor, units, tensor / tile, machine_code.order(loop))


def rate(models, m):
    """TFLOP/s; of backward both kernels together, where its last one is."""
    of = {k.name: min(k.share * PEAK, MOST) * (2 if "fp8" in k.name else 1) for k in models}
    if "_backward" not in m.name or m.name.startswith("ordered"):
        return f"{of[m.name]:.0f}"
    keys = m.name.replace("queries", "keys")
    return f"{5 / (4 / of[keys] + 3 / of[m.name]):.0f}" if keys in of and keys != m.name else ""


def table(models):
    """Kernels that differ in their 16-bit type alone share a row."""
    rows = {}
    for m in models:
        values = (f"{m.tile:.0f}", f"{m.tensor:.0f}", *(f"{m.units[u]:.0f}" for u in UNITS), str(m.registers),
                  f"{100 * m.share:.0f} %", rate(models, m), m.order)
        types = {"__nv_bfloat16": "bf16", "__half": "fp16"}
        types |= {f"__nv_fp8_{a}, __nv_fp8_{b}": f"{a} x {b}"
                  for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))}
        kind = next((t for t in types if t in m.name), "")
        rows.setdefault((m.name.replace(kind, "T") if kind else m.name, values), []).append(types.get(kind, ""))
    lines = [["kernel", "T", "tile", "tensor", *UNITS, "regs", "share", "TFLOP/s", "order"]]
    lines.append(["---"] * len(lines[0]))
    lines += [[f"`{name}`", ", ".join(types), *values] for (name, values), types in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def end_of_tile(kernel):
    """Cycles from a tile's last product to the next one's first, for both warpgroups."""
    loop = {i.address for i in max(machine_code.product_loops(kernel.code), key=len)}
    around = [o for o in machine_code.loops_of(kernel.code) if loop < {i.address for i in o} and "T" in map(machine_code.word, o)]
    rest = [i for i in min(around, key=len) if i.address not in loop]
    needs = dict.fromkeys(UNITS, 0.0)
    for i in rest:
        for unit, cycles in unit_cycles(i).items():
            needs[unit] += cycles
    return max(WARPGROUPS * max(needs.values()), DEPENDENT * needs["issue"])


def filling(m, n, k, rows, cols):
    """As perf/roofline.cc: edges, the last wave, a tile's pipeline."""
    waves = -(-(-(-m // rows) * -(-n // cols)) // MULTIPROCESSORS)
    return m * n / (rows * cols * MULTIPROCESSORS * waves) * k / (k + 192)


def library_seconds(m, n, k):
    """As perf/roofline.cc, without cuts of K."""
    best = max(filling(m, n, k, *tile) for tile in ((128, 256), (256, 128)))
    return 2 * m * n * k / (MOST * 1e12 * min(1, best / filling(8192, 8192, 8192, 128, 256)))


@dataclass
class Fused:
    """A product of which something is made in its launch, per token."""
    layer: str
    k: int
    n: int          # columns of the product
    moved: int      # numbers of 16 bits that are read and written beyond the factors
    apart: int      # bytes that the op apart reads and writes


def fused_products(kernel_name):
    """What a kernel computes, layer by layer; nothing: another kernel."""
    if kernel_name.startswith("product_wgmma<__nv_bfloat16"):
        return [Fused(f"{name}, {k} to 2 x {f}", k, 2 * f, 3 * f, 6 * f) for name, k, f in LAYERS]
    if kernel_name.startswith("gradient_wgmma<__nv_bfloat16"):
        return [Fused(f"{name}, {k} to {f}", k, f, 5 * f, 10 * f) for name, k, f in LAYERS]
    rope = re.match(r"rope_wgmma<__nv_bfloat16, (\d+)", kernel_name)
    if not rope:
        return []
    layers = [(name, k, *HEADS[name]) for name, k, _ in LAYERS]
    return [Fused(f"{name}, {k} to ({q} + 2 x {kv}) x {d}", k, (q + 2 * kv) * d, (q + 2 * kv) * d, 4 * (q + kv) * d)
            for name, k, q, kv, d in layers if d == int(rope[1])]


def product_table(kernel, step, products):
    """step: cycles of one turn of the loop, 64 of k."""
    lines = [["model, layer", "loop", "end", "own us", "TFLOP/s", "product us", "apart us", "own / both"], ["---"] * 8]
    end, sustained = end_of_tile(kernel), MOST / filling(8192, 8192, 8192, 128, 256)
    for p in products:
        steps, tiles = -(-p.k // 64), TOKENS // 128 * -(-p.n // 256)
        flops, bytes_ = 2 * TOKENS * p.n * p.k, 2 * (TOKENS * p.k + p.n * p.k + TOKENS * p.moved)
        own = max(-(-tiles // MULTIPROCESSORS) * (steps * step + end) / CLOCK * PEAK / sustained, flops / (MOST * 1e12),
                  bytes_ / COPY)
        product, apart = library_seconds(TOKENS, p.n, p.k), TOKENS * p.apart / COPY
        lines.append([p.layer, f"{steps * step:.0f}", f"{end:.0f}", f"{own * 1e6:.0f}",
                      f"{flops / own / 1e12:.0f}", f"{product * 1e6:.0f}", f"{apart * 1e6:.0f}",
                      f"{100 * own / (product + apart):.0f} %"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shortest_end(kernel):
    """As end_of_tile(), of the shortest way from a tile's last product to the next one's first."""
    inner = {i.address for i in max(machine_code.product_loops(kernel.code), key=len)}
    loops = [loop for loop in machine_code.loops_of(kernel.code) if inner <= {i.address for i in loop}]
    places = {i.address for i in min(loops, key=len)}  # with its waits
    outer = min((loop for loop in loops if "T" in map(machine_code.word, loop)), key=len)
    blocks, after = machine_code.blocks_of(outer)
    within = {b for b, (first, _) in enumerate(blocks) if outer[first].address in places}
    best = {s: (0, [s]) for b in within for s in after[b] if s not in within}
    todo = list(best)
    while todo:  # distances in instructions
        todo.sort(key=lambda b: best[b][0])
        b = todo.pop(0)
        length = best[b][0] + blocks[b][1] - blocks[b][0]
        for s in after[b]:
            if s not in within and (s not in best or length < best[s][0]):
                best[s] = (length, best[b][1] + [s])
                todo.append(s)
    ends = [best[b] for b in best if any(s in within for s in after[b])]
    way = min(ends)[1]
    needs = dict.fromkeys(UNITS, 0.0)
    for i in (i for b in way for i in outer[slice(*blocks[b])]):
        for unit, cycles in unit_cycles(i).items():
            needs[unit] += cycles
    return max(WARPGROUPS * max(needs.values()), DEPENDENT * needs["issue"])


def codes_table(kernels, models):
    of = {m.name: (m.tile, shortest_end(k)) for k, m in zip(kernels, models) if m.name.startswith("codes_wgmma")}
    sustained = MOST / filling(8192, 8192, 8192, 128, 256)
    lines = [["model, product", "of", "end", "own us", "TFLOP/s", "of blocks", "end", "own us", "TFLOP/s", "library us"]]
    lines.append(["---"] * len(lines[0]))
    for name, k, f in LAYERS:
        for what, size, kinds, bytes_ in (("forward", (TOKENS, f, k), ("fast", "squares"), 2),
                                          ("gradient of x", (TOKENS, k, f), ("promoted", "squares"), 2),
                                          ("gradient of W", (f, k, TOKENS), ("promoted", "blocks"), 8)):
            m, n, terms = size
            flops, moved = 2 * m * n * terms, m * terms + n * terms + bytes_ * m * n
            line = [f"{name}, {what} {m} x {n}, {terms} terms"]
            for kind in kinds:
                step, end = of[f"codes_wgmma<__nv_fp8_e4m3, __nv_fp8_e4m3, {kind}, Maps>"]
                waves = -(-(-(-m // 256) * -(-n // 256)) // (MULTIPROCESSORS // 2))
                own = max(waves * (-(-terms // 128) * step + end) / CLOCK * PEAK / sustained, flops / (2 * MOST * 1e12),
                          moved / COPY)
                line += [kind, f"{end:.0f}", f"{own * 1e6:.0f}", f"{flops / own / 1e12:.0f}"]
            lines.append([*line, f"{library_seconds(m, n, terms) / 2 * 1e6:.0f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def kernels_of(build):
    objects = sorted((build / "cuda").glob("*.o"))
    if not objects:
        raise machine_code.NotHere(f"{build}/cuda has no objects of kernels: build with nvcc and --cuda-arch 90a")
    folder = machine_code.tool_folder()
    kernels = machine_code.read_kernels(folder, objects)
    machine_code.read_instructions(folder, objects, [ARCHITECTURE], kernels)
    found = [k for k in kernels.values() if k.architecture == ARCHITECTURE and machine_code.product_loops(k.code)]
    return sorted(found, key=lambda k: k.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=Path("build"))
    args = parser.parse_args()
    try:
        kernels = kernels_of(args.build_dir)
        models = [model(k) for k in kernels]
        print(table(models))
        for start in ("product", "gradient", "rope"):
            for kernel, m in zip(kernels, models):
                if m.name.startswith(start) and (products := fused_products(m.name)):
                    print(f"\n{product_table(kernel, m.tile, products)}")
        if any(m.name.startswith("codes_wgmma") for m in models):
            print(f"\n{codes_table(kernels, models)}")
    except machine_code.NotHere as why:
        sys.exit(f"model_kernels.py: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
