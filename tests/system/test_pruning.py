"""Weights that a run prunes: what its checkpoints and exports hold, exact resume and exact rewinding."""
import json
import shutil
import struct

from harness import SystemTest, read_safetensors


def tensors(folder):
    """Names and values, in f32, of a safetensors file."""
    for name, (dtype, _, data) in read_safetensors(folder / "model.safetensors").items():
        if dtype == "F32":
            yield name, struct.unpack(f"<{len(data) // 4}f", data)


class PruningTest(SystemTest):
    def test_pruned_weights_stay_zero_in_files_and_after_a_resume(self):
        config = self.make_config(train_iters=8, pruning={"sparsity": 0.5, "start": 2, "end": 6, "interval": 2})
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

    def train(self, config, save, *more):
        self.run_program("train", config, "--set", f"save={save}", *(word for key in more for word in ("--set", key)))

    def test_lottery_ticket_resumes_a_step_with_the_mask_of_another_run(self):
        config = self.make_config(train_iters=8, save_interval=4)
        self.train(config, "dense")
        rewind = ["load=dense", "load_step=4", "pruning.mask_from=dense"]
        self.train(config, "empty", *rewind, "pruning.sparsity=1e-9")
        self.train(config, "ticket", *rewind, "pruning.sparsity=0.2", "save_interval=6")

        def series(run):
            steps = [r for r in self.records(run) if r["event"] == "step" and r["step"] > 4]
            return [(r["step"], r["consumed_samples"], r["learning_rate"]) for r in steps], [r["loss"] for r in steps]
        self.assertEqual(series("empty"), series("dense"), "an empty mask changes no bit")
        self.assertEqual(series("ticket")[0], series("dense")[0])
        self.assertNotEqual(series("ticket")[1][0], series("dense")[1][0], "pruned before the first step")
        dense, ticket = (dict(tensors(self.folder / run / "step-00000008")) for run in ("dense", "ticket"))
        for name, values in dense.items():
            if name.endswith("c_fc.weight"):
                order = sorted(range(len(values)), key=lambda i: abs(values[i]))
                gone = round(0.2 * len(values))
                self.assertEqual({i for i, x in enumerate(ticket[name]) if x == 0}, set(order[:gone]), name)
        pruned = [r for r in self.records("ticket") if r["event"] == "pruned"]
        self.assertEqual({(r["step"], r["zeros"] == round(0.2 * r["weights"])) for r in pruned}, {(4, True)})
        self.assertIn("h.0.mlp.c_fc.weight", {r["layer"].removeprefix("transformer.") for r in pruned})
        out = self.run_program("checkpoint", "inspect", "ticket/step-00000008", "--zeros").out
        self.assertRegex(out, r"h\.0\.mlp\.c_fc\.weight .* 20\.0\d %")
        # The mask is the run's own from then on.
        shutil.rmtree(self.folder / "dense")
        self.train(config, "resumed", "load=ticket/step-00000006", "pruning.mask_from=dense", "pruning.sparsity=0.2")
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*[(self.folder / run / "step-00000008" / name).read_bytes() for run in ("ticket", "resumed")], name)
        self.train(config, "second", "load=ticket/step-00000006", "pruning.mask_from=ticket", "pruning.sparsity=0.36")
        second = dict(tensors(self.folder / "second" / "step-00000008"))
        for name, values in ticket.items():
            if name.endswith("c_fc.weight"):
                self.assertEqual(second[name].count(0), round(0.36 * len(values)))
                self.assertTrue(all(y == 0 for x, y in zip(values, second[name]) if x == 0), "no weight comes back")

    def test_srste_checkpoints_are_dense_and_exports_sparse(self):
        llama = {"model_type": "llama", "intermediate_size": 64}
        config = self.make_config(train_iters=8, save_interval=4, eval_interval=8, precision="bf16", model=llama, optimizer="muon",
                                  pruning={"sparsity": 0.5, "pattern": "2:4", "method": "srste", "srste_decay": 0.01})
        self.train(config, "whole")
        self.train(config, "parts", "load=whole/step-00000004")
        ends = [self.folder / run / "step-00000008" for run in ("whole", "parts")]
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*[(end / name).read_bytes() for end in ends], name)
        self.run_program("export", "whole", "hf")
        dense, sparse = dict(tensors(ends[0])), dict(tensors(self.folder / "hf"))
        for name, values in sparse.items():
            if "_proj" in name:
                groups = [values[i:i + 4] for i in range(0, len(values), 4)]
                self.assertEqual({group.count(0) for group in groups}, {2}, name)
                self.assertLess(dense[name].count(0), 9, name)
                self.assertTrue(all(x in (0, y) for x, y in zip(values, dense[name])), name)
            else:
                self.assertEqual(values, dense[name], name)
        told = [r["loss"] for r in self.records("whole") if r["event"] == "eval"][-1]
        for folder in ("whole", "hf"):
            read = json.loads(self.run_program("eval", folder, "--data", "data/*_val_*.bin", "--json").out)
            self.assertAlmostEqual(read["loss"], told, places=2, msg=folder)
