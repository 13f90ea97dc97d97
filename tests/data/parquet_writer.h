// A parquet file made by hand, with any numbers in its metadata, true or not: one required column of texts, plain and
// uncompressed, one page per row group.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor::testing {

// Writes Thrift's compact protocol; fields of a struct in ascending order.
class ThriftWriter {
 public:
  ThriftWriter& number(int id, int64_t value) {
    head(id, 6);
    return varint(uint64_t(value) << 1 ^ uint64_t(value >> 63));
  }
  ThriftWriter& text(int id, std::string_view value) {
    head(id, 8);
    return bytes(value);
  }
  ThriftWriter& texts(int id, const std::vector<std::string>& values) {
    list(id, 8, values.size());
    for (const std::string& value : values) bytes(value);
    return *this;
  }
  ThriftWriter& structure(int id, const ThriftWriter& value) {
    head(id, 12);
    out_ += value.done();
    return *this;
  }
  ThriftWriter& structures(int id, const std::vector<ThriftWriter>& values) {
    list(id, 12, values.size());
    for (const ThriftWriter& value : values) out_ += value.done();
    return *this;
  }
  std::string done() const { return out_ + '\0'; }

 private:
  void head(int id, int type) {
    out_ += char((id - last_) << 4 | type);
    last_ = id;
  }
  void list(int id, int type, size_t size) {
    head(id, 9);
    out_ += char(0xf0 | type);
    varint(size);
  }
  ThriftWriter& bytes(std::string_view value) {
    varint(value.size());
    out_ += value;
    return *this;
  }
  ThriftWriter& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += char(value | 0x80);
    out_ += char(value);
    return *this;
  }

  std::string out_;
  int last_ = 0;
};

inline std::string four_bytes(uint64_t value) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += char(value >> (8 * i));
  return out;
}

// Metadata values to falsify; -1 keeps the correct one.
struct ParquetLies {
  int64_t page_values = -1, page_bytes = -1, packed_bytes = -1, group_rows = -1, chunk_offset = -1, codec = 0;
};

inline std::string parquet_of(const std::vector<std::string>& texts, size_t rows_per_group = 1000,
                              const ParquetLies& lies = {}) {
  const auto told = [](int64_t lie, size_t truth) { return lie >= 0 ? lie : int64_t(truth); };
  std::string file = "PAR1";
  std::vector<ThriftWriter> groups;
  for (size_t first = 0; first < texts.size(); first += rows_per_group) {
    const size_t rows = std::min(rows_per_group, texts.size() - first), begin = file.size();
    std::string values;
    for (size_t i = first; i < first + rows; ++i) values += four_bytes(texts[i].size()) + texts[i];
    const ThriftWriter data =
        ThriftWriter().number(1, told(lies.page_values, rows)).number(2, 0).number(3, 3).number(4, 3);
    file += ThriftWriter()
                .number(1, 0)
                .number(2, told(lies.page_bytes, values.size()))
                .number(3, told(lies.packed_bytes, values.size()))
                .structure(5, data)
                .done() +
            values;
    const ThriftWriter column = ThriftWriter()
                                    .number(1, 6)
                                    .texts(3, {"text"})
                                    .number(4, lies.codec)
                                    .number(5, told(lies.group_rows, rows))
                                    .number(7, int64_t(file.size() - begin))
                                    .number(9, told(lies.chunk_offset, begin));
    groups.push_back(
        ThriftWriter().structures(1, {ThriftWriter().structure(3, column)}).number(3, told(lies.group_rows, rows)));
  }
  const int64_t rows = lies.group_rows >= 0 ? lies.group_rows * int64_t(groups.size()) : int64_t(texts.size());
  const std::string footer = ThriftWriter()
                                 .number(1, 1)
                                 .structures(2, {ThriftWriter().text(4, "schema").number(5, 1),
                                                 ThriftWriter().number(1, 6).number(3, 0).text(4, "text")})
                                 .number(3, rows)
                                 .structures(4, groups)
                                 .done();
  return file + footer + four_bytes(footer.size()) + "PAR1";
}

}  // namespace athanor::testing
