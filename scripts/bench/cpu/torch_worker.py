#!/usr/bin/env python3
"""The PyTorch side of compare.py: training steps of GPT-2, of a mixture of experts or of a vision transformer in plain
PyTorch, driven by one JSON object per line on stdin.

It answers each {"steps": n, "warmup": m} with {"step_ms": [...], "tokens_per_second": x, ...} on one line and sleeps in
between, so that compilation is paid once and the cores are free for others. Started by compare.py with its settings.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("athanor_bench::product", mutates_args=())
def onednn_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K] times the transpose of weight [N, K]. A custom operator, because the compiler takes this operator of
    oneDNN for constant weights only."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@onednn_product.register_fake
def _(x, weight, bias):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


class OnednnLinear(torch.autograd.Function):
    """F.linear by oneDNN, which PyTorch's wheels contain but use for inference only. Their MKL, which they use for fp32
    training, leaves AVX-512 unused on processors of other makers than Intel; oneDNN does not."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = onednn_product(dy, weight.t(), None)
        dy = dy.flatten(0, -2)
        return dx, onednn_product(dy.t(), x.flatten(0, -2).t(), None), dy.sum(0) if ctx.has_bias else None


def linear(x, weight, bias, onednn):
    return OnednnLinear.apply(x, weight, bias) if onednn else F.linear(x, weight, bias)


class Linear(nn.Linear):
    def __init__(self, inputs, outputs, onednn):
        super().__init__(inputs, outputs)
        self.onednn = onednn

    def forward(self, x):
        return linear(x, self.weight, self.bias, self.onednn)


class Block(nn.Module):
    def __init__(self, hidden, heads, onednn, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = Linear(hidden, 3 * hidden, onednn), Linear(hidden, hidden, onednn)
        self.up, self.down = Linear(hidden, 4 * hidden, onednn), Linear(4 * hidden, hidden, onednn)

    def forward(self, x):  # [B, T, C]
        batch, time_, hidden = x.shape
        q, k, v = (part.view(batch, time_, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh" if self.causal else "none"))


class Gpt2(nn.Module):
    """GPT-2 with biases everywhere and the token embedding as output head; forward returns the loss."""

    def __init__(self, layers, hidden, heads, time_, vocab, onednn):
        super().__init__()
        self.onednn = onednn
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(time_, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, onednn) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):  # [B, T]
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = linear(self.norm(x), self.tokens.weight, None, self.onednn)  # [B, T, V]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Experts(nn.Module):
    """SwiGLU experts [Shazeer et al. 2017; Jiang et al. 2024, "Mixtral of Experts"], of which each token passes `chosen`: one
    after the other, each with the tokens that chose it, or all by PyTorch's grouped product."""

    def __init__(self, hidden, width, experts, chosen, grouped):
        super().__init__()
        self.chosen, self.grouped = chosen, grouped
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(experts, hidden, 2 * width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))

    def forward(self, x):  # [N, C]
        weights, experts = self.router(x).softmax(-1, dtype=torch.float32).topk(self.chosen, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        if self.grouped:
            order = experts.flatten().argsort(stable=True)
            rows, ends = order // self.chosen, torch.bincount(experts.flatten(), minlength=len(self.down)).cumsum(0).int()
            gate, up = F.grouped_mm(x[rows].bfloat16(), self.gate_up.bfloat16(), offs=ends).chunk(2, -1)
            y = F.grouped_mm(F.silu(gate) * up, self.down.bfloat16(), offs=ends).to(x.dtype)
            return torch.zeros_like(x).index_add(0, rows, y * weights.flatten()[order, None])
        out = torch.zeros_like(x)
        for e in range(len(self.down)):
            rows, choice = torch.where(experts == e)
            gate, up = (x[rows] @ self.gate_up[e]).chunk(2, -1)
            y = (F.silu(gate) * up) @ self.down[e]
            out = out.index_add(0, rows, (y * weights[rows, choice, None]).to(out.dtype))
        return out


def rotated(x, cos, sin):  # [B, H, T, D]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class MixtralBlock(nn.Module):
    def __init__(self, hidden, heads, width, experts, chosen, grouped):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.experts = Experts(hidden, width, experts, chosen, grouped)

    def forward(self, x, cos, sin):  # [B, T, C]
        batch, time_, hidden = x.shape
        q, k, v = (part.view(batch, time_, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, hidden))
        return x + self.experts(self.norm2(x).flatten(0, 1)).view(x.shape)


class Mixtral(nn.Module):
    """Without the loss that balances experts; forward returns the loss."""

    def __init__(self, shape, grouped):
        super().__init__()
        hidden, heads, time_ = shape["hidden"], shape["heads"], shape["time"]
        self.tokens, self.head = nn.Embedding(shape["vocab"], hidden), nn.Linear(hidden, shape["vocab"], bias=False)
        self.blocks = nn.ModuleList(
            MixtralBlock(hidden, heads, shape["width"], shape["experts"], shape["chosen"], grouped) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        angles = torch.outer(torch.arange(time_), 10000 ** (-torch.arange(0, hidden // heads, 2) / (hidden // heads)))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):  # [B, T]
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Vit(nn.Module):
    """A vision transformer with a class token and the exact GELU; forward returns the loss."""

    def __init__(self, shape, onednn):
        super().__init__()
        hidden, self.patch = shape["hidden"], shape["patch"]
        self.embed = Linear(3 * self.patch**2, hidden, onednn)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, shape["time"], hidden))
        self.blocks = nn.ModuleList(Block(hidden, shape["heads"], onednn, causal=False) for _ in range(shape["layers"]))
        self.norm, self.head = nn.LayerNorm(hidden), Linear(hidden, shape["vocab"], onednn)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, images, labels):  # [B, 3, H, W], [B]
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(images), -1, -1), self.embed(patches)), 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), labels)


