#!/usr/bin/env python3
"""PyTorch's side of every comparison: the same model, batches and optimizer as athanor, from athanor's own config.

usage: torch_worker.py golden FOLDER...          ten steps from stored weights against stored results (tests/golden)
       torch_worker.py weights CONFIG OUT        random initial weights of --seed, as a folder that --init-from takes
       torch_worker.py curve CONFIG SAMPLES OUT  losses of the steps in SAMPLES (athanor data dump), from --weights
                                                 or random ones of --seed
       torch_worker.py time CONFIG               answers {"steps": n, "warmup": m} on stdin with one line of JSON each
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
import torch_model
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def read_config(path):
    config = json.loads(Path(path).read_text())
    if isinstance(config.get("model"), str):
        config["model"] = json.loads((Path(path).parent / config["model"]).read_text())
    return config


def make_model(config, device, padded=True):
    length = config.get("seq_length") or config["model"]["max_position_embeddings"]
    with torch.device(device):
        return torch_model.Model(torch_model.Shape(config["model"]), length, padded)


def learning_rate(config, step):
    """After `step` finished ones: linear warm-up, then constant or cosine (configs/README.md)."""
    schedule = config.get("schedule", {})
    most, least = config["learning_rate"], schedule.get("min_lr", 0.1 * config["learning_rate"])
    warmup, decay = schedule.get("lr_warmup_iters", 0), schedule.get("lr_decay_iters", config["train_iters"])
    if step < warmup:
        return most * (step + 1) / warmup
    if schedule.get("lr_decay_style", "cosine") == "constant":
        return most
    if step >= decay:
        return least
    return least + (most - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (decay - warmup)))


def run_curve(model, config, batches, device, micro):
    """Loss and gradient norm of every step of batches: [(tokens, targets) [B, T]]."""
    precision, clip = config.get("precision", "bf16"), config.get("clip_grad", 1.0)
    adam = config.get("adam", {})
    optimizer = torch_model.adamw(list(model.parameters()), config["learning_rate"],
                                  betas=(adam.get("beta1", 0.9), adam.get("beta2", 0.95)),
                                  eps=adam.get("eps", 1e-8), weight_decay=config.get("weight_decay", 0.1))
    losses, norms = [], []
    for step, (tokens, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        total, counted = torch.zeros((), device=device), (targets >= 0).sum().item()
        for first in range(0, tokens.shape[0], micro):
            x, y = (t[first:first + micro].long().to(device) for t in (tokens, targets))
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16"):
                loss = model(x, y) * ((y >= 0).sum() / counted)
            loss.backward()
            total += loss.detach()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip if clip > 0 else math.inf).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total.item())
    return losses, norms


def curve(args):
    config = read_config(args.config)
    torch.backends.cuda.matmul.allow_tf32 = config.get("precision") == "tf32"
    samples = torch_model.read_safetensors(Path(args.samples))
    model = make_model(config, args.device)
    if args.weights:
        torch_model.load_weights(model, Path(args.weights))
    else:
        model.init_weights(torch.Generator(args.device).manual_seed(args.seed))
    if args.compile != "none":
        for block in model.blocks:
            block.compile(dynamic=False)
        model.loss = torch.compile(model.loss, dynamic=False)
    losses, norms = run_curve(model, config, list(zip(samples["tokens"], samples["targets"])), args.device,
                              args.micro or samples["tokens"].shape[1])
    Path(args.out).write_text(json.dumps({"losses": losses, "grad_norms": norms, "torch": torch.__version__}))


def weights(args):
    config, out = read_config(args.config), Path(args.out)
    model = make_model(config, args.device)
    model.init_weights(torch.Generator(args.device).manual_seed(args.seed))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config["model"], indent=1))
    torch_model.save_weights(model, out / "model.safetensors")


def golden(args):
    """Exits with 1 unless losses, gradient norms and final weights are those stored. Of tests/golden/* those that are
    models with references count."""
    folders = [f for f in map(Path, args.folders) if (f / "reference.safetensors").is_file()]
    if not folders:
        raise SystemExit(f"golden: none of {args.folders} has a reference.safetensors; expected folders as in tests/golden")
    for folder in folders:
        model_config = json.loads((folder / "config.json").read_text())
        want = torch_model.read_safetensors(folder / "reference.safetensors")
        config = {"model": model_config, "seq_length": want["tokens"].shape[-1], "precision": "fp32", "train_iters": 10,
                  "learning_rate": 1e-3, "schedule": {"lr_decay_style": "constant"}}
        model = make_model(config, args.device)
        torch_model.load_weights(model, folder / "model.safetensors")
        losses, norms = run_curve(model, config, list(zip(want["tokens"], want["targets"])), args.device, 1)
        worst = {"losses": max(abs(a / b - 1) for a, b in zip(losses, want["losses"].tolist())),
                 "norms": max(abs(a / b - 1) for a, b in zip(norms, want["grad_norms"].tolist()))}
        limit = {"losses": 1e-4, "norms": 1e-3}
        print(f"{folder.name}: {worst}", flush=True)
        if any(not worst[k] <= limit[k] for k in limit):
            raise SystemExit(f"{folder}: results differ from the stored ones by more than {limit}")


# ---- time


def best_attention(shape, batch, time_, device):
    """Tries the fused kernels that take this problem, forward and backward; the fastest."""
    q = torch.randn(batch, shape.heads, time_, shape.head_dim, device=device, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(batch, shape.kv_heads, time_, shape.head_dim, device=device, dtype=torch.bfloat16,
                        requires_grad=True) for _ in range(2))
    seconds = {}
    for name in ("cudnn", "flash"):
        try:
            with sdpa_kernel(ATTENTION[name]):
                for turn in range(4):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                   enable_gqa=shape.heads != shape.kv_heads)
                    y.backward(y)
                    torch.cuda.synchronize()
                    if turn > 0:
                        seconds[name] = min(seconds.get(name, math.inf), time.perf_counter() - begin)
        except RuntimeError:
            continue
    return min(seconds, key=seconds.get) if seconds else "auto"


class Timed:
    """A model that trains on random tokens: bf16 weights with f32 masters and moments, or bf16 for all."""

    def __init__(self, config, args):
        self.config, self.device, self.args = config, args.device, args
        self.batch, self.micro = config["global_batch_size"], args.micro or config["global_batch_size"]
        self.length = config.get("seq_length") or config["model"]["max_position_embeddings"]
        self.half = config.get("precision", "bf16") == "bf16"
        torch.manual_seed(0)
        self.model = make_model(config, self.device)
        self.model.init_weights(torch.Generator(self.device).manual_seed(0))
        self.parameters = list(self.model.parameters())
        self.masters = self.parameters
        if self.half:
            if args.state == "f32":
                self.masters = [p.detach().float().clone().requires_grad_() for p in self.parameters]
            for p in self.parameters:
                p.data = p.data.bfloat16()
        for p in {*self.parameters, *self.masters}:
            p.grad = torch.zeros_like(p)
        self.optimizer = torch_model.adamw(self.masters, config["learning_rate"])
        self.attention = args.attention
        if args.device == "cuda" and self.attention == "best":
            self.attention = best_attention(self.model.shape, self.micro, self.length, self.device)
        self.compile()
        self.tokens = torch.randint(0, self.model.shape.vocab, (self.batch, self.length + 1))

    def compile(self):
        mode = None if self.args.compile == "default" else self.args.compile
        if self.args.compile == "none":
            return
        if self.args.scope == "model":
            self.model.compile(mode=mode, dynamic=False)
        else:
            for block in self.model.blocks:
                block.compile(mode=mode, dynamic=False)
            self.model.loss = torch.compile(self.model.loss, mode=mode, dynamic=False)

    def step(self):
        total = torch.zeros((), device=self.device)
        for first in range(0, self.batch, self.micro):
            rows = self.tokens[first:first + self.micro].to(self.device, non_blocking=True)
            loss = self.model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) * (self.micro / self.batch)
            loss.backward()
            total += loss.detach()
        if self.masters is not self.parameters:
            torch._foreach_copy_([p.grad for p in self.masters], [p.grad for p in self.parameters])
        nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.optimizer.step()
        if self.masters is not self.parameters:
            torch._foreach_copy_([p.data for p in self.parameters], [p.data for p in self.masters])
        torch._foreach_zero_([p.grad for p in self.parameters])
        return total

    def steps(self, count):
        """Milliseconds of each step, and the last loss: a step ends when its loss is a number on the host."""
        times, loss = [], 0.0
        context = sdpa_kernel(ATTENTION[self.attention]) if self.attention in ATTENTION else sdpa_kernel(
            list(ATTENTION.values()))
        with context:
            for _ in range(count):
                begin = time.perf_counter()
                loss = self.step().item()
                times.append((time.perf_counter() - begin) * 1e3)
        if not math.isfinite(loss):
            raise SystemExit(f"the loss is not a number: {loss}")
        return times, loss


def time_steps(args):
    config = read_config(args.config)
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
    timed = Timed(config, args)
    for line in sys.stdin:
        request = json.loads(line)
        while True:
            try:
                timed.steps(request["warmup"])
                times, loss = timed.steps(request["steps"])
                break
            except torch.OutOfMemoryError:
                if timed.micro == 1:
                    raise
                timed.micro = max(m for m in range(1, timed.micro) if timed.batch % m == 0)
                for p in timed.parameters:
                    p.grad = torch.zeros_like(p)
                torch.cuda.empty_cache()
        answer = {"step_ms": times, "tokens_per_step": timed.batch * timed.length, "last_loss": loss,
                  "parameters": timed.model.parameter_count(), "micro_batch_size": timed.micro,
                  "attention": timed.attention, "torch": torch.__version__}
        if args.device == "cuda":
            answer["memory_bytes"] = torch.cuda.max_memory_reserved()
            torch.cuda.empty_cache()  # the other side needs room for its turn
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    common.add_argument("--threads", type=int, default=0, help="of the CPU; 0: PyTorch's choice")
    common.add_argument("--micro", type=int, default=0, help="sequences at once; 0: the whole batch")
    common.add_argument("--compile", default="default", help="none, default, or a mode of torch.compile")
    for name, run, positional in (("golden", golden, []), ("weights", weights, ["config", "out"]),
                                  ("curve", curve, ["config", "samples", "out"]),
                                  ("time", time_steps, ["config"])):
        verb = verbs.add_parser(name, parents=[common])
        for word in positional:
            verb.add_argument(word)
        verb.set_defaults(run=run)
        if name == "golden":
            verb.add_argument("folders", nargs="+")
        if name == "curve":
            verb.add_argument("--weights", help="safetensors")
        if name in ("weights", "curve"):
            verb.add_argument("--seed", type=int, default=1)
        if name == "time":
            verb.add_argument("--attention", choices=("best", "auto", *ATTENTION), default="best")
            verb.add_argument("--scope", choices=("block", "model"), default="block", help="what is compiled")
            verb.add_argument("--state", choices=("f32", "bf16"), default="f32", help="masters and moments")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
