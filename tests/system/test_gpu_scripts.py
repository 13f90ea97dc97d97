"""The scripts for machines with a GPU, as far as a machine without one can run them."""
import json
import subprocess
import sys
import unittest

from harness import PROGRAM, ROOT, SystemTest

VERIFY = ROOT / "scripts" / "gpu" / "verify.py"


class VerifyTest(SystemTest):
    def verify(self, *arguments, code):
        if PROGRAM.parent != ROOT / "build":
            self.skipTest("verify.py looks for build/athanor")
        self.make_data()
        done = subprocess.run([sys.executable, str(VERIFY), "--out", str(self.folder / "out"), "--data",
                               str(self.folder / "data"), *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads((self.folder / "out" / "verify.json").read_text())["parts"], done.stdout

    def test_parts_for_any_device_pass_on_the_cpu(self):
        parts, table = self.verify("--device", "cpu", "--parts", "environment,backend,resume", code=0)
        self.assertEqual({p: e["status"] for p, e in parts.items()},
                         {"environment": "passed", "backend": "passed", "resume": "passed"})
        self.assertIn("passed", table)

    def test_what_did_not_run_is_not_green(self):
        parts, table = self.verify("--device", "cpu", "--parts", "ops,laws,ranks", code=0)
        for part in ("ops", "laws", "ranks"):
            self.assertEqual(parts[part]["status"], "not run")
            self.assertTrue(parts[part]["why"])
        self.assertIn("needs a GPU", table)

    def test_failures_are_told_and_reports_are_merged(self):
        for data in (self.folder / "data").glob("*"):
            data.unlink()
        self.verify("--device", "cpu", "--parts", "ranks", code=0)
        (self.folder / "data" / "text_train_000000.bin").write_bytes(b"damaged")
        done = subprocess.run([sys.executable, str(VERIFY), "--out", str(self.folder / "out"), "--data",
                               str(self.folder / "data"), "--device", "cpu", "--parts", "resume"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        parts = json.loads((self.folder / "out" / "verify.json").read_text())["parts"]
        self.assertEqual([parts["resume"]["status"], parts["ranks"]["status"]], ["FAILED", "not run"])


if __name__ == "__main__":
    unittest.main()
