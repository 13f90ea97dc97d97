"""scripts/machine_code.py and check_kernels.py on hand-written machine code."""
import unittest

from harness import ROOT
from test_gpu_scripts import module


class MachineCodeTest(unittest.TestCase):
    # A loop as ptxas makes it: a wait for memory whose turns stand behind the code, GEMMs, a branch around hiding.
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

    def test_order_of_an_overlapped_loop_is_recognized(self):
        kernel = self.kernel(self.OVERLAP)
        self.assertEqual(self.machine_code.orders(kernel.code), "M H4 W1 e2 W0 A")
        self.assertEqual(list(self.check.asynchronous_problems(kernel)), [])

    def test_a_wait_moved_above_the_exponentials_is_found(self):
        moved = list(self.OVERLAP)
        moved.insert(8, moved.pop(11))
        problem, = self.check.asynchronous_problems(self.kernel(moved))
        self.assertIn("2 of 2 exponentials of its loop run while no wgmma does (M H4 W1 W0 e2 A)", problem)

    def test_instruction_order_must_match_the_budget(self):
        budget = ROOT / "budget.txt"
        line = self.check.Line(1, "sm_90a", "loop", 168, ["HGMMA.64x64x16"], 0, "M H4 W1 e2 W0 A")
        self.assertEqual(self.check.problems_of([self.kernel(self.OVERLAP)], [line], budget), [])
        line.order = "M H4 W1 W0 e2 A"
        problem, = self.check.problems_of([self.kernel(self.OVERLAP)], [line], budget)
        self.assertEqual(problem, "budget.txt:1: loop has the order M H4 W1 e2 W0 A, budget M H4 W1 W0 e2 A")

    def test_serialized_gemms_are_found(self):
        lines = [line + ", gsb0" if "HGMMA" in line and "gsb0" not in line else line for line in self.OVERLAP]
        problem, = self.check.asynchronous_problems(self.kernel(lines))
        self.assertIn("4 of 4 wgmma end a group", problem)

    def test_global_memory_access_before_the_wait_is_found(self):
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

    # A loop over heads: the scores of the next one begin before the results of the last are read; a loop over tiles in it.
    HEADS = ["HEAD: WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R24, R24", "@P3 BRA LAST", *OVERLAP[:1], "@!P0 BRA SPIN",
             *OVERLAP[2:-5], "@P2 BRA TILE",
             "LAST: HGMMA.64x64x16.F32 R24, R24, gsb0", "HGMMA.64x64x16.F32 R88, R88, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x1",
             "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR12], RZ", "@P4 BRA HEAD", "EXIT",
             "SPIN: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10], R4", "@!P0 BRA SPIN", "BRA BACK"]
    HEADS[3] = HEADS[3].replace("HEAD", "TILE")

    def test_outer_loop_around_gemms_is_recognized(self):
        inside = "M H4 W1 e2 W0 A"
        self.assertEqual(self.machine_code.orders(self.kernel(self.HEADS).code), f"{inside}; W0 e {inside} H2 W1 A")


if __name__ == "__main__":
    unittest.main()
