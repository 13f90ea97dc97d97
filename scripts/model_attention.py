#!/usr/bin/env python3
"""Models how fast an H200 runs whole launches of attention by warpgroups, what begins and ends a head and a block included.

usage: model_attention.py [--build-dir DIR] [--tokens N] [--width N] [--lengths 1024,...]
model_kernels.py models the loops alone, an upper bound for long sequences; this one adds the rest, from the machine code of the
same objects, for causal bf16 sequences of T tokens, N tokens in all. Columns of the first table:
    block       cycles from a block's start until its first products can begin: what its rows see, first copies by TMA
    1 tile, 8 tiles     cycles of a head of 128 rows that see so many tiles of the other side (keys: of 128 rows), as
                the only head of a block from there on / as one of several
    order       of what is asynchronous around the loop over tiles (machine_code.py), for one head
and of the second, by kernel and T:
    a head each     TFLOP/s if every block took one head
    runs        TFLOP/s with the runs of heads of wgmma_schedule.h, and the share of the tensor rate of 989 that it is
    balance     the time of the mean multiprocessor over that of the last one, of the worse kernel
    fixed order TFLOP/s if a block for each multiprocessor took every 132nd head of a tile and lost nothing at its begin
    loop alone  TFLOP/s if the loop over tiles were all: the same tiles, full and cut by the diagonal, without begin and end
Rates count the products that are seen: two forward, five backward, whose two kernels share a rate. All that are computed, scores
made twice and tiles on the diagonal too, take at most 795 TFLOP/s, the power limit (model_kernels.py).
A third table is of backward with seven products, as above, and with five (wgmma_ordered_backward.cu), by heads and T:
    tile        cycles of a turn of its loop over tiles of 64 queries
    five        TFLOP/s. Blocks start in the order of their numbers, as soon as a multiprocessor has none, heads one after the
                other and a head's last keys first; a tile's dq is added when the block that adds before it has, and there
                is room for one tile that waits
    waits       the share of the blocks' time in which they wait to hand on dq
    balance     as above
    rounding    the share of the time for dq from fp32 to 16 bits, 6 bytes for each element at 4.3 TB/s
Nothing here is measured. Assumptions beside those of model_kernels.py, with their sources:
  - a load takes 41 cycles from L1, 263 from L2, 479 from memory [Luo et al. 2024, arXiv 2402.13499, latency table, H100]. A
    block's table of spans is in L1, its own rows come from memory, the other side's from L2;
  - a copy by TMA begins to arrive 300 cycles later than a load would [assumed]; all multiprocessors together get 5120 bytes
    a cycle from L2 [A100 white paper; taken for Hopper too], which bounds heads as well. A store by TMA has read its
    tile 300 cycles after it begins [assumed];
  - 500 cycles lie between a block's last instruction and the first of the next one [assumed], 30 in a barrier of the block;
    where one warp matters its instructions are DEPENDENT cycles apart (model_kernels.py);
  - between two waits warpgroups share units and tensor cores as in model_kernels.py, but both begin a block together, so that
    nothing runs beside the first products. Where shared memory has one place for a block's own rows (backward, heads of
    128), a head's rows are copied when the head before has been stored;
  - a reduction of a tile by TMA takes twice as long as a copy of it, and is complete 263 cycles after its last byte; the
    counter takes 263 cycles more, and to see it one and a half loads from L2 [assumed]. Sums of a head stay in L2. A block of five
    products takes its number by an atomic, two loads from L2, and one load for which tiles it adds to; what else begins
    and ends a head is that of the pass over keys.
"""
import argparse
import heapq
import sys
from dataclasses import dataclass
from pathlib import Path

import machine_code
import model_kernels as machine

L1, L2, MEMORY = 41, 263, 479
COPY, STORE, BLOCK, BARRIER = 300, 300, 500, 30
L2_BYTES = 5120 / machine.MULTIPROCESSORS
ROWS = 128
OWN = {"attend": 1, "keys": 2, "queries": 2}        # tensors of a block's rows
REDUCTION = 2                                       # by the time of a copy
PRODUCTS = {"attend": 2, "keys": 4, "queries": 3}   # of a tile
STEADY = 8                                           # tiles from which a head grows by whole turns


