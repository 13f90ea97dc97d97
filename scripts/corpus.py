#!/usr/bin/env python3
"""Builds a corpus from Debian packages; downloads nothing.

usage: corpus.py [--large] OUTPUT      for instance: scripts/corpus.py runs/quickstart/corpus.txt
The quick start's: the King James Bible (package bible-kjv), then the fortune cookies (package fortunes), 6.9 MB of English.
--large, for comparisons of recipes: the Collaborative International Dictionary of English (package dict-gcide), then from the
source of Linux (package linux-source-6.1) its documentation and the C files of fs, kernel and mm, 122 MB. Both are clean
UTF-8, and the same package versions give the same bytes. Prints size and SHA-256.
"""
import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

FORTUNES = Path("/usr/share/games/fortunes")
DICTIONARY = Path("/usr/share/dictd/gcide.dict.dz")
LINUX = Path("/usr/src/linux-source-6.1.tar.xz")
OF_LINUX = re.compile(r"[^/]+/(Documentation/.*\.rst|(fs|kernel|mm)/.*\.[ch])$")
OVERSTRIKE = re.compile(r".\x08")  # "_\bX": underlining for line printers
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def fail(message):
    sys.exit(f"corpus.py: {message}")


def clean(text):
    """Line feeds only, no terminal tricks, no trailing blanks."""
    text = CONTROL.sub("", OVERSTRIKE.sub("", text.replace("\r\n", "\n")))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n") + "\n"


def bible():
    environment = dict(os.environ, LC_ALL="C")
    try:
        run = subprocess.run(["bible", "-f", "Gen 1:1-Rev22:21"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, env=environment)
    except FileNotFoundError:
        fail("no program `bible`: install the package bible-kjv (apt install bible-kjv)")
    text = run.stdout.decode("utf-8")
    if run.returncode != 0 or not text.startswith("Ge1:1 In the beginning") or text.count("\n") < 31000:
        fail("`bible` gave no complete text: install the package bible-kjv-text (apt install bible-kjv-text): "
             + run.stderr.decode("utf-8", "replace").strip()[:200])
    return clean(text)


def fortunes():
    files = sorted(p for p in FORTUNES.glob("*")  # the offensive ones are in a folder of their own
                   if p.is_file() and not p.is_symlink() and p.suffix not in (".dat", ".u8"))
    if len(files) < 20:
        fail(f"{len(files)} fortune files in {FORTUNES}: install the package fortunes (apt install fortunes)")
    parts = []
    for path in files:
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            fail(f"{path}: is no UTF-8: {error}")
        parts.append(clean(re.sub(r"(?m)^%$", "", text)))  # a line with % ends an item
    return "\n".join(parts)


def need(path, package):
    if not path.is_file():
        fail(f"no file {path}: install the package {package} (apt install {package})")
    return path


def dictionary():
    return clean(gzip.decompress(need(DICTIONARY, "dict-gcide").read_bytes()).decode("utf-8", "replace"))


def linux():
    with tarfile.open(need(LINUX, "linux-source-6.1"), "r|xz") as archive:
        return "\n".join(clean(archive.extractfile(member).read().decode("utf-8", "replace"))
                         for member in archive if member.isfile() and OF_LINUX.match(member.name))


def main():
    words = sys.argv[1:]
    large = words[:1] == ["--large"]
    if len(words) != 1 + large or words[-1].startswith("-"):
        sys.exit(__doc__)
    output = Path(words[-1])
    parts = (dictionary, linux) if large else (bible, fortunes)
    data = "\n".join(part() for part in parts).encode("utf-8")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(output.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(output)
    print(f"{output}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
