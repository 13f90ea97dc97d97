#!/usr/bin/env python3
"""Writes the tables of flags in docs/commands.md from the program's own --help, so that every flag is documented.

usage: scripts/command_tables.py [--program build/athanor] [--check]
A table stands between `<!-- flags: VERB -->` and `<!-- end of flags -->`. --check writes nothing and fails if a table is
not what the program says, or a verb has none.
"""
import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

DOC = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
END = "<!-- end of flags -->"
COMMON = "common"  # in place of a verb: the flags that several verbs share
MEANING = 30  # column in which the program's help says what a flag does


def help_of(program, verb):
    return subprocess.run([program, *verb.split(), "--help"], capture_output=True, text=True, check=True).stdout


def sections(text):
    """{title: lines} of a help text."""
    out, title = {}, None
    for line in text.splitlines():
        if re.match(r"^\S.*:$", line):
            title = line[:-1]
            out[title] = []
        elif not line.strip():
            title = None
        elif title:
            out[title].append(line)
    return out


def verbs_of(program, parent=""):
    """Every verb that has no verbs below it."""
    found = []
    for line in sections(help_of(program, parent)).get("Subcommands", []):
        if match := re.match(r"^  (\S+)", line):
            name = f"{parent} {match[1]}".strip()
            found += verbs_of(program, name) or [name]
    return found


def items(lines):
    """(name with its type, meaning) of each flag or argument: the meaning stands from column 30 on, after a long name in
    the next line."""
    out = []
    for line, after in zip(lines, [*lines[1:], ""]):
        if line.startswith(" " * MEANING):
            out[-1][1] = line.strip()
        elif after.startswith(" " * MEANING):
            out.append([line.strip(), ""])
        else:
            out.append([line[:MEANING].strip(), line[MEANING:].strip()])
    return out


def row(name, meaning):
    flag, _, rest = name.partition(" ")
    words = re.sub(r"(Needs|Excludes):( --\S+)+", "", rest)
    default = re.search(r"=(\S+)$", words.replace("...", "").replace("REQUIRED", "").strip())
    needed = [sorted(x.split()) for x in re.findall(r"Needs:((?: --\S+)+)", rest)]  # the program's order varies
    notes = [f"needs `{'`, `'.join(x)}`" for x in needed]
    notes += [f"not with `{x}`" for x in re.findall(r"Excludes: (\S+)", rest)]
    shown = "**required**" if "REQUIRED" in rest else f"`{default[1]}`" if default else ""
    text = "; ".join([meaning.replace("|", "\\|"), *notes])
    return f"| `{flag.replace(',', '`, `')}` | {shown} | {text} |"


def rows_of(program, verb):
    return [row(*item) for title, lines in sections(help_of(program, verb)).items() if title != "Subcommands"
            for item in items(lines) if not re.match(r"-h,|--help-all", item[0])]


def table(rows):
    return "\n".join(["| flag | default | meaning |", "|---|---|---|", *rows])


def tables(program, verbs):
    """{verb: table}: rows that three verbs or more share are in the table COMMON alone, and the others name their flags."""
    rows = {verb: rows_of(program, verb) for verb in verbs}
    count = Counter(row for verb in verbs for row in rows[verb])
    common = sorted((row for row, uses in count.items() if uses >= 3), key=lambda row: "**required**" not in row)
    out = {COMMON: table(common)}
    for verb in verbs:
        own = [row for row in rows[verb] if row not in common]
        shared = ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows[verb] if row in common)
        parts = [table(own)] if own else []
        parts += [f"{'And' if own else 'Only'} [common flags](#common-flags): {shared}."] if shared else []
        out[verb] = "\n\n".join(parts) or "No flags."
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(DOC.parent.parent / "build" / "athanor"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    old = DOC.read_text()
    written = tables(args.program, [verb for verb in re.findall(r"<!-- flags: (.*?) -->", old) if verb != COMMON])
    new = re.sub(r"(<!-- flags: ([^>]*?) -->\n).*?" + re.escape(END), lambda m: m[1] + written[m[2]] + "\n" + END, old,
                 flags=re.S)
    absent = set(verbs_of(args.program)) - set(written)
    if absent:
        sys.exit(f"{DOC}: no table for {', '.join(sorted(absent))}; add <!-- flags: VERB --> and {END}")
    if args.check and new != old:
        sys.exit(f"{DOC}: not what the program's --help says; run scripts/command_tables.py")
    if not args.check:
        DOC.write_text(new)


if __name__ == "__main__":
    main()