def shortest(code, stops):
    """The instructions of the shortest way from the first one through a block of each set of blocks, in this order."""
    blocks, after = machine_code.blocks_of(code)
    heap, seen = [(0, 0, 0, (0,))], set()
    while heap:
        length, b, met, way = heapq.heappop(heap)
        if (b, met) in seen:
            continue
        seen.add((b, met))
        while met < len(stops) and b in stops[met]:
            met += 1
        if met == len(stops):
            return [i for n in way for i in code[slice(*blocks[n])]]
        for s in after[b]:
            heapq.heappush(heap, (length + blocks[b][1] - blocks[b][0], s, met, (*way, s)))
    raise ValueError("there is no such way")


def begin_of_block(code, skipped=0):
    """Cycles until the producer's first copy: which rows see what, by two loops over spans between three barriers, behind
    `skipped` others."""
    blocks, _ = machine_code.blocks_of(code)

    def holding(test, beyond=0):
        return {b for b, (first, end) in enumerate(blocks) for i in code[first:end] if i.address > beyond and test(i)}

    all_bars = [i.address for i in code if i.name.startswith("BAR.SYNC") and i.operands.startswith("0x0")]
    bars = all_bars[skipped:]
    spans = holding(lambda i: i.name.startswith("LDG") and i.address < bars[1], bars[0])
    rows = holding(lambda i: i.name.startswith("LDG") and "+0x10" in i.operands and i.address < bars[2], bars[1])
    way = shortest(code, [spans, rows, holding(lambda i: i.name.startswith("UTMALDG"))])
    loads = 3  # one after the other: a span's range, again, the rest of it
    return BLOCK + machine.DEPENDENT * len(way) + loads * L1 + len(all_bars) * BARRIER


@dataclass
class Head:
    """What a warpgroup does for a head: before the loop over tiles, one turn of it, behind it; cut: with a tile on the
    diagonal, some pairs of which are hidden."""
    begin: list
    turn: list
    cut_begin: list
    cut_turn: list
    end: list
    order: str


def head_of(kernel):
    inner = max(machine_code.product_loops(kernel.code), key=len)
    places = {i.address for i in inner}
    outer = machine_code.loop_around(kernel.code, inner)
    path = machine.hot_path(outer)
    known = {i.address for i in path}
    blocks, _ = machine_code.blocks_of(outer)
    hiding = [outer[slice(*b)] for b in blocks]
    hiding = [i for b in hiding if b[0].address not in known and sum(i.name.startswith("FSEL") for i in b) >= 16 for i in b]
    cut = sorted([*path, *hiding], key=lambda i: i.address)
    first, last = min(places), max(i.address for i in path if i.address in places)

    def parts(way, test):
        return machine.parts_of([i for i in way if test(i.address)])

    return Head(parts(path, lambda a: a < first), parts(path, lambda a: first <= a <= last),
                parts(cut, lambda a: a < first), parts(cut, lambda a: first <= a <= last), parts(path, lambda a: a > last),
                machine_code.order(path))


