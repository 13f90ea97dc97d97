"""The harness of hostile users fails where a program does: planted mistakes are found and made short."""
import json
import re
import subprocess
import sys
import unittest

from harness import PROGRAM, ROOT, TIMEOUT, SystemTest

HOSTILE = ROOT / "tests" / "hostile" / "hostile.py"


class PlantedTest(SystemTest):
    def play(self, mistake, only, *flags):
        """Result of hostile.py on a program that runs `mistake` before the real program."""
        program = self.folder / "planted"
        program.write_text(f"#!/bin/sh\n{mistake}\nexec {PROGRAM} \"$@\"\n")
        program.chmod(0o755)
        report = self.folder / "found.json"
        done = subprocess.run([sys.executable, str(HOSTILE), "--program", str(program), "--seconds", "600", "--scenarios", "40",
                               "--seed", "1", "--only", only, "--most", "1", "--attempts", "1", "--shrink-seconds", "200",
                               "--folder", str(self.folder), "--json", str(report), *flags], capture_output=True, text=True,
                              timeout=1200)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("again: ", done.stdout)
        return json.loads(report.read_text())["violations"][0]

    def test_crash_is_found_and_minimized(self):
        found = self.play('[ "$6" = --tokenizer ] && kill -SEGV $$', "tokenizing")
        self.assertEqual(found["rule"], "ended by SIGSEGV")
        self.assertEqual([a["do"] for a in found["scenario"]["actions"]], ["run"])
        again = subprocess.run([sys.executable, str(HOSTILE), "--program", str(self.folder / "planted"), "--folder",
                                str(self.folder), "--replay", json.dumps(found["scenario"])], capture_output=True, text=True,
                               timeout=TIMEOUT)
        self.assertEqual(again.returncode, 1, again.stdout + again.stderr)
        self.assertTrue(re.search("VIOLATION of \"ended by SIGSEGV\"", again.stdout), again.stdout)

    def test_hang_and_silent_loss_of_bits_are_found(self):
        found = self.play('[ "$1 $2" = "config validate" ] && trap "" TERM && exec sleep 1000', "bad_config", "--patience", "3",
                          "--shrink-seconds", "1")
        self.assertEqual(found["rule"], "hang")
        found = self.play('[ "$1" = train ] && { [ -e tmp/1 ] && set -- "$@" --set learning_rate=2e-3; touch tmp/1; }',
                          "course", "--shrink-seconds", "1")
        self.assertEqual(found["rule"], "other bits")


if __name__ == "__main__":
    unittest.main()
