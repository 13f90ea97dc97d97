#!/usr/bin/env python3
"""Writes tests/golden/<name>/: tiny Hugging Face models and what PyTorch computes with them, for the tests of the models.

Everything is computed in float64 and stored in float32, so that a difference is the rounding of the program under test.
The layers are those of `transformers`; where these fall back to float32 inside a float64 model they are replaced, and
self_check() compares the result with untouched transformers models in float32, document by document when packed.

usage: make_references.py [--out tests/golden] [--only NAME]   write the references
       make_references.py --check                              compare the stored files with what would be written
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import types

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from transformers.utils import logging as transformers_logging

STEPS = 10
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1  # matrices and embeddings; vectors have none
CLIP_GRAD = 1.0
ROUTER_GAP = 0.015
ROOT = pathlib.Path(__file__).resolve().parent.parent

# seed: of models with experts one with which the logits of every token's last chosen expert and of the next are ROUTER_GAP
# apart in the first step, so that bf16 chooses the same experts. batch, time: shape of one step. norm_gain: factor of the weights of the last norm; it sets the sharpness of the loss, so
# that some models are clipped at every step and others at none or some. packed: lengths of the documents of each row.
CASES = {
    "gpt2": dict(
        seed=11, batch=3, time=23, norm_gain=0.5,
        packed=[[5, 17, 1], [23], [1, 1, 10, 11]],
        config=transformers.GPT2Config(
            vocab_size=97, n_positions=29, n_embd=36, n_layer=2, n_head=3, n_inner=116, activation_function="gelu_new",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-3, bos_token_id=96, eos_token_id=96,
            tie_word_embeddings=True)),
    "llama": dict(
        seed=12, batch=4, time=19, norm_gain=0.35,
        packed=[[19], [2, 3, 14], [18, 1], [1, 9, 9]],
        config=transformers.LlamaConfig(
            vocab_size=103, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-4, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=False)),
    "llama3": dict(
        seed=13, batch=3, time=31, norm_gain=0.2,
        config=transformers.LlamaConfig(
            vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=12, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=True,
            # wavelengths 6.3, 18, 50, 141, 396 and 1115 tokens: kept below 16, divided by `factor` above 64, blended
            # between
            rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=64))),
    "qwen2": dict(
        seed=14, batch=3, time=17, norm_gain=0.5,
        config=transformers.Qwen2Config(
            vocab_size=131, hidden_size=40, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=True)),
    "qwen3": dict(
        seed=15, batch=3, time=21, norm_gain=0.25,
        config=transformers.Qwen3Config(
            vocab_size=89, hidden_size=32, intermediate_size=36, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=14, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "mistral": dict(
        seed=16, batch=3, time=32, norm_gain=0.2,
        config=transformers.MistralConfig(
            vocab_size=71, hidden_size=32, intermediate_size=60, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-3, sliding_window=7,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)),
    "mixtral": dict(
        seed=123, batch=3, time=18, norm_gain=0.3,
        config=transformers.MixtralConfig(
            vocab_size=83, hidden_size=28, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5, sliding_window=None,
            num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=False)),
    "qwen2_moe": dict(
        seed=689, batch=3, time=18, norm_gain=0.3,
        config=transformers.Qwen2MoeConfig(
            vocab_size=77, hidden_size=24, intermediate_size=34, moe_intermediate_size=14,
            shared_expert_intermediate_size=22, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, rms_norm_eps=1e-6, num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1],
            router_aux_loss_coef=0.0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)),
    "qwen3_moe": dict(
        seed=153, batch=3, time=20, norm_gain=0.25,
        config=transformers.Qwen3MoeConfig(
            vocab_size=79, hidden_size=32, intermediate_size=40, moe_intermediate_size=18, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=10, max_position_embeddings=64, rms_norm_eps=1e-6,
            num_experts=7, num_experts_per_tok=3, norm_topk_prob=True, router_aux_loss_coef=0.0, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "olmoe": dict(
        seed=381, batch=3, time=17, norm_gain=0.3,
        config=transformers.OlmoeConfig(
            vocab_size=73, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=3, max_position_embeddings=64, rms_norm_eps=1e-5, num_experts=5,
            num_experts_per_tok=2, norm_topk_prob=False, router_aux_loss_coef=0.0, bos_token_id=1, eos_token_id=2,
            pad_token_id=None, tie_word_embeddings=False)),
    "dots1": dict(
        seed=22, batch=3, time=16, norm_gain=0.3,
        config=transformers.Dots1Config(
            vocab_size=69, hidden_size=24, intermediate_size=34, moe_intermediate_size=10, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
            n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
            routed_scaling_factor=1.7, first_k_dense_replace=1, sliding_window=None, bos_token_id=1, eos_token_id=2,
            pad_token_id=None, tie_word_embeddings=False)),
    "deepseek_v3": dict(
        seed=306, batch=3, time=16, norm_gain=0.3,
        config=transformers.DeepseekV3Config(
            vocab_size=67, hidden_size=24, intermediate_size=30, moe_intermediate_size=10, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, rms_norm_eps=1e-5,
            q_lora_rank=14, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=10,
            n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
            routed_scaling_factor=1.3, first_k_dense_replace=1, bos_token_id=1, eos_token_id=2, pad_token_id=None,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0,
                                                            original_max_position_embeddings=16, beta_fast=2.0,
                                                            beta_slow=0.5, mscale=1.0, mscale_all_dim=0.7))),
    "gpt_oss": dict(
        seed=1045, batch=2, time=16, norm_gain=0.2,
        config=transformers.GptOssConfig(
            vocab_size=71, hidden_size=24, intermediate_size=14, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=10, max_position_embeddings=64, rms_norm_eps=1e-5, sliding_window=5,
            num_local_experts=5, num_experts_per_tok=2, swiglu_limit=3.1, router_aux_loss_coef=0.0, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
                                 beta_fast=2.0, beta_slow=0.5, truncate=False))),
}


def rms_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def rotary_angles(self, x, position_ids):
    angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)  # [B, T, D/2]
    if type(self).__name__ != "GptOssRotaryEmbedding":
        angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def route(self, x):
    logits = F.linear(x.reshape(-1, self.hidden_dim), self.weight, getattr(self, "bias", None))
    ordered = logits.detach().sort(descending=True).values
    self.gap = (ordered[:, self.top_k - 1] - ordered[:, self.top_k]).min().item()
    weights, chosen = torch.topk(torch.softmax(logits, dim=-1), self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):  # Mixtral always divides
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights, chosen


def route_by_sigmoids(self, x):
    """gap: in logits, whose sigmoid has a slope of at most 1/4."""
    logits = F.linear(x.reshape(-1, self.hidden_dim), self.weight)
    scores = torch.sigmoid(logits)
    values = scores + self.e_score_correction_bias
    groups = values.view(len(values), self.num_group, -1).topk(2, dim=-1).values.sum(dim=-1)
    best = groups.detach().sort(descending=True).values
    self.gap = 4 * (best[:, self.topk_group - 1] - best[:, self.topk_group]).min().item()
    kept = torch.zeros_like(groups).scatter_(1, groups.topk(self.topk_group, dim=-1).indices, 1).bool()
    values = values.masked_fill(~kept.repeat_interleave(values.shape[1] // self.num_group, dim=1), -torch.inf)
    ordered = values.detach().sort(descending=True).values
    self.gap = min(self.gap, 4 * (ordered[:, self.top_k - 1] - ordered[:, self.top_k]).min().item())
    chosen = values.topk(self.top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return logits, weights * self.routed_scaling_factor, chosen


def gpt_oss_experts(name, all_experts):
    """Matrices and biases of single experts; outputs of gate and up take turns in the tensor of all of them."""
    prefix, fused = name.rsplit(".", 1)
    kind = "bias" if fused.endswith("_bias") else "weight"
    parts = (("gate_proj", 0, 2), ("up_proj", 1, 2)) if fused.startswith("gate_up") else (("down_proj", 0, 1),)
    return {f"{prefix}.{i}.{part}.{kind}": t[..., first::step].T.contiguous() if kind == "weight" else t[first::step]
            for i, t in enumerate(all_experts) for part, first, step in parts}


def as_stored(config, tensors):
    """Tensors under the names of files, where each expert has tensors of its own."""
    mixtral = config.model_type == "mixtral"
    out = {}
    for name, t in tensors.items():
        if config.model_type == "gpt_oss" and ".experts." in name:
            out.update(gpt_oss_experts(name, t))
            continue
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith(".experts.gate_up_proj"):
            for i, expert in enumerate(t):
                gate, up = expert.chunk(2)
                for kind, part in (("w1", gate), ("w3", up)) if mixtral else (("gate_proj", gate), ("up_proj", up)):
                    out[name.replace("gate_up_proj", f"{i}.{kind}.weight")] = part
        elif name.endswith(".experts.down_proj"):
            for i, expert in enumerate(t):
                out[name.replace("down_proj", f"{i}.{'w2' if mixtral else 'down_proj'}.weight")] = expert
        else:
            out[name] = t
    return out


def in_float64(model):
    """Turns a transformers model into one that computes in float64 throughout."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(rms_norm, module)
        elif hasattr(module, "inv_freq"):
            module.forward = types.MethodType(rotary_angles, module)
        elif type(module).__name__.endswith("TopkRouter"):
            module.forward = types.MethodType(route_by_sigmoids, module)
        elif type(module).__name__.endswith("TopKRouter"):
            module.forward = types.MethodType(route, module)
    return model


