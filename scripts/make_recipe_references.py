#!/usr/bin/env python3
"""Writes tests/golden/<name>/ for models of published recipes: what a small PyTorch model, written here from their
description, computes. Such models have no class in transformers. Files and tensors are those of make_references.py.

  nanochat   [nanochat, nanochat/gpt.py, 2025-10]: norms without gain, one behind the embedding; queries and keys are
             normed after RoPE; ReLU^2 without a gate; no biases; untied head; logits capped by tanh. And of its later
             versions: scores scaled, windows by a pattern of layers, scalars of the stream and of the embedding;
             a skip from an earlier block, and one taken out at the end ("backout").
  speedrun   [modded-nanogpt, track 3]: norms with gain, biases everywhere, half of each head's pairs do not turn,
             queries and keys normed without gain, a factor of scores of its own.

  gates      [nanochat, 2026-07]: value embeddings of some layers behind a gate for each head of keys, the previous
             token's embedding mixed in behind a gate ("smear"); [modded-nanogpt, record 28]: gates of attention heads.
  values     [modded-nanogpt, records 9 to 19]: value embeddings that layers share, the first layer's values in later
             ones, with trained factors.
  sinks      [gpt-oss, 2025]: a trained score of each head in the denominator of its softmax, of alternating windows; [Gemma
             2, 2024]: attention scores capped by tanh.
  after      [OLMo 2, 2024]: norms of what attention and feed-forward layers add to the stream, none of what they read.
  both       [Gemma 2, 2024]: norms of both; the embedding is not scaled here.

And of no recipe:
  gated      a gate of GELU, biases in feed-forward layers and of a tied head.

usage: make_recipe_references.py [--out tests/golden] [--only NAME] [--check]
"""

import argparse
import json
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F

import make_references as shared

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = dict(model_type="athanor", max_position_embeddings=64, norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
             hidden_act="relu2", gated_mlp=False, qk_norm=True, qk_norm_elementwise_affine=False, embedding_norm=True)
CASES = {
    "nanochat": dict(
        seed=21, batch=3, time=22, packed=[[22], [5, 17], [1, 9, 12]],
        config=dict(SHAPE, vocab_size=93, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=100000.0,
                    norm_elementwise_affine=False, tie_word_embeddings=False, final_logit_softcapping=3.0,
                    attention_multiplier=1.44 / 8**0.5, sliding_window=5,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                    resid_lambdas=[1.15, 1.1, 1.05], x0_lambdas=[0.2, 0.15, 0.05],
                    skip_from=[None, None, 0, 1], skip_lambdas=[0, 0, 0.3, -0.2])),
    "speedrun": dict(
        seed=22, batch=3, time=19, packed=[[19], [2, 3, 14], [1, 9, 9]],
        config=dict(SHAPE, vocab_size=101, hidden_size=36, intermediate_size=52, num_hidden_layers=2,
                    num_attention_heads=3, num_key_value_heads=3, head_dim=12, rope_theta=1000.0,
                    tie_word_embeddings=False, final_logit_softcapping=4.0, attention_multiplier=0.12 * 3,
                    attention_bias=True, mlp_bias=True, lm_head_bias=True,
                    rope_scaling=dict(rope_type="proportional", partial_rotary_factor=0.5))),
    "gates": dict(
        seed=24, batch=3, time=20, packed=[[20], [6, 14], [1, 8, 11]],
        config=dict(SHAPE, vocab_size=91, hidden_size=32, intermediate_size=40, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=100000.0,
                    norm_elementwise_affine=False, tie_word_embeddings=False,
                    value_embeddings=[0, None, 1], value_gate_channels=6, value_gate_scale=3.0,
                    attention_gate_channels=5, smear_channels=7)),
    "values": dict(
        seed=25, batch=3, time=17, packed=[[17], [4, 13], [1, 7, 9]],
        config=dict(SHAPE, vocab_size=89, hidden_size=24, intermediate_size=36, num_hidden_layers=4,
                    num_attention_heads=3, num_key_value_heads=3, head_dim=8, rope_theta=10000.0,
                    qk_norm=False, qk_norm_elementwise_affine=True, tie_word_embeddings=False,
                    value_embeddings=[0, 1, None, 0], value_embedding_lambdas=[0.5, 0.6, 0.0, 0.4],
                    value_residual_lambdas=[0.0, 0.3, 0.5, 0.2], value_lambdas=[0.5, 0.7, 1.1, 0.8])),
    "sinks": dict(
        seed=26, batch=3, time=21, packed=[[21], [5, 16], [1, 8, 12]],
        config=dict(SHAPE, vocab_size=83, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0,
                    qk_norm=False, qk_norm_elementwise_affine=True, embedding_norm=False, tie_word_embeddings=False,
                    hidden_act="silu", gated_mlp=True, attention_bias=True, sliding_window=6,
                    layer_types=["sliding_attention", "full_attention"], attention_multiplier=0.9,
                    attn_logit_softcapping=1.7, attention_sinks=True)),
    "after": dict(
        seed=27, batch=3, time=18, packed=[[18], [4, 14], [1, 7, 10]],
        config=dict(SHAPE, vocab_size=79, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0,
                    embedding_norm=False, tie_word_embeddings=False, hidden_act="silu", gated_mlp=True,
                    sublayer_norm="after")),
    "both": dict(
        seed=28, batch=3, time=18, packed=[[18], [6, 12], [1, 8, 9]],
        config=dict(SHAPE, vocab_size=81, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                    num_attention_heads=3, num_key_value_heads=3, head_dim=8, rope_theta=10000.0,
                    qk_norm=False, qk_norm_elementwise_affine=True, embedding_norm=False, tie_word_embeddings=True,
                    hidden_act="gelu_pytorch_tanh", gated_mlp=True, sliding_window=6,
                    layer_types=["sliding_attention", "full_attention"], attn_logit_softcapping=2.0,
                    final_logit_softcapping=5.0, sublayer_norm="both")),
    "gated": dict(
        seed=23, batch=3, time=18, packed=[[18], [7, 11], [1, 17]],
        config=dict(SHAPE, vocab_size=87, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=8, rope_theta=10000.0,
                    hidden_act="gelu_pytorch_tanh", gated_mlp=True, mlp_bias=True, lm_head_bias=True, qk_norm=False,
                    qk_norm_elementwise_affine=True, embedding_norm=False, tie_word_embeddings=True)),
}
ACTIVATIONS = {"silu": F.silu, "relu2": lambda x: x.relu().square(), "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh")}


