#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_classes.cc and unicode_nfc.cc: what the splitters and the NFC normalizer know of Unicode.

The classes are those of Unicode 16.0.0, as `tiktoken` 0.14 and `tokenizers` 0.23 have them; the package unicodedata2 is
their source here. The normalizer of `tokenizers` knows Unicode 9.0 only; what came later is left out of the NFC tables.

usage: make_unicode_tables.py [--check]      --check compares the stored files with what would be written
needs: unicodedata2 16.0.0 (pip install unicodedata2==16.0.0)
"""

import argparse
import pathlib
import sys

import unicodedata2 as unicode

VERSION = "16.0.0"
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src" / "tokenizer"
LAST = 0x10FFFF

# The bits of CharClass in unicode.h.
UPPER, LOWER, CASELESS, MARK, NUMBER, SPACE, NEWLINE = (1 << i for i in range(7))
CATEGORIES = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": CASELESS, "Lo": CASELESS,
              "Mn": MARK, "Mc": MARK, "Me": MARK, "Nd": NUMBER, "Nl": NUMBER, "No": NUMBER}
# White_Space of PropList.txt; unchanged since Unicode 6.3.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
               0x3000}

# Characters with a combining class or decomposition that came after Unicode 9.0, which `tokenizers` normalizes with: it
# leaves them alone, and so does the normalizer here, since the implementation that a tokenizer file was made for decides.
NEWER_THAN_NFC = [
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x10D24, 0x10D27), (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50),
    (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x11383, 0x11383), (0x11385, 0x11385), (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5), (0x113C7, 0x113C8), (0x113CE, 0x113D0), (0x1145E, 0x1145E),
    (0x11839, 0x1183A), (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42), (0x11D44, 0x11D45), (0x11D97, 0x11D97),
    (0x11F41, 0x11F42), (0x16121, 0x16128), (0x1612F, 0x1612F), (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF),
]


def char_class(code):
    if code in (0x0A, 0x0D):
        return SPACE | NEWLINE
    if code in WHITE_SPACE:
        return SPACE
    return CATEGORIES.get(unicode.category(chr(code)), 0)


def is_newer(code):
    return any(first <= code <= last for first, last in NEWER_THAN_NFC)


def combining(code):
    return 0 if is_newer(code) else unicode.combining(chr(code))


def runs_of(value_of):
    """[(first code point, value)], one for each change of the value."""
    runs = []
    for code in range(LAST + 1):
        value = value_of(code)
        if not runs or runs[-1][1] != value:
            runs.append((code, value))
    return runs


def decompositions():
    """[(composed, first, second or 0, whether the pair composes)], canonical and one level deep; Hangul is computed."""
    rows = []
    for code in range(LAST + 1):
        fields = unicode.decomposition(chr(code)).split()
        if not fields or fields[0].startswith("<") or is_newer(code):
            continue
        parts = [int(field, 16) for field in fields] + [0]
        composes = len(fields) == 2 and unicode.normalize("NFC", chr(code)) == chr(code)
        rows.append((code, parts[0], parts[1], int(composes)))
    return rows


def lines_of(words):
    line = " "
    for word in words:
        if len(line) + len(word) + 1 > 119:
            yield line
            line = " "
        line += f" {word}"
    yield line


def table(declaration, words):
    return "\n".join([declaration + " = {", *lines_of(words), "};"])


def classes_file():
    runs = runs_of(char_class)
    return f"""// Made by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. Runs of code points of one class, each
// as its first code point << 8 | class (unicode.h).
#include "tokenizer/unicode_tables.h"

namespace athanor {{

// clang-format off
{table(f"const std::array<uint32_t, kClassRuns> class_runs", [f"0x{code << 8 | value:x}," for code, value in runs])}
// clang-format on

}}  // namespace athanor
""", len(runs)


def nfc_file():
    combining_runs = runs_of(combining)
    rows = decompositions()
    # 21 + 21 + 21 bits and the mark of pairs that do not compose.
    words = [f"0x{code | first << 21 | second << 42 | (1 - composes) << 63:x}," for code, first, second, composes in rows]
    return f"""// Made by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. Canonical decompositions, as composed |
// first << 21 | second << 42 | (1 << 63 for pairs that do not compose); runs of one combining class, each as its first
// code point << 8 | class.
#include "tokenizer/unicode_tables.h"

namespace athanor {{

// clang-format off
{table("const std::array<uint64_t, kDecompositions> decompositions", words)}

{table("const std::array<uint32_t, kCombiningRuns> combining_runs",
       [f"0x{code << 8 | value:x}," for code, value in combining_runs])}
// clang-format on

}}  // namespace athanor
""", len(rows), len(combining_runs)


def header_file(class_runs, rows, combining_runs):
    return f"""// Made by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. The sizes of its tables; their layout is
// told where they are.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace athanor {{

inline constexpr size_t kClassRuns = {class_runs};
inline constexpr size_t kDecompositions = {rows};
inline constexpr size_t kCombiningRuns = {combining_runs};
extern const std::array<uint32_t, kClassRuns> class_runs;
extern const std::array<uint64_t, kDecompositions> decompositions;
extern const std::array<uint32_t, kCombiningRuns> combining_runs;

}}  // namespace athanor
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if unicode.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicode.unidata_version}, expected {VERSION}: "
                 f"pip install unicodedata2=={VERSION}")
    classes, class_runs = classes_file()
    nfc, rows, combining_runs = nfc_file()
    files = {"unicode_classes.cc": classes, "unicode_nfc.cc": nfc,
             "unicode_tables.h": header_file(class_runs, rows, combining_runs)}
    for name, text in files.items():
        path = FOLDER / name
        if not args.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} differs from what this script writes")


if __name__ == "__main__":
    main()
