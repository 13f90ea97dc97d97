#!/usr/bin/env python3
"""Generates the Unicode tables of splitters and normalizers in src/tokenizer: unicode_classes.cc, unicode_forms.cc,
unicode_compatible.cc and unicode_tables.h.

Character classes are those of Unicode 16.0.0, as in `tiktoken` 0.14 and `tokenizers` 0.23; the Python package
unicodedata2 provides them. The normalizers of `tokenizers` use Unicode 9.0, so the tables of decompositions omit newer
characters. Its punctuation is of an even older version (OTHER_PUNCTUATION).

usage: make_unicode_tables.py [--check]      --check fails if a stored file differs from what would be written
needs: unicodedata2 16.0.0 (pip install unicodedata2==16.0.0)
"""

import argparse
import pathlib
import sys

import unicodedata2 as unicode

VERSION = "16.0.0"
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src" / "tokenizer"
LAST = 0x10FFFF

# Bits of CharClass in unicode.h.
UPPER, LOWER, CASELESS, MARK, NUMBER, SPACE, NEWLINE = (1 << i for i in range(7))
CATEGORIES = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": CASELESS, "Lo": CASELESS,
              "Mn": MARK, "Mc": MARK, "Me": MARK, "Nd": NUMBER, "Nl": NUMBER, "No": NUMBER}
# Characters with the property White_Space (PropList.txt); unchanged since Unicode 6.3.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
               0x3000}

# Ranges of code points with a combining class or a canonical decomposition that are newer than Unicode 9.0. `tokenizers`
# does not normalize them, so athanor must not either: ids must equal those of the library for which a tokenizer was made.
NEWER_THAN_NFC = [
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x10D24, 0x10D27), (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50),
    (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x11383, 0x11383), (0x11385, 0x11385), (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5), (0x113C7, 0x113C8), (0x113CE, 0x113D0), (0x1145E, 0x1145E),
    (0x11839, 0x1183A), (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42), (0x11D44, 0x11D45), (0x11D97, 0x11D97),
    (0x11F41, 0x11F42), (0x16121, 0x16128), (0x1612F, 0x1612F), (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF),
]
# Ranges of code points newer than Unicode 9.0 that have a compatibility decomposition.
NEWER_THAN_NFKC = [
    (0x32FF, 0x32FF), (0xA7F2, 0xA7F4), (0xAB69, 0xAB69), (0x10781, 0x10785), (0x10787, 0x107B0), (0x107B2, 0x107BA),
    (0x1CCD6, 0x1CCF9), (0x1E030, 0x1E06D), (0x1F16C, 0x1F16C), (0x1FBF0, 0x1FBF9),
]
# Ranges of code points that are punctuation (category P) either in Unicode 16 or in `tokenizers`, but not in both.
OTHER_PUNCTUATION = [
    (0x61D, 0x61D), (0x9FD, 0x9FD), (0xA76, 0xA76), (0xC77, 0xC77), (0xC84, 0xC84), (0x166D, 0x166D), (0x1B4E, 0x1B4F),
    (0x1B7D, 0x1B7F), (0x2E43, 0x2E4F), (0x2E52, 0x2E5D), (0x10D6E, 0x10D6E), (0x10EAD, 0x10EAD), (0x10F55, 0x10F59),
    (0x10F86, 0x10F89), (0x111C9, 0x111C9), (0x113D4, 0x113D5), (0x113D7, 0x113D8), (0x1144B, 0x1144F),
    (0x1145A, 0x1145B), (0x1145D, 0x1145D), (0x11660, 0x1166C), (0x116B9, 0x116B9), (0x1183B, 0x1183B),
    (0x11944, 0x11946), (0x119E2, 0x119E2), (0x11A3F, 0x11A46), (0x11A9A, 0x11A9C), (0x11A9E, 0x11AA2),
    (0x11B00, 0x11B09), (0x11BE1, 0x11BE1), (0x11C41, 0x11C45), (0x11C70, 0x11C71), (0x11EF7, 0x11EF8),
    (0x11F43, 0x11F4F), (0x11FFF, 0x11FFF), (0x12FF1, 0x12FF2), (0x16D6D, 0x16D6F), (0x16E97, 0x16E9A),
    (0x16FE2, 0x16FE2), (0x1E5FF, 0x1E5FF), (0x1E95E, 0x1E95F),
]


def char_class(code):
    if code in (0x0A, 0x0D):
        return SPACE | NEWLINE
    if code in WHITE_SPACE:
        return SPACE
    return CATEGORIES.get(unicode.category(chr(code)), 0)


def is_in(ranges, code):
    return any(first <= code <= last for first, last in ranges)


def is_newer(code):
    return is_in(NEWER_THAN_NFC, code)


def is_punctuation(code):
    """True if the pre-tokenizer `Punctuation` splits at this code point; includes the symbols (S) of ASCII."""
    known = unicode.category(chr(code))[0] == "P" or (code < 0x80 and unicode.category(chr(code))[0] == "S")
    return known != is_in(OTHER_PUNCTUATION, code)