def rms(x, eps, gain=None):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if gain is None else y * gain


class Recipe:
    """Parameters under the names of the files; no layer of its own, so that it reads as the description does."""

    def __init__(self, config, seed):
        self.c = c = config
        generator = torch.Generator().manual_seed(seed)
        hidden, inner, vocab, heads = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["num_attention_heads"]
        keys, size = c["num_key_value_heads"] * c["head_dim"], heads * c["head_dim"]
        self.w = {}  # by the name in files

        def matrix(name, rows, columns, bias=False):
            noise = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            self.add(name + ".weight", noise / max(hidden, min(rows, columns)) ** 0.5)
            if bias:
                self.add(name + ".bias", 0.2 * torch.randn(rows, generator=generator, dtype=torch.float64))

        def norm(name):
            if c.get("norm_elementwise_affine", True):
                self.add(name + ".weight", 1 + 0.2 * torch.randn(hidden, generator=generator, dtype=torch.float64))

        bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
        matrix("model.embed_tokens", vocab, hidden)
        if c["embedding_norm"]:
            norm("model.embed_norm")
        if "smear_channels" in c:
            matrix("model.smear_gate", 1, c["smear_channels"])
            self.add("model.smear_lambda", torch.tensor([0.6], dtype=torch.float64))
        for table in sorted({t for t in c.get("value_embeddings", []) if t is not None}):
            matrix(f"model.value_embeddings.{table}", vocab, keys)
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            self.add_values(p + "self_attn.", i, matrix)
            if "attention_gate_channels" in c:
                matrix(p + "self_attn.gate", heads, c["attention_gate_channels"])
            if c.get("attention_sinks"):
                self.add(p + "self_attn.sinks", torch.randn(heads, generator=generator, dtype=torch.float64))
            for key in ("resid_lambda", "x0_lambda"):
                if key + "s" in c:
                    self.add(p + key, torch.tensor([c[key + "s"][i]], dtype=torch.float64))
            self.add_skip(p + "skip_lambda", i)
            before, after = self.norms()
            if before:
                norm(p + "input_layernorm")
            matrix(p + "self_attn.q_proj", size, hidden, bias)
            matrix(p + "self_attn.k_proj", keys, hidden, bias)
            matrix(p + "self_attn.v_proj", keys, hidden, bias)
            matrix(p + "self_attn.o_proj", hidden, size, bias)
            norm(p + "post_attention_layernorm")
            if after:
                norm(p + "post_feedforward_layernorm")
            if before and after:
                norm(p + "pre_feedforward_layernorm")
            if c["gated_mlp"]:
                matrix(p + "mlp.gate_proj", inner, hidden, mlp_bias)
            matrix(p + "mlp.up_proj", inner, hidden, mlp_bias)
            matrix(p + "mlp.down_proj", hidden, inner, mlp_bias)
        norm("model.norm")
        self.add_skip("model.skip_lambda", c["num_hidden_layers"])
        matrix("lm_head", vocab, hidden, c.get("lm_head_bias", False))
        if c["tie_word_embeddings"]:
            del self.w["lm_head.weight"]

    def norms(self):
        """Whether sublayers norm their input, and their output."""
        where = self.c.get("sublayer_norm", "before")
        return where != "after", where != "before"

    def add_skip(self, name, at):
        if self.c.get("skip_from", [None] * (at + 1))[at] is not None:
            self.add(name, torch.tensor([self.c["skip_lambdas"][at]], dtype=torch.float64))

    def add_values(self, p, i, matrix):
        c = self.c
        row, first = c.get("value_embeddings", [None] * (i + 1))[i] is not None, "value_residual_lambdas" in c and i > 0
        for key, there in (("value_lambda", row or first), ("value_embedding_lambda", row),
                           ("value_residual_lambda", first)):
            if there and key + "s" in c:
                self.add(p + key, torch.tensor([c[key + "s"][i]], dtype=torch.float64))
        if row and "value_gate_channels" in c:
            matrix(p + "value_gate", c["num_key_value_heads"], c["value_gate_channels"])

    def gate(self, name, x, scale):
        """Of the first channels of x: [B, T, heads, 1], or 1 where there is no gate."""
        weight = self.w.get(name + ".weight")
        return 1 if weight is None else scale * torch.sigmoid(F.linear(x[..., :weight.shape[1]], weight))[..., None]

    def values(self, p, i, x, v, tokens, first):
        """Values [B, T, K, D] and what is added to them; first: those of layer 0."""
        y = self.w.get(p + "value_lambda", 1) * v
        if p + "value_residual_lambda" in self.w:
            y = y + self.w[p + "value_residual_lambda"] * first
        table = self.c.get("value_embeddings", [None] * (i + 1))[i]
        if table is None:
            return y
        row = self.w[f"model.value_embeddings.{table}.weight"][tokens].view(v.shape)
        factor = self.w.get(p + "value_embedding_lambda", 1)
        return y + factor * self.gate(p + "value_gate", x, self.c.get("value_gate_scale", 1)) * row

    def smear(self, x, document):
        """Adds the embedding of the token before, within a document."""
        channels = self.c["smear_channels"]
        gate = self.w["model.smear_lambda"] * torch.sigmoid(F.linear(x[..., :channels], self.w["model.smear_gate.weight"]))
        follows = (document[:, 1:] == document[:, :-1])[..., None]
        return torch.cat((x[:, :1], x[:, 1:] + follows * gate[:, 1:] * x[:, :-1]), dim=1)

    def skip(self, name, x, at, outputs):
        return x + self.w[name] * outputs[self.c["skip_from"][at]] if name in self.w else x

    def add(self, name, value):
        # float32 first: the files hold the very values
        self.w[name] = torch.nn.Parameter(value.float().double())

    def norm(self, name, x):
        return rms(x, self.c["norm_eps"], self.w.get(name + ".weight"))

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def rotate(self, x, position):
        """x [B, T, H, D]. Pairs are (i, i + D/2); those behind the rotated share have the frequency 0."""
        half = self.c["head_dim"] // 2
        frequency = self.c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        share = self.c.get("rope_scaling", {}).get("partial_rotary_factor", 1.0)
        frequency[torch.arange(half) >= share * half] = 0
        angle = position[..., None, None].double() * frequency.float().double()
        cos, sin = angle.cos(), angle.sin()
        a, b = x.split(half, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def attention(self, p, i, x, tokens, document, position, window):
        c = self.c
        shape = (*x.shape[:2], -1, c["head_dim"])
        q, k, v = (self.linear(f"{p}self_attn.{n}_proj", x).view(shape) for n in "qkv")
        if i == 0:
            self.first_values = v
        v = self.values(p + "self_attn.", i, x, v, tokens, self.first_values)
        q, k = self.rotate(q, position), self.rotate(k, position)
        if c["qk_norm"]:
            q, k = rms(q, c["norm_eps"]), rms(k, c["norm_eps"])
        groups = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
        y = self.attend(p, *(t.transpose(1, 2) for t in (q, k, v)), shared.causal_mask(document, window))
        y = y.transpose(1, 2) * self.gate(p + "self_attn.gate", x, 1)
        return self.linear(p + "self_attn.o_proj", y.flatten(2))

    def attend(self, p, q, k, v, mask):
        """q, k, v [B, H, T, D]."""
        cap, sinks, scale = self.c.get("attn_logit_softcapping"), self.w.get(p + "self_attn.sinks"), \
            self.c.get("attention_multiplier")
        if cap is None and sinks is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        scores = q @ k.transpose(2, 3) * (scale or q.shape[-1] ** -0.5)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is None:
            return scores.softmax(-1) @ v
        sinks = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1] @ v  # the sink has no value

    def parameters(self):
        return list(self.w.values())

    def forward(self, tokens, document, position):
        c = self.c
        act = ACTIVATIONS[c["hidden_act"]]
        x = x0 = self.w["model.embed_tokens.weight"][tokens]
        if c["embedding_norm"]:
            x = x0 = self.norm("model.embed_norm", x)
        if "smear_channels" in c:
            x = x0 = self.smear(x, document)
        outputs = []
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = self.skip(p + "skip_lambda", x, i, outputs)
            if "x0_lambdas" in c:
                x = self.w[p + "resid_lambda"] * x + self.w[p + "x0_lambda"] * x0
            types = c.get("layer_types")
            window = c["sliding_window"] if types and types[i] == "sliding_attention" else None
            before, after = self.norms()
            y = self.norm(p + "input_layernorm", x) if before else x
            y = self.attention(p, i, y, tokens, document, position, window)
            x = x + (self.norm(p + "post_attention_layernorm", y) if after else y)
            y = self.norm(p + ("pre_feedforward_layernorm" if after else "post_attention_layernorm"), x) if before else x
            inner = self.linear(p + "mlp.up_proj", y)
            inner = act(self.linear(p + "mlp.gate_proj", y)) * inner if c["gated_mlp"] else act(inner)
            y = self.linear(p + "mlp.down_proj", inner)
            x = x + (self.norm(p + "post_feedforward_layernorm", y) if after else y)
            outputs.append(x)
        x = self.skip("model.skip_lambda", x, c["num_hidden_layers"], outputs)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        logits = F.linear(self.norm("model.norm", x), head, self.w.get("lm_head.bias"))
        cap = c.get("final_logit_softcapping")
        return cap * torch.tanh(logits / cap) if cap else logits


