#!/usr/bin/env python3
"""Writes the parquet files of tests/data/fixtures with pyarrow (26.0.1): one row set in every supported encoding and
compression, and files that must be refused by name. tests/data/parquet_test.cc has the same rows.

usage: make_parquet.py [FOLDER]
"""

import base64
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as parquet
import pyarrow.parquet.encryption as encryption

HERE = pathlib.Path(__file__).parent / "fixtures"


def texts(rows=40):
    cycle = ["one", "", None, "two\nlines", "träumt 世界", "it's", "a" * 70]
    return [cycle[i * i % 7] if i % 3 else f"row {i}" for i in range(rows)]


def table(nullable=True, name="text"):
    values = texts() if nullable else [t or "" for t in texts()]
    schema = pa.schema([pa.field("id", pa.int64()), pa.field(name, pa.string(), nullable=nullable),
                        pa.field("meta", pa.struct([pa.field("text", pa.string()), pa.field("n", pa.int32())]))])
    return pa.table([pa.array(range(len(values))), pa.array(values, pa.string()),
                     pa.array([{"text": "nested", "n": i} for i in range(len(values))], schema.field("meta").type)],
                    schema=schema)


class Kms(encryption.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


def write_encrypted(path, plain_footer):
    factory = encryption.CryptoFactory(Kms)
    settings = encryption.EncryptionConfiguration(footer_key="k", column_keys={"k": ["text"]},
                                                  plaintext_footer=plain_footer)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    small = table().select(["text"])
    with parquet.ParquetWriter(path, small.schema, encryption_properties=properties) as writer:
        writer.write_table(small)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(exist_ok=True)

    def write(name, nullable=True, column="text", **options):
        settings = {"compression": "none", "use_dictionary": False, "data_page_version": "1.0",
                    "write_statistics": False, "store_schema": False} | options
        parquet.write_table(table(nullable, column), folder / f"{name}.parquet", **settings)

    write("plain", nullable=False)
    write("plain_optional", row_group_size=15)
    write("snappy_dictionary", compression="snappy", use_dictionary=["text"], row_group_size=25)
    write("zstd_dictionary_v2", compression="zstd", use_dictionary=["text"], data_page_version="2.0", row_group_size=25)
    write("gzip_v2", compression="gzip", data_page_version="2.0")
    write("snappy_pages", compression="snappy", data_page_size=64, write_batch_size=3)
    write("zstd_required_v2", nullable=False, compression="zstd", use_dictionary=["text"], data_page_version="2.0")
    write("column_body", column="body", write_statistics=True, store_schema=True)

    write("refused_lz4", compression="lz4")
    write("refused_brotli", compression="brotli")
    write("refused_delta", column_encoding={"text": "DELTA_BYTE_ARRAY"})
    lists = pa.table({"text": pa.array([["a"], ["b", "c"]])})
    parquet.write_table(lists, folder / "refused_list.parquet")
    parquet.write_table(pa.table({"text": pa.array([1, 2])}), folder / "refused_int.parquet")
    write_encrypted(folder / "refused_encrypted_column.parquet", plain_footer=True)
    write_encrypted(folder / "refused_encrypted.parquet", plain_footer=False)


if __name__ == "__main__":
    main()
