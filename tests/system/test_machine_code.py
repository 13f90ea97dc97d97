"""What scripts/machine_code.py, check_kernels.py and the models of kernels read from machine code, here written by hand."""
import sys
import unittest

from harness import ROOT
from test_gpu_scripts import module


class MachineCodeTest(unittest.TestCase):
    # A loop as ptxas makes it: a wait for memory whose turns stand behind the code, products, a branch around hiding.
    OVERLAP = ["HEAD: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10], R4", "@!P0 BRA SPIN", "BACK: HGMMA.64x64x16.F32 R24, R24",
               "HGMMA.64x64x16.F32 R24, R24, gsb0", "HGMMA.64x64x16.F32 R88, R88",
               "HGMMA.64x64x16.F32 R88, R88, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "@P1 BRA SHOWN",
               "FADD R24, R24, -INF", "SHOWN: MUFU.EX2 R24, R24", "MUFU.EX2 R25, R25",
               "WARPGROUP.DEPBAR.LE gsb0, 0x0", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR11], RZ", "@P2 BRA HEAD", "EXIT",
               "SPIN: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10], R4", "@!P0 BRA SPIN", "BRA BACK"]

    def setUp(self):
        self.machine_code = module(ROOT / "scripts" / "machine_code.py")
        self.check = module(ROOT / "scripts" / "check_kernels.py")

    def kernel(self, lines):
        labels = {line.split(": ")[0]: 16 * n for n, line in enumerate(lines) if ": " in line}
        text = "Function : loop\n"
        for n, line in enumerate(lines):
            words = line.split(": ")[-1].split(" ")
            words[-1] = f"{labels[words[-1]]:#x}" if words[-1] in labels else words[-1]
            text += f"        /*{16 * n:04x}*/                   {' '.join(words)} ;      /* 0x0 */\n"
        (name, code), = self.machine_code.parse(text)
        self.assertEqual((name, len(code)), ("loop", len(lines)))
        return self.machine_code.Kernel("sm_90a", name, 168, 0, 1024, 0, code)

    def test_order_of_a_loop_with_its_wait_behind_it(self):
        kernel = self.kernel(self.OVERLAP)
        self.assertEqual(self.machine_code.orders(kernel.code), "M H4 W1 e2 W0 A")
        self.assertEqual(list(self.check.asynchronous_problems(kernel)), [])

    def test_a_wait_moved_above_the_exponentials_is_found(self):
        moved = list(self.OVERLAP)
        moved.insert(8, moved.pop(11))
        problem, = self.check.asynchronous_problems(self.kernel(moved))
        self.assertIn("2 of 2 exponentials of its loop run while no product does (M H4 W1 W0 e2 A)", problem)

    def test_the_order_of_the_budget_is_held(self):
        budget = ROOT / "budget.txt"
        line = self.check.Line(1, "sm_90a", "loop", 168, ["HGMMA.64x64x16"], 0, "M H4 W1 e2 W0 A")
        self.assertEqual(self.check.problems_of([self.kernel(self.OVERLAP)], [line], budget), [])
        line.order = "M H4 W1 W0 e2 A"
        problem, = self.check.problems_of([self.kernel(self.OVERLAP)], [line], budget)
        self.assertEqual(problem, "budget.txt:1: loop has the order M H4 W1 e2 W0 A, budget M H4 W1 W0 e2 A")

    def test_products_that_wait_one_by_one_are_found(self):
        lines = [line + ", gsb0" if "HGMMA" in line and "gsb0" not in line else line for line in self.OVERLAP]
        problem, = self.check.asynchronous_problems(self.kernel(lines))
        self.assertIn("4 of 4 wgmma end a group", problem)

    def test_global_memory_is_touched_only_behind_the_wait(self):
        """On every way from the start; shared memory, and descriptors of tensors, before it."""
        start = ["STS R1, R2", "@P0 BRA FETCH", "ACQBULK", "LDG.E.128 R4, R2", "EXIT"]
        self.assertEqual(list(self.check.start_problems(self.kernel([*start, "FETCH: UTMACCTL.PF [UR4]", "ACQBULK", "BRA END",
                                                                     "END: UTMASTG.2D [UR4], [UR6]", "EXIT"]))), [])
        problem, = self.check.start_problems(self.kernel([*start, "FETCH: MOV R1, R2", "BRA END", "END: RED.E.ADD R4, R2", "EXIT"]))
        self.assertIn("loop: RED.E.ADD at 0x70 comes before griddepcontrol.wait", problem)
        problem, = self.check.start_problems(self.kernel(["@P0 ACQBULK", "LDG.E.128 R4, R2", "FETCH: EXIT"]))
        self.assertIn("LDG.E.128 at 0x10", problem, "not all threads wait")
        older = self.kernel(["LDG.E.128 R4, R2", "EXIT"])
        older.architecture = "sm_80"
        self.assertEqual(list(self.check.start_problems(older)), [])

    def test_model_of_a_loop(self):
        model = module(ROOT / "scripts" / "model_kernels.py")
        loop, = self.machine_code.product_loops(self.kernel(self.OVERLAP).code)
        path = model.hot_path(loop)
        self.assertNotIn("FADD", [i.name for i in path], "hiding is left out, as in most tiles")
        self.assertEqual(self.machine_code.order(path), self.machine_code.order(loop))
        ss, rs = (self.machine_code.Instruction(0, "", "HGMMA.64x128x16.F32.BF16", text)
                  for text in ("R24, gdesc[UR8], R24", "R88, R120, gdesc[UR12].tnspB, R88, gsb0"))
        self.assertEqual([model.product_cycles(i) for i in (ss, rs)], [(64, 48), (64, 32)])
        part = model.Part(wait=0)
        part.needs |= {"issue": 100, "exp": 400}
        product = model.Part(product=400, ends_group=True)
        # Two warpgroups by turns: exponentials of one beside products of the other, none idle.
        self.assertAlmostEqual(model.simulate([product, part]), 800, delta=1)
        part.needs["exp"] = 600
        self.assertAlmostEqual(model.simulate([product, part]), 1200, delta=1, msg="bound by exponentials")

    # A loop over heads: the scores of the next one begin before the results of the last are read; a loop over tiles in it.
    HEADS = ["HEAD: WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R24, R24", "@P3 BRA LAST", *OVERLAP[:1], "@!P0 BRA SPIN",
             *OVERLAP[2:-5], "@P2 BRA TILE",
             "LAST: HGMMA.64x64x16.F32 R24, R24, gsb0", "HGMMA.64x64x16.F32 R88, R88, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x1",
             "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR12], RZ", "@P4 BRA HEAD", "EXIT",
             "SPIN: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10], R4", "@!P0 BRA SPIN", "BRA BACK"]
    HEADS[3] = HEADS[3].replace("HEAD", "TILE")

    def test_the_loop_around_products_is_held_too(self):
        inside = "M H4 W1 e2 W0 A"
        self.assertEqual(self.machine_code.orders(self.kernel(self.HEADS).code), f"{inside}; W0 e {inside} H2 W1 A")

    def test_model_of_heads(self):
        """What begins a head, a turn, and what ends it; blocks of several heads cost the multiprocessor less than of one."""
        sys.path.insert(0, str(ROOT / "scripts"))
        model = module(ROOT / "scripts" / "model_attention.py")
        head = model.head_of(self.kernel(self.HEADS))
        self.assertEqual([p.wait for p in head.begin], [0, -1])
        self.assertEqual([p.product for p in head.turn if p.product], [32] * 4)
        self.assertEqual([p.product for p in head.end if p.product], [32] * 2)
        busy = model.machine.MULTIPROCESSORS
        parts = [model.parts_of_heads(left, 12) for left in (10 * busy, 2 * busy, 2 * busy - 1, busy - 1, 1)]
        self.assertEqual(parts, [1, 1, 2, 4, 12], "as wgmma_schedule.h")

    def test_model_of_a_tile(self):
        """Behind the loop of products, in the loop around it that stores: two exponentials and what else is issued."""
        model = module(ROOT / "scripts" / "model_kernels.py")
        kernel = self.kernel(["TILE: MOV R1, RZ", "STEP: HGMMA.64x256x16.F32 R24, R24, gsb0",
                              "WARPGROUP.DEPBAR.LE gsb0, 0x1", "@P0 BRA STEP", "MUFU.EX2 R24, R24", "MUFU.EX2 R25, R25",
                              "UTMASTG.2D [UR4], [UR6]", "@P1 BRA TILE", "EXIT"])
        self.assertEqual(model.end_of_tile(kernel), 2 * 2 * 8, "of two warpgroups")
        self.assertAlmostEqual(model.library_seconds(8192, 8192, 8192), 2 * 8192**3 / 795e12)
        table = lambda name: model.product_table(kernel, 1024, model.fused_products(name)).splitlines()[2:]
        rows = table("product_wgmma<__nv_bfloat16>")
        self.assertEqual(len(rows), len(model.LAYERS))
        self.assertTrue(all(" | 32 | " in row for row in rows), rows)
        name, k, f = model.LAYERS[-1]  # bound by products
        row = table("gradient_wgmma<__nv_bfloat16>")[-1]
        self.assertIn(f"{name}, {k} to {f} | {k // 64 * 1024} | 32 | ", row)
        self.assertIn(f" | {10 * model.TOKENS * f / model.COPY * 1e6:.0f} | ", row, "reads 6 bytes of each, writes 4")
        row = table("rope_wgmma<__nv_bfloat16, 128>")[-1]
        self.assertIn(f"{name}, {k} to (32 + 2 x 8) x 128 | {k // 64 * 1024} | 32 | ", row)
        self.assertIn(f" | {4 * 40 * 128 * model.TOKENS / model.COPY * 1e6:.0f} | ", row, "reads and writes 2 bytes of each")
        self.assertEqual(len(table("rope_wgmma<__nv_bfloat16, 64>")) + len(table("rope_wgmma<__nv_bfloat16, 128>")), len(rows))

    def test_model_of_products_of_codes(self):
        """Twice the rate of 16 bits, and of a tile's end the way that takes the fewest instructions."""
        model = module(ROOT / "scripts" / "model_kernels.py")
        lines = ["TILE: MOV R1, RZ", "STEP: QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24, gsb0",
                 "WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P0 BRA STEP", "@P2 BRA PLAIN", "MUFU.EX2 R24, R24", "MUFU.EX2 R25, R25",
                 "PLAIN: UTMASTG.2D [UR4], [UR6]", "@P1 BRA TILE", "EXIT"]
        kernels = []
        for number in range(len(model.SUMS)):
            kernels.append(self.kernel(lines))
            space = "athanor::cuda::(anonymous namespace)::"
            kernels[-1].name = (f"void {space}codes_wgmma<__nv_fp8_e4m3, __nv_fp8_e4m3, ({space}Sums){number}, {space}Maps>({space}Maps, "
                                f"athanor::cuda::Tiles, {space}Job)")
        models = [model.model(k) for k in kernels]
        self.assertEqual([m.name for m in models], [f"codes_wgmma<__nv_fp8_e4m3, __nv_fp8_e4m3, {s}, Maps>" for s in model.SUMS])
        self.assertEqual({model.rate(models, m) for m in models}, {f"{min(2 * 989.4 * models[0].share, 1590):.0f}"})
        self.assertEqual(model.shortest_end(kernels[0]), 2 * 4, "a branch, a store, a branch, and the tile's first instruction")
        rows = model.codes_table(kernels, models).splitlines()[2:]
        self.assertEqual(len(rows), 3 * len(model.LAYERS))
        problem, = self.check.asynchronous_problems(kernels[0])
        self.assertIn("1 of 1 wgmma end a group", problem)


if __name__ == "__main__":
    unittest.main()