def loss_of(model, tokens, targets, rows):
    logits = model.forward(tokens, *rows)
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gradients(model, prefix):
    return {prefix + name: p.grad.clone() for name, p in model.w.items()}


def reference(model, case, tokens, targets):
    out = {"tokens": tokens, "targets": targets}
    document, position, spans = shared.packed_rows(case)
    logits, loss = loss_of(model, tokens[0], targets[0], (document, position))
    loss.backward()
    out.update({"packed.spans": spans, "packed.loss": loss.detach(), "packed.logits": logits.detach()})
    out.update(gradients(model, "packed.grad."))
    rows, optimizer, losses, norms = shared.whole_rows(case), shared.make_optimizer(model), [], []
    for step in range(shared.STEPS):
        optimizer.zero_grad()
        logits, loss = loss_of(model, tokens[step], targets[step], rows)
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach()
            out.update(gradients(model, "grad."))
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), shared.CLIP_GRAD))
        optimizer.step()
    out["losses"], out["grad_norms"] = torch.stack(losses), torch.stack(norms)
    out.update({"final." + name: p.detach().clone() for name, p in model.w.items()})
    return out


def write_case(name, out):
    case, folder = CASES[name], out / name
    folder.mkdir(parents=True, exist_ok=True)
    model = Recipe(case["config"], case["seed"])
    about = {"format": "pt", "made_by": "scripts/make_recipe_references.py", "torch": torch.__version__}
    (folder / "config.json").write_text(json.dumps(case["config"], indent=2) + "\n")
    weights = {n: p.detach().clone() for n, p in model.w.items()}
    shared.write_safetensors(folder / "model.safetensors", weights, dict(about, about="initial weights"))
    tokens, targets = shared.make_stream(case, case["config"]["vocab_size"])
    found = reference(model, case, tokens, targets)
    shared.write_safetensors(folder / "reference.safetensors", found,
                             dict(about, about="what PyTorch computes from model.safetensors",
                                  arithmetic="float64, stored as float32; rotary frequencies rounded to float32"))
    print(f"{name:8} loss {found['losses'][0]:.4f} -> {found['losses'][-1]:.4f}, "
          f"gradient norm {found['grad_norms'].min():.2f} .. {found['grad_norms'].max():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--only", choices=CASES, help="one case instead of all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in [args.only] if args.only else list(CASES):
        if not args.check:
            write_case(name, args.out)
            continue
        with tempfile.TemporaryDirectory() as temporary:
            write_case(name, pathlib.Path(temporary))
            for file in ("model.safetensors", "reference.safetensors"):
                shared.compare_files(args.out / name / file, pathlib.Path(temporary) / name / file)


if __name__ == "__main__":
    sys.exit(main())