def attention(config):
    return "eager" if config.model_type == "gpt_oss" else "sdpa"  # sinks


def make_model(case):
    """A float32 model with random weights: none is 0 or 1, and attention is far from uniform."""
    torch.manual_seed(case["seed"])
    model = transformers.AutoModelForCausalLM.from_config(
        case["config"], attn_implementation=attention(case["config"]), experts_implementation="eager").eval()
    generator = torch.Generator().manual_seed(case["seed"])
    last_norm = {id(p) for name, p in model.named_parameters() if name.split(".")[-2] in ("norm", "ln_f")}
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if name.endswith("bias"):
                value = 0.2 * noise
            elif p.dim() == 1:  # a norm
                value = 1.0 + 0.2 * noise
            else:  # a matrix, stored either way round, or an embedding
                value = noise / max(model.config.hidden_size, min(p.shape)) ** 0.5
            p.copy_(value * case["norm_gain"] if id(p) in last_norm else value)
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator, dtype=torch.float64))
    return model


def make_stream(case, vocab):
    """Learnable sequences [STEPS, B, T + 1]: six times out of ten the next token follows from the one before."""
    generator = torch.Generator().manual_seed(case["seed"] + 1000)
    shape = (STEPS, case["batch"], case["time"] + 1)
    stream = torch.randint(0, vocab, shape, generator=generator)
    follows = torch.rand(shape, generator=generator) < 0.6
    for t in range(1, shape[-1]):
        stream[..., t] = torch.where(follows[..., t], (5 * stream[..., t - 1] + 3) % vocab, stream[..., t])
    return stream[..., :-1].contiguous(), stream[..., 1:].contiguous()