class Kernel:
    def __init__(self, kernel):
        self.name = machine.short_name(kernel)
        self.kind = next(k for k in OWN if self.name.startswith(k))
        self.dim = 128 if "128>" in self.name else 64
        self.rows = ROWS if self.kind != "keys" else 96 if self.dim == 64 else 64  # of a tile of the other side
        self.head, self.block = head_of(kernel), begin_of_block(kernel.code)
        self.places = 1 if self.kind != "attend" and self.dim == 128 else 2
        self.row_bytes = 2 * self.dim
        own = OWN[self.kind] * ROWS * self.row_bytes
        self.first = MEMORY + COPY + (own + self.rows * self.row_bytes) / L2_BYTES
        self.again = 0 if self.places == 2 else STORE + MEMORY + COPY + own / L2_BYTES
        self.known = {}

    @property
    def opening(self):
        """What stands before a block's first head: forward, the scores that other heads begin beside the end of the last."""
        if self.kind != "attend":
            return []
        ends = [n for n, p in enumerate(self.head.end) if p.ends_group]
        return self.head.end[ends[0] + 1:ends[1] + 1]

    def sequence(self, tiles, group):
        """Of a head whose rows see so many tiles of the other side's rows."""
        h = self.head
        if self.kind == "attend":  # the first tile's scores come before the loop
            turns = [*[h.turn] * (tiles - 2), h.cut_turn][:max(0, tiles - 1)]
            return [*(h.begin if tiles > 1 else h.cut_begin), *[p for t in turns for p in t], *h.end]
        skipped = 1 if self.rows == 64 and group == 1 else 0  # queries before all of this warpgroup's keys
        cut = 2 if self.rows == 96 and group == 1 else 1
        tiles -= skipped
        return [*h.begin, *[p for t in range(tiles) for p in (h.cut_turn if t < cut else h.turn)], *h.end]

    def cycles(self, tiles):
        """(the first head of a block, a further one), with so many tiles."""
        if tiles > STEADY + 1:
            more = (tiles - STEADY) * self.tile
            return tuple(c + more for c in self.cycles(STEADY))
        if tiles not in self.known:
            heads = [self.sequence(tiles, g) for g in range(machine.WARPGROUPS)]
            alone, many = (max(e[-1] for e in machine.play([self.opening + h * n for h in heads], [0, 0])) for n in (1, 6))
            loads = (OWN[self.kind] * ROWS + 2 * tiles * self.rows) * self.row_bytes / L2_BYTES
            further = alone + self.again if self.again else (many - alone) / 5
            self.known[tiles] = (alone, max(further, loads))
        return self.known[tiles]

    def least(self, tiles):
        """Seconds that the power limit allows for the products of so many tiles."""
        return PRODUCTS[self.kind] * 2 * ROWS * self.rows * self.dim * tiles / (machine.MOST * 1e12)

    @property
    def tile(self):
        if "tile" not in self.known:
            self.known["tile"] = machine.simulate(self.head.turn)
        return self.known["tile"]

    def tiles_of(self, length):
        """Of each tile of rows of a sequence, in the order of work."""
        return [-(-n * ROWS // self.rows) for n in range(length // ROWS, 0, -1)]


def parts_of_heads(left, heads):
    """As wgmma_schedule.h: how many blocks share the heads of a tile of rows, with so many left."""
    parts = 1
    while parts < min(heads, ROWS) and parts * left < 2 * machine.MULTIPROCESSORS:
        parts *= 2
    return min(parts, heads)


def seconds(kernel, length, tokens, heads, runs):
    """(of a launch, not less than the power limit lets its products take; how busy the mean multiprocessor is until the last
    one ends)."""
    rows = kernel.tiles_of(length) * (tokens // length)
    busy = [0.0] * machine.MULTIPROCESSORS
    for n, tiles in enumerate(rows):
        parts = parts_of_heads(len(rows) - n, heads) if runs else heads
        first, further = kernel.cycles(tiles)
        for part in range(parts):
            number = (part + 1) * heads // parts - part * heads // parts
            heapq.heapreplace(busy, busy[0] + kernel.block + kernel.first + first + (number - 1) * further + STORE)
    return max(max(busy) / machine.CLOCK, kernel.least(sum(rows) * heads)), sum(busy) / len(busy) / max(busy)


def fixed_order(kernel, length, tokens, heads):
    """If a block for each multiprocessor took every 132nd head of a tile, longest first, with nothing lost at its begin."""
    busy = [0.0] * machine.MULTIPROCESSORS
    tiles = [t for t in kernel.tiles_of(length) * (tokens // length) for _ in range(heads)]
    for n, t in enumerate(tiles):
        busy[n % len(busy)] += kernel.cycles(t)[1]
    return max(max(busy) / machine.CLOCK, kernel.least(sum(tiles)))


def loop_alone(kernel, length, tokens, heads):
    tiles = sum(kernel.tiles_of(length)) * (tokens // length) * heads
    return max(tiles * kernel.tile / machine.MULTIPROCESSORS / machine.CLOCK, kernel.least(tiles))


def rate(kernel, length, tokens, heads, time):
    """TFLOP/s of the products that are seen."""
    products = 2 if kernel.kind == "attend" else 5
    return products * 2 * kernel.dim * heads * tokens * (length + 1) / 2 / time / 1e12


def head_table(kernels):
    lines = [["kernel", "block", "1 tile", "8 tiles", "order"], ["---"] * 5]
    for k in kernels:
        tiles = [-(-n * ROWS // k.rows) for n in (1, 8)]
        lines.append([f"`{k.name}`", f"{k.block + k.first:.0f}"] + ["{:.0f} / {:.0f}".format(*k.cycles(t)) for t in tiles] +
                     [k.head.order])
    return lines


def rate_table(groups, lengths, tokens, width):
    lines = [["attention", "T", "a head each", "runs", "share", "balance", "fixed order", "loop alone"], ["---"] * 8]
    for name, kernels in groups:
        heads = width // kernels[0].dim
        for length in lengths:
            apart, together = ([seconds(k, length, tokens, heads, runs) for k in kernels] for runs in (False, True))
            times = [sum(t[0] for t in apart), sum(t[0] for t in together)]
            times += [sum(f(k, length, tokens, heads) for k in kernels) for f in (fixed_order, loop_alone)]
            rates = [rate(kernels[0], length, tokens, heads, t) for t in times]
            lines.append([name, str(length), f"{rates[0]:.0f}", f"{rates[1]:.0f}", f"{100 * rates[1] / machine.PEAK:.0f} %",
                          f"{100 * min(t[1] for t in together):.0f} %", f"{rates[2]:.0f}", f"{rates[3]:.0f}"])
    return lines


class Ordered:
    """Five products: a block of 128 keys of a head, which adds dq of tiles of 64 queries in turn."""
    def __init__(self, kernel, keys):
        self.dim, self.keys, self.rows = keys.dim, keys, 64
        model = machine.model(kernel)
        self.bytes = self.rows * self.dim * 4
        self.tile = max(model.tile, model.units["smem"] + self.bytes / 128)  # TMA reads it from shared memory
        self.block = begin_of_block(kernel.code, 1) + 3 * L2
        self.first = MEMORY + COPY + (OWN["keys"] * ROWS + self.rows) * keys.row_bytes / L2_BYTES
        self.around = max(0, keys.cycles(1)[0] - keys.tile)  # of a head
        self.read = COPY + REDUCTION * self.bytes / L2_BYTES  # until the next tile may be handed over
        self.added = self.read + L2 + 2.5 * L2                # until the next block knows

    def launch(self, length, tokens, heads):
        """(seconds, share of waits, balance)"""
        tiles, end = length // ROWS, length // self.rows
        busy, waited, spent = [0.0] * machine.MULTIPROCESSORS, 0.0, 0.0
        for _ in range(heads * (tokens // length)):
            added = [0.0] * end  # when a tile of queries has its latest sum
            for own in reversed(range(tiles)):
                begin = busy[0] + self.block + self.first
                now, free = begin, 0.0
                for tile in range(own * ROWS // self.rows, end):
                    now = max(now + self.tile, free)
                    turn = max(now, added[tile])
                    free, added[tile] = turn + self.read, turn + self.added
                over = max(now + self.around, free) + STORE
                waited += now - begin - (end - own * ROWS // self.rows) * self.tile
                spent += over - busy[0]
                heapq.heapreplace(busy, over)
        seen = heads * (tokens // length) * sum(end - own * ROWS // self.rows for own in range(tiles))
        least = 5 * 2 * ROWS * self.rows * self.dim * seen / (machine.MOST * 1e12)
        return max(max(busy) / machine.CLOCK, least), waited / spent, sum(busy) / len(busy) / max(busy)


def five_table(kernels, ordered, lengths, tokens, width):
    lines = [["heads of", "T", "seven", "five", "tile", "waits", "balance", "rounding"], ["---"] * 8]
    for five in ordered:
        queries = next(k for k in kernels if k.kind == "queries" and k.dim == five.dim)
        heads = width // five.dim
        for length in lengths:
            seven = sum(seconds(k, length, tokens, heads, True)[0] for k in (five.keys, queries))
            rounding = 6 * tokens * width / machine.COPY
            time, waits, balance = five.launch(length, tokens, heads)
            rates = (rate(five.keys, length, tokens, heads, t) for t in (seven, time + rounding))
            lines.append([str(five.dim), str(length), *(f"{r:.0f}" for r in rates), f"{five.tile:.0f}", f"{100 * abs(waits):.0f} %",
                          f"{100 * balance:.0f} %", f"{100 * rounding / (time + rounding):.0f} %"])
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=Path("build"))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--lengths", default="1024,4096,8192,32768")
    args = parser.parse_args()
    try:
        found = machine.kernels_of(args.build_dir)
    except machine_code.NotHere as why:
        sys.exit(f"model_attention.py: {why}")
    found = [k for k in found if "bfloat16" in k.name and "_wgmma" in k.name]
    kernels = [Kernel(k) for k in found if any(f"{kind}_" in k.name for kind in OWN) and "ordered_" not in k.name]
    groups = [(f"forward, heads of {d}", [k for k in kernels if k.dim == d and k.kind == "attend"]) for d in (64, 128)]
    groups += [(f"backward, heads of {d}", [k for k in kernels if k.dim == d and k.kind != "attend"]) for d in (64, 128)]
    lengths = [int(n) for n in args.lengths.split(",")]
    ordered = [Ordered(k, next(n for n in kernels if n.kind == "keys" and machine.short_name(k).endswith(n.name[-6:])))
               for k in found if "ordered_" in k.name]
    for lines in (head_table(kernels), rate_table(groups, lengths, args.tokens, args.width),
                  five_table(kernels, ordered, lengths, args.tokens, args.width)):
        print("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
