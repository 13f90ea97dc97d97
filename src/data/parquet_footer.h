// Metadata of a parquet file: where the pages of one flat column of texts are stored. Unsupported columns (nested,
// encrypted, other types) are refused with a message. Reads no pages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/stable_file.h"

namespace athanor {

enum class ParquetCodec : uint8_t { uncompressed = 0, snappy = 1, gzip = 2, zstd = 6 };

// The column's pages in one row group.
struct ParquetChunk {
  int64_t rows = 0;
  int64_t offset = 0, bytes = 0;  // position in the file; a dictionary page, if any, comes first
  ParquetCodec codec = ParquetCodec::uncompressed;
};

struct ParquetLayout {
  bool optional = false;  // values may be null: pages have definition levels of 0 and 1
  int64_t rows = 0;
  std::vector<ParquetChunk> chunks;  // one per row group
};

bool is_parquet(std::string_view start);  // checks the first four bytes
ParquetLayout read_parquet_layout(const StableFile& file, const std::string& column);

}  // namespace athanor
