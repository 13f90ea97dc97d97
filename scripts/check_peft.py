#!/usr/bin/env python3
"""Opens what `athanor export --format peft` wrote by the peft package and compares logits.

usage: check_peft.py BASE ADAPTER MERGED OUT
  BASE     the frozen model, a folder of transformers
  ADAPTER  what `export --format peft` wrote
  MERGED   what `export --dtype f32` wrote of the same checkpoint
  OUT      new folder: the adapters as peft itself saves them

The logits of BASE with ADAPTER must be those of MERGED, and those of peft's own merge.
"""
import sys

import peft
import torch
import transformers


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits


def main():
    base_path, adapter, merged_path, out = sys.argv[1:]
    def load(path):  # grouped GEMMs need sizes that tiny mixtures lack
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, experts_implementation="eager")

    base = load(base_path)
    tokens = torch.arange(24).reshape(2, 12) % base.config.vocab_size
    before = logits_of(base, tokens)
    model = peft.PeftModel.from_pretrained(base, adapter)
    with_adapter = logits_of(model, tokens)
    model.save_pretrained(out)
    merged = logits_of(load(merged_path), tokens)
    by_peft = logits_of(model.merge_and_unload(), tokens)
    scale = with_adapter.abs().max()
    moved = (with_adapter - before).abs().max() / scale
    ours, theirs = (merged - with_adapter).abs().max() / scale, (by_peft - with_adapter).abs().max() / scale
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}: the adapters move "
          f"logits by {moved:.3g}; merged here they differ by {ours:.3g}, merged by peft by {theirs:.3g}")
    if moved < 1e-3 or ours > 1e-5:
        sys.exit("the logits of the merged model are not those of the base with adapters")


if __name__ == "__main__":
    main()
