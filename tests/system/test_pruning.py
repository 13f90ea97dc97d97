"""Weights that a run prunes: what its checkpoints and exports hold, and exact resume."""
import json
import struct

from harness import SystemTest


def tensors(folder):
    """Names and values, in f32, of a safetensors file."""
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        yield name, struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])


class PruningTest(SystemTest):
    def test_pruned_weights_are_zero_in_files_and_after_a_resume(self):
        config = self.make_config(train_iters=8, prune_sparsity=0.5, prune_start=2, prune_end=6, prune_interval=2)
        self.run_program("train", config, "--set", "save=whole", "--set", "save_interval=5")
        self.assertEqual([r["sparsity"] for r in self.records("whole") if r["event"] == "step"],
                         [0, 0, 0, 0, 0.4375, 0.4375, 0.5, 0.5])
        self.run_program("train", config, "--set", "save=parts", "--set", "train_iters=8", "--set", "load=whole/step-00000005")
        ends = [self.folder / run / "step-00000008" for run in ("whole", "parts")]
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*[(end / name).read_bytes() for end in ends], name)
        self.run_program("export", "whole", "hf")
        for folder in (ends[0], self.folder / "hf"):
            shares = {name: values.count(0) / len(values) for name, values in tensors(folder)}
            pruned = {share for name, share in shares.items() if ".attn.c_" in name and name.endswith("weight")}
            self.assertEqual(pruned, {0.5}, shares)
            self.assertLess(shares[next(name for name in shares if "wte" in name)], 0.1)
