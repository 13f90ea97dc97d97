"""GPT-2 and Llama (Qwen2 too) in PyTorch, from the "model" object of a config: what athanor is compared with.

Written to be fast: one GEMM for q, k and v, one for gate and up, fused attention. Weights are read from, or written
to, safetensors under Hugging Face's names. Needs PyTorch alone.
"""
import ctypes
import json
import math
import struct

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32}
OLD_NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
             "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
PAD = 128  # rows of the vocabulary are padded to a multiple of this


def read_safetensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    raw = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    return {name: raw[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]].clone().view(DTYPES[e["dtype"]])
            .view(e["shape"]) for name, e in header.items()}


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + 4 * t.numel()]}
        at += 4 * t.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            t = t.detach().float().contiguous().cpu()
            file.write((ctypes.c_char * (4 * t.numel())).from_address(t.data_ptr()))  # where there is no NumPy, too


class Shape:
    """The numbers of a model, with the defaults of its family."""

    def __init__(self, model):
        model = {OLD_NAMES.get(key, key): value for key, value in model.items()}
        self.gpt2 = model["model_type"] == "gpt2"
        if model["model_type"] not in ("gpt2", "llama", "qwen2"):
            raise ValueError(f"model_type {model['model_type']}: expected gpt2, llama or qwen2")
        self.vocab, self.hidden, self.layers = model["vocab_size"], model["hidden_size"], model["num_hidden_layers"]
        self.heads = model["num_attention_heads"]
        self.kv_heads = self.heads if self.gpt2 else model.get("num_key_value_heads", self.heads)
        self.head_dim = model.get("head_dim") or self.hidden // self.heads
        self.inner = model.get("intermediate_size") or 4 * self.hidden
        self.positions = model["max_position_embeddings"]
        self.eps = model.get("layer_norm_epsilon", 1e-5) if self.gpt2 else model.get("rms_norm_eps", 1e-6)
        self.tied = model.get("tie_word_embeddings", self.gpt2)
        self.qkv_bias = self.gpt2 or model["model_type"] == "qwen2" or model.get("attention_bias", False)
        rope = model.get("rope_parameters") or model.get("rope_scaling") or {}
        self.theta, self.rope = model.get("rope_theta") or rope.get("rope_theta", 10000.0), rope

    def rope_table(self, length):
        """cos and sin, [length, head_dim / 2]."""
        rates = self.theta ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        kind = self.rope.get("rope_type", "default")
        if kind == "llama3":  # long wavelengths are stretched, those between blended
            low, high = self.rope["low_freq_factor"], self.rope["high_freq_factor"]
            turns = self.rope["original_max_position_embeddings"] * rates / (2 * math.pi)
            keep = ((turns - low) / (high - low)).clamp(0, 1)
            rates = keep * rates + (1 - keep) * rates / self.rope["factor"]
        elif kind != "default":
            raise ValueError(f"rope_type {kind}: expected default or llama3")
        angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
        return angles.cos().float(), angles.sin().float()


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        s, norm = shape, nn.LayerNorm if shape.gpt2 else nn.RMSNorm
        self.shape, width = shape, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.norm1, self.norm2 = norm(s.hidden, s.eps), norm(s.hidden, s.eps)
        self.qkv = nn.Linear(s.hidden, width, bias=s.qkv_bias)
        self.out = nn.Linear(s.heads * s.head_dim, s.hidden, bias=s.gpt2)
        self.up = nn.Linear(s.hidden, s.inner if s.gpt2 else 2 * s.inner, bias=s.gpt2)  # gate, then up
        self.down = nn.Linear(s.inner, s.hidden, bias=s.gpt2)

    def forward(self, x, cos, sin):  # [B, T, C]
        s = self.shape
        batch, time, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, time, -1, s.head_dim).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], 1)
        if not s.gpt2:
            q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(v.dtype)
                    for a, b in (u.float().chunk(2, -1) for u in (q, k)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.kv_heads != s.heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, -1))
        h = self.up(self.norm2(x))
        if s.gpt2:
            return x + self.down(F.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """forward(tokens, targets) is the mean loss; targets of -1 do not count."""

    def __init__(self, shape, length, padded=True):
        super().__init__()
        self.shape, rows = shape, -(-shape.vocab // PAD) * PAD if padded else shape.vocab
        self.tokens = nn.Embedding(rows, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.gpt2 else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (nn.LayerNorm if shape.gpt2 else nn.RMSNorm)(shape.hidden, shape.eps)
        self.head = None if shape.tied else nn.Linear(shape.hidden, rows, bias=False)
        cos, sin = shape.rope_table(length)
        self.register_buffer("cos", cos, False)
        self.register_buffer("sin", sin, False)

    def init_weights(self, generator):
        """GPT-2's: normal 0.02, what ends a residual branch smaller; padding rows are 0."""
        small = 0.02 / math.sqrt(2 * self.shape.layers)
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                std = small if name.endswith(("out.weight", "down.weight")) else 0.02
                p.data.copy_(torch.randn(p.shape, generator=generator, device=p.device) * std)
            elif name.endswith("bias"):
                p.data.zero_()
        self.clear_padding()

    def clear_padding(self):
        for table in (self.tokens, self.head):
            if table is not None:
                table.weight.data[self.shape.vocab:] = 0

    def forward(self, tokens, targets):  # [B, T]
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:tokens.shape[1]]
        if torch.is_autocast_enabled(tokens.device.type):
            x = x.bfloat16()
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(self.norm(x).to(x.dtype), targets)

    def loss(self, x, targets):
        logits = F.linear(x, (self.head or self.tokens).weight.to(x.dtype)).float()
        padding = torch.arange(logits.shape[-1], device=x.device) >= self.shape.vocab
        logits = logits.masked_fill(padding, float("-inf"))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def parameter_count(self):
        """Of the model, without padding."""
        padding = (self.tokens.num_embeddings - self.shape.vocab) * self.shape.hidden
        return sum(p.numel() for p in self.parameters()) - padding * (1 if self.head is None else 2)


def named_parts(model):
    """(Hugging Face name, parameter, first row, rows, stored transposed) of every tensor of a checkpoint."""
    s = model.shape
    if s.gpt2:
        names = [("transformer.wte.weight", model.tokens.weight, False),
                 ("transformer.wpe.weight", model.positions.weight, False)]
        inside = {"ln_1": "norm1", "attn.c_attn": "qkv", "attn.c_proj": "out", "ln_2": "norm2", "mlp.c_fc": "up",
                  "mlp.c_proj": "down"}
        for i, block in enumerate(model.blocks):
            for theirs, ours in inside.items():
                layer = getattr(block, ours)
                names += [(f"transformer.h.{i}.{theirs}.weight", layer.weight, layer.weight.dim() == 2),
                          (f"transformer.h.{i}.{theirs}.bias", layer.bias, False)]
        names += [(f"transformer.ln_f.{k}", getattr(model.norm, k), False) for k in ("weight", "bias")]
        parts = [(n, p, 0, min(p.shape[0], s.vocab) if p is model.tokens.weight else p.shape[0], t)
                 for n, p, t in names]
    else:
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        parts = [("model.embed_tokens.weight", model.tokens.weight, 0, s.vocab, False)]
        for i, block in enumerate(model.blocks):
            at = f"model.layers.{i}."
            for name, begin, rows in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv)):
                parts.append((f"{at}self_attn.{name}_proj.weight", block.qkv.weight, begin, rows, False))
                if s.qkv_bias:
                    parts.append((f"{at}self_attn.{name}_proj.bias", block.qkv.bias, begin, rows, False))
            parts += [(f"{at}self_attn.o_proj.weight", block.out.weight, 0, s.hidden, False),
                      (f"{at}mlp.gate_proj.weight", block.up.weight, 0, s.inner, False),
                      (f"{at}mlp.up_proj.weight", block.up.weight, s.inner, s.inner, False),
                      (f"{at}mlp.down_proj.weight", block.down.weight, 0, s.hidden, False),
                      (f"{at}input_layernorm.weight", block.norm1.weight, 0, s.hidden, False),
                      (f"{at}post_attention_layernorm.weight", block.norm2.weight, 0, s.hidden, False)]
        parts.append(("model.norm.weight", model.norm.weight, 0, s.hidden, False))
    if model.head is not None:
        parts.append(("lm_head.weight", model.head.weight, 0, s.vocab, False))
    return parts


def load_weights(model, path):
    tensors = read_safetensors(path)
    for name, p, begin, rows, transposed in named_parts(model):
        t = tensors.pop(name)
        p.data[begin:begin + rows].copy_(t.t() if transposed else t)
    model.clear_padding()
    if tensors:
        raise ValueError(f"{path}: holds {sorted(tensors)[0]}, which this model does not have")


def save_weights(model, path):
    write_safetensors(path, {name: (p.data[begin:begin + rows].t() if transposed else p.data[begin:begin + rows])
                             for name, p, begin, rows, transposed in named_parts(model)})


def adamw(parameters, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
    """Decay on matrices only."""
    return torch.optim.AdamW([dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay),
                              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)],
                             lr=lr, betas=betas, eps=eps, fused=True)
