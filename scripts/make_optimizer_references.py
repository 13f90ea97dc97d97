#!/usr/bin/env python3
"""Writes tests/ops/optimizer_references.h: weights after 20 steps of each optimizer by optax, in float64; of schedule-free
AdamW by schedulefree and of Adafactor by torch.optim, in float64.

Needs optax, jax and schedulefree. Weights and gradients are those of start() and gradient(), which the test computes too.

usage: make_optimizer_references.py [--out tests/ops/optimizer_references.h]
"""

import argparse
import math
import pathlib

import jax
import schedulefree
import torch

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from optax import contrib  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, RATE, DECAY = 20, 0.01, 0.3
ROWS, COLUMNS = 9, 5


def start(i):
    return math.cos(1.7 * i + 0.3)


def gradient(i, step):
    return math.sin(0.9 * i + 1.3 * step) + 0.2 * math.sin(0.31 * i * step)


def coupled(rule):
    return optax.chain(optax.add_decayed_weights(DECAY), rule)


def muon(**options):
    """Without Nesterov momentum, for which optax corrects a bias that others leave; [in, out], as optax has matrices."""
    return contrib.muon(RATE, beta=0.95, nesterov=False, weight_decay=DECAY, **options)


RULES = {
    "kAdamw": (optax.adamw(RATE, b1=0.9, b2=0.95, eps=1e-8, weight_decay=DECAY), None),
    "kAdam": (coupled(optax.adam(RATE, b1=0.9, b2=0.95, eps=1e-8)), None),
    "kSgd": (coupled(optax.sgd(RATE)), None),
    "kSgdMomentum": (coupled(optax.sgd(RATE, momentum=0.9)), None),
    "kSgdNesterov": (coupled(optax.sgd(RATE, momentum=0.9, nesterov=True)), None),
    "kLion": (optax.lion(RATE, b1=0.9, b2=0.99, weight_decay=DECAY), None),
    "kLamb": (optax.lamb(RATE, b1=0.9, b2=0.95, eps=1e-8, weight_decay=DECAY), None),
    "kMuonOriginal": (muon(), (COLUMNS, ROWS)),
    "kMuonMatchRms": (muon(consistent_rms=0.2), (COLUMNS, ROWS)),
}


EMA_DECAY = 0.9
AVERAGES = {"kAdamwAverage": "kAdamw"}  # of the weights, by the name of their rule


def weights(rule, shape, average=False):
    """Of a matrix, those of its transpose: optax has inputs in rows. Or their moving average with its bias corrected."""
    n = ROWS * COLUMNS
    place = (lambda x: jnp.array(x).reshape(ROWS, COLUMNS).T) if shape else jnp.array
    w = place([start(i) for i in range(n)])
    state = rule.init(w)
    ema = optax.ema(EMA_DECAY, debias=True)
    averages = ema.init(w)
    for step in range(STEPS):
        updates, state = rule.update(place([gradient(i, step) for i in range(n)]), state, w)
        w = optax.apply_updates(w, updates)
        mean, averages = ema.update(w, averages)
    out = mean if average else w
    return [float(x) for x in (out.T if shape else out).reshape(-1)]


def schedule_free():
    """With a warm-up of 8 steps: the weights that gradients are taken at, and their average."""
    def place(x):
        return torch.tensor(x, dtype=torch.float64)

    w = torch.nn.Parameter(place([start(i) for i in range(ROWS * COLUMNS)]))
    rule = schedulefree.AdamWScheduleFree([w], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY,
                                          warmup_steps=8)
    rule.train()
    for step in range(STEPS):
        w.grad = place([gradient(i, step) for i in range(ROWS * COLUMNS)])
        rule.step()
    found = {"kScheduleFree": w.detach().tolist()}
    rule.eval()
    return found | {"kScheduleFreeAverage": w.detach().tolist()}


def adafactor(columns):
    """Of a matrix, or of a vector with columns 0. The library scales steps by the size of the weights, but by eps2 = 1 at
    least, which is more than they have: so the rate is RATE. Its own eps1 is too small to show here, as is the paper's."""
    n = ROWS * COLUMNS
    shape = (n // columns, columns) if columns else (n,)
    weight = torch.tensor([start(i) for i in range(n)], dtype=torch.float64).reshape(shape).requires_grad_()
    rule = torch.optim.Adafactor([weight], lr=RATE, eps=(1e-15, 1.0), weight_decay=DECAY)
    for step in range(STEPS):
        weight.grad = torch.tensor([gradient(i, step) for i in range(n)], dtype=torch.float64).reshape(shape)
        rule.step()
    return [float(x) for x in weight.detach().reshape(-1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/ops/optimizer_references.h")
    out = parser.parse_args().out
    lines = [
        "// What other programs make of the same weights and gradients in 20 steps: scripts/make_optimizer_references.py.",
        "#pragma once",
        "namespace athanor::references {",
        "",
    ]
    found = {name: weights(*RULES[AVERAGES.get(name, name)], name in AVERAGES) for name in [*RULES, *AVERAGES]}
    for name, numbers in {**found, **schedule_free(), "kAdafactor": adafactor(COLUMNS),
                          "kAdafactorVector": adafactor(0)}.items():
        lines.append(f"constexpr double {name}[] = {{")
        values = [f"{x:.12g}," for x in numbers]
        lines += ["    " + " ".join(values[i : i + 6]) for i in range(0, len(values), 6)]
        lines[-1] = lines[-1].rstrip(",") + "};"
    lines += ["", "}  // namespace athanor::references", ""]
    out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
