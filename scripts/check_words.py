#!/usr/bin/env python3
"""Finds retired words in sources, tests, scripts and documents; prints file:line messages and fails if there are any.

usage: check_words.py [REPOSITORY]
A word is retired once every use of it was replaced by the field's own term: add its row to RETIRED in the same commit.
"""
import re
import subprocess
import sys
from pathlib import Path

RETIRED = {  # pattern -> what to write
    r"[oO]ctets?": "vec8",
    r"[wW]ish(es)?|k?Wish\w+|\w+_wish(es)?": "request",
    r"[tT]wins?": "the other run, or a comparison",
    r"\w*eight_bits|EightBits?\w*": "low_precision",
    r"top_scores?": "max_attention_logit",
    r"Lane": "Stream (a lane is a thread of a warp)",
    r"range-test|RangeTest": "lr-find",
    r"[mM]atrix products?|products? of matrices": "GEMM",
    r"[cC]odes of [48] bits|[48]-bit codes|\w*Coded[A-Z]\w*": "quantized values",
    r"turned|turned_\w+|\w+_turned(_\w+)?|Turning\w*|turns?_back": "transposed, or of RoPE rotated",
    r"\w*[sS]poil\w*": "poison, or corrupt",
    r"Turn|\w*in_turns_?": "PipelineState, or interleaved",
}
ONE = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(RETIRED)))
TEXTS = {".h", ".cc", ".inl", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".cmake", ".json"}
LEFT_OUT = ("scripts/check_words.py", "scripts/bench/results/", "tests/emulator/", "tests/golden/", "data/fixtures/",
            "tests/tokenizer/", "tests/data/fixtures/")  # the emulated GPU has lanes of its own


def main():
    if len(sys.argv) > 2 or "-h" in sys.argv or "--help" in sys.argv:
        sys.exit(__doc__)
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    found = 0
    for name in listed:
        path = root / name
        if path.suffix not in TEXTS or name.startswith(LEFT_OUT) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for match in ONE.finditer(line):
                print(f"{name}:{number}: retired word '{match[0]}': write {list(RETIRED.values())[int(match.lastgroup[1:])]}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