def make_inputs(shape):
    """Random inputs and targets of a step."""
    if "image" in shape:
        images = torch.rand(shape["batch"], 3, shape["image"], shape["image"]) * 2 - 1
        return images, torch.randint(0, shape["vocab"], (shape["batch"],))
    stream = torch.randint(0, shape["vocab"], (shape["batch"], shape["time"] + 1))
    return stream[:, :-1].contiguous(), stream[:, 1:].contiguous()


def make_model(shape, option):
    if "image" in shape:
        return Vit(shape, option == "onednn")
    if "experts" in shape:
        return Mixtral(shape, option == "grouped")
    return Gpt2(shape["layers"], shape["hidden"], shape["heads"], shape["time"], shape["vocab"], option == "onednn")


def make_step(shape, variant, precision):
    """A function that does one whole training step on random tokens and returns its loss, and the parameter count. In
    bf16 forward runs under autocast, as users of PyTorch train: weights, norms and the loss stay fp32."""
    torch.manual_seed(1234)
    mode, _, option = variant.partition("+")
    model = make_model(shape, option)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=0.1), dict(params=plain, weight_decay=0.0)], lr=3e-4, betas=(0.9, 0.95),
        eps=1e-8, fused=True)
    loss_of = model
    if mode != "eager":
        loss_of = torch.compile(model, mode=None if mode == "compile" else mode, dynamic=False)
    inputs, targets = make_inputs(shape)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(p.numel() for p in model.parameters())


def timed(step, steps, warmup):
    losses, times = [], []
    for i in range(warmup + steps):
        start = time.perf_counter()
        losses.append(step())
        if i >= warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return times, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", type=json.loads, required=True, help="{layers, hidden, heads, time, batch, vocab}")
    parser.add_argument("--variant", default="eager",
                        help="eager, compile or a mode of torch.compile; with +onednn: GEMMs of GPT-2 by oneDNN; with "
                             "+grouped: experts by the grouped product, in bf16")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(True)
    step, parameters = make_step(args.shape, args.variant, args.precision)
    tokens = args.shape["batch"] * args.shape["time"]
    for line in sys.stdin:
        request = json.loads(line)
        times, losses = timed(step, request["steps"], request["warmup"])
        if not all(loss == loss for loss in losses):
            raise SystemExit(f"the loss is not a number: {losses}")
        median = sorted(times)[len(times) // 2]
        print(json.dumps(dict(step_ms=times, tokens_per_step=tokens, median_ms=median,
                              tokens_per_second=tokens / median * 1e3, threads=torch.get_num_threads(),
                              parameters=parameters, last_loss=losses[-1])), flush=True)


if __name__ == "__main__":
    main()