def combining(code):
    return 0 if is_newer(code) else unicode.combining(chr(code))


def runs_of(value_of):
    """Run-length encoding over all code points: [(first code point of the run, its value)]."""
    runs = []
    for code in range(LAST + 1):
        value = value_of(code)
        if not runs or runs[-1][1] != value:
            runs.append((code, value))
    return runs


def decompositions():
    """Canonical decompositions, not applied recursively: [(composed, first, second or 0, 1 if NFC composes the pair)].
    Hangul is left out, since the normalizer computes it."""
    rows = []
    for code in range(LAST + 1):
        fields = unicode.decomposition(chr(code)).split()
        if not fields or fields[0].startswith("<") or is_newer(code):
            continue
        parts = [int(field, 16) for field in fields] + [0]
        composes = len(fields) == 2 and unicode.normalize("NFC", chr(code)) == chr(code)
        rows.append((code, parts[0], parts[1], int(composes)))
    return rows


def compatible():
    """Compatibility decompositions, not applied recursively: [(code point, [code points of its replacement])]."""
    rows = []
    for code in range(LAST + 1):
        fields = unicode.decomposition(chr(code)).split()
        if fields and fields[0].startswith("<") and not is_in(NEWER_THAN_NFKC, code):
            rows.append((code, [int(field, 16) for field in fields[1:]]))
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
    runs, punctuation = runs_of(char_class), runs_of(is_punctuation)
    return f"""// Generated by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. class_runs: runs of code points of one
// class, each as its first code point << 8 | class (unicode.h). punctuation_ends: code points at which punctuation
// begins and ends, alternately.
#include "tokenizer/unicode_tables.h"

namespace athanor {{

// clang-format off
{table(f"const std::array<uint32_t, kClassRuns> class_runs", [f"0x{code << 8 | value:x}," for code, value in runs])}

{table("const std::array<uint32_t, kPunctuationEnds> punctuation_ends", [f"0x{code:x}," for code, _ in punctuation[1:]])}
// clang-format on

}}  // namespace athanor
""", {"kClassRuns": len(runs), "kPunctuationEnds": len(punctuation) - 1}


def forms_file():
    combining_runs = runs_of(combining)
    rows = decompositions()
    # Three code points of 21 bits each; bit 63 marks pairs that do not compose.
    words = [f"0x{code | first << 21 | second << 42 | (1 - composes) << 63:x}," for code, first, second, composes in rows]
    return f"""// Generated by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. decompositions: canonical ones, each as
// composed | first << 21 | second << 42, with bit 63 set if the pair does not compose. combining_runs: runs of code
// points of one combining class, each as its first code point << 8 | class.
#include "tokenizer/unicode_tables.h"

namespace athanor {{

// clang-format off
{table("const std::array<uint64_t, kDecompositions> decompositions", words)}

{table("const std::array<uint32_t, kCombiningRuns> combining_runs",
       [f"0x{code << 8 | value:x}," for code, value in combining_runs])}
// clang-format on

}}  // namespace athanor
""", {"kDecompositions": len(rows), "kCombiningRuns": len(combining_runs)}


def compatible_file():
    codes = [code for replaced, parts in compatible() for code in (replaced + LAST + 1, *parts)]
    codes += [0] * (-len(codes) % 3)
    words = [f"0x{a | b << 21 | c << 42:x}," for a, b, c in zip(codes[::3], codes[1::3], codes[2::3])]
    return f"""// Generated by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. Compatibility decompositions as one
// sequence of code points: each decomposed one (stored plus 0x{LAST + 1:x}), then its replacement. A word holds three code
// points, the first one in the lowest bits.
#include "tokenizer/unicode_tables.h"

namespace athanor {{

// clang-format off
{table("const std::array<uint64_t, kCompatibleWords> compatible", words)}
// clang-format on

}}  // namespace athanor
""", {"kCompatibleWords": len(words)}


def header_file(sizes):
    constants = "\n".join(f"inline constexpr size_t {name} = {size};" for name, size in sizes.items())
    return f"""// Generated by scripts/make_unicode_tables.py from Unicode {VERSION}; do not edit. Declares the tables; the files that
// define them describe their layout.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace athanor {{

{constants}
extern const std::array<uint32_t, kClassRuns> class_runs;
extern const std::array<uint32_t, kPunctuationEnds> punctuation_ends;
extern const std::array<uint64_t, kDecompositions> decompositions;
extern const std::array<uint64_t, kCompatibleWords> compatible;
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
    classes, sizes = classes_file()
    forms, sizes_of_forms = forms_file()
    replaced, sizes_of_replaced = compatible_file()
    files = {"unicode_classes.cc": classes, "unicode_forms.cc": forms, "unicode_compatible.cc": replaced,
             "unicode_tables.h": header_file(sizes | sizes_of_forms | sizes_of_replaced)}
    for name, text in files.items():
        path = FOLDER / name
        if not args.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} differs from what this script writes")


if __name__ == "__main__":
    main()
