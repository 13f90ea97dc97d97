// The texts of one flat column of a parquet file, row by row: data pages V1 and V2, plain or dictionary-encoded,
// uncompressed or compressed with snappy, gzip or zstd. Holds one page and one dictionary in memory; their sizes are
// limited by what their compressed bytes can expand to, and by 1 GiB. Nested and encrypted columns and other encodings
// and compressions are refused with their name. Formats: [apache/parquet-format README.md, Encodings.md].
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/hybrid_decoder.h"
#include "data/stable_file.h"

namespace athanor {

// Metadata of a parquet file: where the pages of one flat column of texts are stored. Unsupported columns (nested,
// encrypted, other types) are refused with a message. Reads no pages.

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

class ParquetColumn {
 public:
  ParquetColumn(const std::string& path, std::string column);
  int64_t rows() const { return layout_.rows; }

  // The text of the next row, valid until the next call: empty for null, nullopt after the last row.
  std::optional<std::string_view> next();
  void skip(int64_t rows);  // throws an Error if there are fewer; row groups that are skipped entirely are not read
  int64_t file_offset() const { return offset_; }  // end of the last page read

 private:
  struct PageHeader;
  const ParquetChunk& chunk() const { return layout_.chunks[group_]; }
  void begin_group();
  std::string_view next_text();
  std::string_view next_value();
  void read_page();
  PageHeader read_header();
  void read_data(const PageHeader& header, std::string_view packed);
  void read_dictionary(const PageHeader& header, std::string_view packed);
  void unpack(std::string_view packed, size_t bytes, std::string& out) const;
  void begin_values(int64_t encoding, std::string_view values);

  std::string column_;
  StableFile file_;
  ParquetLayout layout_;
  size_t group_ = 0;
  int64_t group_left_ = -1;  // rows of the group not yet covered by a page; -1: the group has not been started
  int64_t page_left_ = 0;    // rows left in the page
  int64_t offset_ = 0;
  std::string packed_, page_, dictionary_page_;
  std::vector<std::string_view> dictionary_;
  bool has_dictionary_ = false, by_index_ = false;
  HybridDecoder levels_, indices_;
  std::string_view values_;  // remaining plain-encoded values
};

}  // namespace athanor
