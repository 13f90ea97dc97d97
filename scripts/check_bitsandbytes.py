#!/usr/bin/env python3
"""Compares NF4 with bitsandbytes' CPU code, and opens what `athanor export --dtype nf4` wrote by transformers.

usage: check_bitsandbytes.py [ORIGINAL EXPORTED]
  (nothing)  prints the hashes that tests/adapters/nf4_test.cc has of bitsandbytes' bytes
  ORIGINAL   a folder of transformers, in f32 or bf16
  EXPORTED   what `export ORIGINAL EXPORTED --dtype nf4` (or nf4_single) wrote

Every matrix of EXPORTED must have the bytes that bitsandbytes makes of ORIGINAL; only the mean absmax, which it sums in
f32, may differ in the last places, and an absmax of 8 bits by one where that moves it over a midpoint. The logits of
EXPORTED in transformers must be those of ORIGINAL with its linear layers dequantized from the same bytes.
"""
import json
import os
import sys

import bitsandbytes
import numpy
import torch
import transformers
from safetensors import safe_open

quantize = bitsandbytes.functional.quantize_4bit


def fnv1a(array):
    h = 0xCBF29CE484222325
    for byte in array.tobytes():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def print_hashes():
    i = numpy.arange(20011, dtype=numpy.int64)
    values = ((i * i * 7919 % 2003 - 1001) * (i // 64 * 13 % 97 + 1)).astype(numpy.float32) * numpy.float32(2.0**-17)
    x = torch.from_numpy(values)
    packed, single = quantize(x, quant_type="nf4", compress_statistics=False)
    _, nested = quantize(x, quant_type="nf4", compress_statistics=True)
    for name, t in [("packed", packed), ("absmax", single.absmax), ("nested 8 bits", nested.absmax),
                    ("nested absmax", nested.state2.absmax), ("map", nested.state2.code)]:
        print(f"{name}: {fnv1a(t.numpy())}")
    print(f"offset {nested.offset.item():.9g}, of a sum in double {numpy.float32(single.absmax.double().mean()):.9g}")


def tensors_of(folder):
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with safe_open(f"{folder}/{file}", "pt") as f:
                tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors


def compare_bytes(original, exported):
    before, after = tensors_of(original), tensors_of(exported)
    matrices = [name for name in before if f"{name}.quant_state.bitsandbytes__nf4" in after]
    moved = values = 0
    for name in matrices:
        state = json.loads(bytes(after[f"{name}.quant_state.bitsandbytes__nf4"].numpy()))
        nested = "nested_offset" in state
        weight = before[name].T.contiguous() if name.startswith("transformer.h.") else before[name]  # GPT-2's are [in, out]
        packed, theirs = quantize(weight, quant_type="nf4", compress_statistics=nested)
        assert torch.equal(packed, after[name]), f"{name}: other values"
        assert torch.equal(theirs.code, after[f"{name}.quant_map"]), f"{name}: another table"
        if not nested:
            assert torch.equal(theirs.absmax, after[f"{name}.absmax"]), f"{name}: other absmaxes"
            continue
        assert torch.equal(theirs.state2.code, after[f"{name}.nested_quant_map"]), f"{name}: another map"
        assert torch.allclose(theirs.state2.absmax, after[f"{name}.nested_absmax"], rtol=1e-5), f"{name}: nested absmaxes"
        assert abs(theirs.offset.item() / state["nested_offset"] - 1) < 1e-6, f"{name}: another mean"
        difference = (theirs.absmax.int() - after[f"{name}.absmax"].int()).abs()
        assert difference.max() <= 1, f"{name}: other absmaxes of 8 bits"
        moved, values = moved + int(difference.sum()), values + difference.numel()
    assert matrices, "no matrix is in NF4"
    return len(matrices), moved, values


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits.float()


# ORIGINAL with what the bytes of EXPORTED stand for, by bitsandbytes.
def dequantized(original, exported):
    model = transformers.AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    stored = tensors_of(exported)
    for name, weight in model.named_parameters():
        if f"{name}.quant_state.bitsandbytes__nf4" not in stored:
            continue
        parts = {k: v for k, v in stored.items() if k.startswith(name + ".")}
        state = bitsandbytes.functional.QuantState.from_dict(parts, torch.device("cpu"))
        state.dtype = torch.float32
        values = bitsandbytes.functional.dequantize_4bit(stored[name], state)
        weight.data = values.T.contiguous() if type(model) is transformers.GPT2LMHeadModel else values.reshape(weight.shape)
    return model


def main():
    if len(sys.argv) == 1:
        return print_hashes()
    original, exported = sys.argv[1:]
    matrices, moved, values = compare_bytes(original, exported)
    by_hand = dequantized(original, exported)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(exported, device_map="cpu", dtype="auto")
    four_bit = sum(isinstance(m, bitsandbytes.nn.Linear4bit) for m in loaded.modules())
    tokens = torch.arange(24).reshape(2, 12) % by_hand.config.vocab_size
    want, got = logits_of(by_hand, tokens), logits_of(loaded, tokens)
    difference = ((got - want).abs().max() / want.abs().max()).item()
    print(f"bitsandbytes {bitsandbytes.__version__}, transformers {transformers.__version__}, torch {torch.__version__}: "
          f"{matrices} matrices in NF4 have its bytes ({moved} of {values} absmaxes of 8 bits differ by one); "
          f"{four_bit} layers of 4 bits, logits differ by {difference:.3g}")
    if four_bit != matrices or difference > 2e-2:
        sys.exit("transformers computes other logits from the exported folder")


if __name__ == "__main__":
    main()