def causal_mask(document, window):
    """[B, 1, T, T] bool: query i sees key j of its own document if 0 <= i - j < window. document: [B, T]."""
    time = document.shape[1]
    distance = torch.arange(time)[:, None] - torch.arange(time)[None, :]
    seen = (distance >= 0) & (distance < (window or time))
    return (seen & (document[:, :, None] == document[:, None, :]))[:, None]


def whole_rows(case):
    document = torch.zeros(case["batch"], case["time"], dtype=torch.int64)
    return document, torch.arange(case["time"]).expand_as(document)


def packed_rows(case):
    """Document number and position in the document of each token, [B, T], and the spans [S, 2]: begin in B * T, length."""
    document, position, spans = [], [], []
    for row, lengths in enumerate(case["packed"]):
        assert sum(lengths) == case["time"]
        begin = row * case["time"]
        for length in lengths:
            document += [len(spans)] * length
            position += range(length)
            spans.append([begin, length])
            begin += length
    shape = (case["batch"], case["time"])
    return (torch.tensor(document).view(shape), torch.tensor(position).view(shape),
            torch.tensor(spans, dtype=torch.int32))


def forward(model, tokens, targets, document, position):
    mask = causal_mask(document, getattr(model.config, "sliding_window", None))
    if model.config.model_type == "gpt_oss":
        terms = lambda seen: torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        mask = {"sliding_attention": terms(mask), "full_attention": terms(causal_mask(document, None))}
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=position, use_cache=False).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model):
    decays = lambda name, p: p.dim() >= 2 and not name.endswith("bias")  # gpt_oss's biases of all experts are [E, N]
    decayed = [p for name, p in model.named_parameters() if decays(name, p)]
    plain = [p for name, p in model.named_parameters() if not decays(name, p)]
    return torch.optim.AdamW(
        [dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=plain, weight_decay=0.0)], lr=LEARNING_RATE,
        betas=BETAS, eps=EPS, foreach=False)


