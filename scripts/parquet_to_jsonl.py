#!/usr/bin/env python3
"""Writes a column of parquet files as JSON lines, for `athanor tokenize`.

usage: parquet_to_jsonl.py FILE... [--key text] [--output OUT.jsonl]      without --output: to standard output
  parquet_to_jsonl.py part-*.parquet | athanor tokenize --input - --format jsonl --output-prefix data/mine
  parquet_to_jsonl.py part-0.parquet --output part-0.jsonl                a file lets a killed run go on where it was
Rows without a text are left out. Reads a row group at a time. Needs pyarrow.
"""

import argparse
import json
import os
import sys

try:
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit("parquet_to_jsonl.py: needs pyarrow (pip install pyarrow)")


def texts(path, key):
    with parquet.ParquetFile(path) as file:
        if key not in file.schema_arrow.names:
            sys.exit(f"{path}: has no column {key!r}; there are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=[key], batch_size=4096):
            for row, text in enumerate(batch.column(0).to_pylist()):
                if text is not None and not isinstance(text, str):
                    sys.exit(f"{path}: column {key!r}: expected texts, got {type(text).__name__} in row {row} of a batch")
                if text:
                    yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--key", default="text")
    parser.add_argument("--output")
    args = parser.parse_args()
    part = f"{args.output}.tmp" if args.output else None
    out = open(part, "w", encoding="utf-8") if part else os.fdopen(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False)
    try:
        for path in args.files:
            for text in texts(path, args.key):
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        out.close()
    except (OSError, ValueError) as error:
        if part:
            os.unlink(part)
        sys.exit(f"parquet_to_jsonl.py: {error}")
    if part:
        os.replace(part, args.output)


if __name__ == "__main__":
    main()
