#!/usr/bin/env python3
"""Writes tests/golden/vit/: a tiny vision transformer of transformers, images, and what PyTorch computes with them.

As in make_references.py everything is computed in float64 and stored in float32.

usage: make_image_references.py           write the reference
       make_image_references.py --check   compare the stored files with what would be written
"""

import argparse
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers

import make_references as common

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
BATCH = 5
SEED = 31
UNDECAYED = ("cls_token",)  # besides vectors: the program counts the class token as one


def config():
    return transformers.ViTConfig(
        image_size=12, patch_size=4, num_channels=3, num_labels=7, hidden_size=36, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=52, hidden_act="gelu", layer_norm_eps=1e-3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, image_mean=MEAN, image_std=STD)


def name_in_files(name):
    """transformers 5 has other names in memory than in files."""
    for memory, file in (("vit.layers.", "vit.encoder.layer."), (".attention.q_proj.", ".attention.attention.query."),
                         (".attention.k_proj.", ".attention.attention.key."),
                         (".attention.v_proj.", ".attention.attention.value."),
                         (".attention.o_proj.", ".attention.output.dense."), (".mlp.fc1.", ".intermediate.dense."),
                         (".mlp.fc2.", ".output.dense.")):
        name = name.replace(memory, file)
    return name


def make_model():
    torch.manual_seed(SEED)
    model = transformers.ViTForImageClassification._from_config(config(), attn_implementation="sdpa").eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if name.endswith("bias"):
                p.copy_(0.2 * noise)
            elif p.dim() == 1:  # a norm
                p.copy_((1.0 + 0.2 * noise) * (0.4 if name == "vit.layernorm.weight" else 1.0))
            else:
                p.copy_(noise / model.config.hidden_size ** 0.5)
    return model


def make_images():
    """Pixels [STEPS, BATCH, 3, 12, 12] and labels [STEPS, BATCH]; the label shifts the brightness of one channel."""
    generator = torch.Generator().manual_seed(SEED + 1000)
    pixels = torch.randint(0, 256, (common.STEPS, BATCH, 3, 12, 12), generator=generator)
    labels = torch.randint(0, 7, (common.STEPS, BATCH), generator=generator)
    pixels[:, :, 1] = (pixels[:, :, 1] // 2 + 18 * labels[..., None, None]).clamp(max=255)
    return pixels, labels


def forward(model, pixels, labels):
    dtype = next(model.parameters()).dtype
    mean, std = (torch.tensor(x, dtype=dtype).view(3, 1, 1) for x in (MEAN, STD))
    logits = model(pixel_values=(pixels.to(dtype) / 255 - mean) / std).logits
    return logits, F.cross_entropy(logits, labels)


def make_optimizer(model):
    decays = lambda name, p: p.dim() >= 2 and not name.endswith(UNDECAYED)
    named = list(model.named_parameters())
    return torch.optim.AdamW(
        [dict(params=[p for n, p in named if decays(n, p)], weight_decay=common.WEIGHT_DECAY),
         dict(params=[p for n, p in named if not decays(n, p)], weight_decay=0.0)],
        lr=common.LEARNING_RATE, betas=common.BETAS, eps=common.EPS, foreach=False)


def train(model, pixels, labels):
    optimizer = make_optimizer(model)
    out, losses, norms = {}, [], []
    for step in range(common.STEPS):
        optimizer.zero_grad()
        logits, loss = forward(model, pixels[step], labels[step])
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach()
            out.update({"grad." + name_in_files(name): p.grad.clone() for name, p in model.named_parameters()})
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), common.CLIP_GRAD))
        optimizer.step()
    out["losses"], out["grad_norms"] = torch.stack(losses), torch.stack(norms)
    out.update({"final." + name_in_files(name): p.detach().clone() for name, p in model.named_parameters()})
    return out


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model()
    common.save_model(folder, model)
    pixels, labels = make_images()
    reference = {"pixels": pixels.flatten(2), "labels": labels, **train(model.double(), pixels, labels)}
    metadata = common.describe("what PyTorch computes from model.safetensors")
    metadata["made_by"] = "scripts/make_image_references.py"
    common.write_safetensors(folder / "reference.safetensors", reference, metadata)
    plain = transformers.ViTForImageClassification.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True).eval()
    logits, loss = forward(plain, pixels[0], labels[0])
    for what, difference in (("logits", (logits - reference["logits"]).abs().max().item()),
                             ("loss", abs(loss.item() - reference["losses"][0].item()))):
        if not difference <= 5e-5:
            raise SystemExit(f"{folder}: {what} differs from transformers in float32 by {difference:.2e}")
    losses, norms = reference["losses"].tolist(), reference["grad_norms"].tolist()
    print(f"vit      loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norm {min(norms):.2f} .. {max(norms):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=common.ROOT / "tests" / "golden" / "vit")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of sums
    common.transformers_logging.disable_progress_bar()
    if not args.check:
        return write(args.out)
    with tempfile.TemporaryDirectory() as temporary:
        write(pathlib.Path(temporary))
        for file in ("model.safetensors", "reference.safetensors"):
            common.compare_files(args.out / file, pathlib.Path(temporary) / file)
    print("the stored reference is reproduced")


if __name__ == "__main__":
    sys.exit(main())