def gradients(model, prefix):
    stored = as_stored(model.config, {name: p.grad.clone() for name, p in model.named_parameters()})
    return {prefix + name: grad for name, grad in stored.items()}


def require_router_gap(model):
    gap = min((module.gap for module in model.modules() if hasattr(module, "gap")), default=1)
    if gap < ROUTER_GAP:
        raise SystemExit(f"{model.config.model_type}: logits of experts are {gap:.4f} apart < {ROUTER_GAP}: take another seed")


def train(model, case, tokens, targets):
    """STEPS optimizer steps; returns the tensors of reference.safetensors that come from them."""
    document, position = whole_rows(case)
    optimizer = make_optimizer(model)
    out, losses, norms = {}, [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits, loss = forward(model, tokens[step], targets[step], document, position)
        loss.backward()
        if step == 0:
            require_router_gap(model)
            out["logits"] = logits.detach()
            out.update(gradients(model, "grad."))
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD))
        optimizer.step()
    out["losses"] = torch.stack(losses)
    out["grad_norms"] = torch.stack(norms)
    final = as_stored(model.config, {name: p.detach().clone() for name, p in model.named_parameters()})
    out.update({"final." + name: p for name, p in final.items()})
    return out


def packed_reference(model, case, tokens, targets):
    """Loss, logits and gradients of the first batch when its rows hold several documents each."""
    document, position, spans = packed_rows(case)
    model.zero_grad()
    logits, loss = forward(model, tokens[0], targets[0], document, position)
    loss.backward()
    out = {"packed.spans": spans, "packed.loss": loss.detach(), "packed.logits": logits.detach()}
    out.update(gradients(model, "packed.grad."))
    return out


def determined(name, p):
    """What of a trained weight is more than noise: the gradient of GPT-2's key bias is 0 but for rounding, and Adam divides
    rounding by rounding."""
    keep = torch.ones(p.shape, dtype=torch.bool)
    if name.endswith("c_attn.bias"):
        keep[len(keep) // 3:2 * len(keep) // 3] = False
    return keep


def self_check(folder, case, tokens, targets, reference):
    """Compares the stored files with untouched transformers models in float32; returns the largest differences."""
    def fresh():
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
            local_files_only=True).eval()

    model = fresh()
    logits = model(input_ids=tokens[0], use_cache=False).logits
    worst = {"logits": (logits - reference["logits"]).abs().max().item()}
    optimizer = make_optimizer(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=tokens[step], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
        loss.backward()
        if step == 0:
            worst["grad"] = max((grad - reference["grad." + name]).abs().max().item()
                                for name, grad in gradients(model, "").items())
        losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
        optimizer.step()
    worst["losses"] = (torch.stack(losses) - reference["losses"]).abs().max().item()
    final = as_stored(model.config, {name: p.detach() for name, p in model.named_parameters()})
    worst["final"] = max((p - reference["final." + name])[determined(name, p)].abs().max().item()
                         for name, p in final.items())
    if "packed" in case:
        model, flat = fresh(), reference["packed.logits"].flatten(0, 1)
        worst["packed.logits"] = max(
            (model(input_ids=tokens[0].flatten()[None, b:b + n], use_cache=False).logits[0] - flat[b:b + n])
            .abs().max().item() for b, n in reference["packed.spans"].tolist())
    limits = {"logits": 5e-5, "packed.logits": 5e-5, "grad": 5e-6, "losses": 2e-5, "final": 1e-4}
    for what, difference in worst.items():
        if not difference <= limits[what]:
            raise SystemExit(f"{folder}: {what} differs from transformers by {difference:.2e} > {limits[what]:.0e}")
    return worst


def write_safetensors(path, tensors, metadata):
    """safetensors.torch.save, but with the metadata in a fixed order and in float32 or int32."""
    tensors = {name: t.to(torch.float32 if t.is_floating_point() else torch.int32).contiguous()
               for name, t in tensors.items()}
    raw = safetensors.torch.save(tensors, metadata=metadata)
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])


def describe(about):
    return {"format": "pt", "about": about, "made_by": "scripts/make_references.py", "torch": torch.__version__,
            "transformers": transformers.__version__}


def save_model(folder, model):
    """config.json and model.safetensors as save_pretrained writes them, with the versions in the header."""
    with tempfile.TemporaryDirectory() as temporary:
        model.save_pretrained(temporary)
        shutil.copy(pathlib.Path(temporary) / "config.json", folder / "config.json")
        weights = safetensors.torch.load_file(pathlib.Path(temporary) / "model.safetensors")
    write_safetensors(folder / "model.safetensors", weights, describe("initial weights"))


def write_case(name, out):
    case, folder = CASES[name], out / name
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(case)
    save_model(folder, model)
    model = in_float64(model)
    tokens, targets = make_stream(case, model.config.vocab_size)
    reference = {"tokens": tokens, "targets": targets}
    if "packed" in case:
        reference.update(packed_reference(model, case, tokens, targets))
    reference.update(train(model, case, tokens, targets))
    metadata = describe("what PyTorch computes from model.safetensors")
    metadata["arithmetic"] = "float64, stored as float32; rotary frequencies rounded to float32"
    metadata["optimizer"] = (f"AdamW lr={LEARNING_RATE} betas={BETAS} eps={EPS} weight_decay={WEIGHT_DECAY} "
                             f"(0 for vectors) clip_grad_norm={CLIP_GRAD} steps={STEPS}")
    write_safetensors(folder / "reference.safetensors", reference, metadata)
    worst = self_check(folder, case, tokens, targets, reference)
    losses, norms = reference["losses"].tolist(), reference["grad_norms"].tolist()
    print(f"{name:8} loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norm {min(norms):.2f} .. {max(norms):.2f}; "
          + "off float32 transformers by " + ", ".join(f"{what} {d:.0e}" for what, d in worst.items()))


def compare_files(stored, fresh):
    """Exits with a message if two safetensors files differ in names, shapes or, beyond rounding, in values."""
    old, new = safetensors.torch.load_file(stored), safetensors.torch.load_file(fresh)
    if old.keys() != new.keys():
        raise SystemExit(f"{stored}: tensors differ: {sorted(old.keys() ^ new.keys())}")
    for name in old:
        if old[name].shape != new[name].shape or old[name].dtype != new[name].dtype:
            raise SystemExit(f"{stored}: {name} is {list(old[name].shape)}, now {list(new[name].shape)}")
        if not torch.allclose(old[name].double(), new[name].double(), rtol=1e-5, atol=1e-7):
            raise SystemExit(f"{stored}: {name} differs by {(old[name] - new[name]).abs().max():.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--only", choices=CASES, help="one case instead of all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of sums
    transformers_logging.disable_progress_bar()
    names = [args.only] if args.only else list(CASES)
    if not args.check:
        for name in names:
            write_case(name, args.out)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            write_case(name, pathlib.Path(temporary))
            for file in ("model.safetensors", "reference.safetensors"):
                compare_files(args.out / name / file, pathlib.Path(temporary) / name / file)
    print("stored references are reproduced")


if __name__ == "__main__":
    sys.exit(main())
