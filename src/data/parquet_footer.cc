#include "data/parquet_column.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "data/thrift_reader.h"

namespace athanor {
namespace {

using Type = ThriftReader::Type;

constexpr std::string_view kParquetMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr int64_t kTail = 8;                        // bytes: length of the metadata (4), magic (4)
constexpr int64_t kMaxFooter = int64_t{256} << 20;  // footers in published corpora have less than 10 MiB

[[noreturn]] void refuse_column(const std::string& what) { throw Error(what, Exit::usage); }
[[noreturn]] void damaged_footer(const std::string& what) { throw Error(cat("damaged metadata: ", what)); }

// Field numbers and enums below: [apache/parquet-format src/main/thrift/parquet.thrift].
constexpr const char* kPhysicalTypes[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                          "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
constexpr int64_t kByteArray = 6;
constexpr const char* kCodecs[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};

template <size_t N>
std::string name_in(const char* const (&names)[N], int64_t value) {
  return value >= 0 && value < int64_t(N) ? names[size_t(value)] : cat("number ", value);
}

struct SchemaElement {
  std::string_view name;
  std::optional<int64_t> converted_type;
  int64_t type = -1, repetition = 0, children = 0;
  int64_t logical_type = 0;  // field number in the union; 0: absent
};

SchemaElement schema_element(ThriftReader& in) {
  SchemaElement e;
  in.read_struct([&](int id, Type type) {
    if (id == 4) {
      e.name = in.binary(type);
      return true;
    }
    if (id == 6) {
      e.converted_type = in.integer(type);
      return true;
    }
    if (id == 10) {
      if (type != Type::structure) damaged_footer("a logical type is no struct");
      in.read_struct([&](int kind, Type) {
        e.logical_type = kind;
        return false;
      });
      return true;
    }
    return in.read_integer(id, type, {{1, &e.type}, {3, &e.repetition}, {5, &e.children}});
  });
  if (e.children < 0) damaged_footer("a group with a negative number of columns");
  return e;
}

struct ColumnChunk {
  std::vector<std::string_view> path;
  int64_t type = -1, codec = -1, values = -1, bytes = -1, data_offset = -1, dictionary_offset = 0;
  bool encrypted = false, elsewhere = false;
};

void column_metadata(ThriftReader& in, ColumnChunk& c) {
  in.read_struct([&](int id, Type type) {
    if (id == 3) {
      in.read_list(type, Type::binary, [&] { c.path.push_back(in.binary(Type::binary)); });
      return true;
    }
    return in.read_integer(
        id, type,
        {{1, &c.type}, {4, &c.codec}, {5, &c.values}, {7, &c.bytes}, {9, &c.data_offset}, {11, &c.dictionary_offset}});
  });
}

ColumnChunk column_chunk(ThriftReader& in) {
  ColumnChunk c;
  in.read_struct([&](int id, Type type) {
    if (id == 3 && type == Type::structure) {
      column_metadata(in, c);
      return true;
    }
    c.elsewhere = c.elsewhere || id == 1;
    c.encrypted = c.encrypted || id == 8;
    return false;
  });
  return c;
}

class FooterReader {
 public:
  FooterReader(std::string_view bytes, const std::string& column, int64_t data_end)
      : in_(bytes), column_(column), data_end_(data_end) {}

  ParquetLayout read() {
    in_.read_struct([&](int id, Type type) {
      if (id == 2) {
        in_.read_list(type, Type::structure, [&] { schema_.push_back(schema_element(in_)); });
        judge_schema();
        return true;
      }
      if (id == 4) {
        in_.read_list(type, Type::structure, [&] { layout_.chunks.push_back(row_group()); });
        return true;
      }
      return in_.read_integer(id, type, {{3, &layout_.rows}});
    });
    if (schema_.empty()) damaged_footer("no schema");
    int64_t rows = 0;
    for (const ParquetChunk& chunk : layout_.chunks)
      if (__builtin_add_overflow(rows, chunk.rows, &rows)) damaged_footer("row groups of more than 2^63 rows");
    if (rows != layout_.rows) damaged_footer(cat("row groups of ", rows, " rows in a file of ", layout_.rows));
    return std::move(layout_);
  }

 private:
  // The schema lists a tree in depth-first order; the column must be a direct leaf of the root.
  void judge_schema() {
    if (schema_.empty()) damaged_footer("an empty schema");
    std::vector<std::string> names;
    size_t at = 1;
    for (int64_t i = 0; i < schema_[0].children; ++i) {
      if (at >= schema_.size()) damaged_footer("the schema ends too early");
      if (schema_[at].name == column_) return judge_column(schema_[at]);
      names.push_back(cat('"', schema_[at].name.substr(0, 60), '"'));
      for (int64_t pending = 1; pending > 0; --pending, ++at) {
        if (at >= schema_.size()) damaged_footer("the schema ends too early");
        if (schema_[at].children > int64_t(schema_.size())) damaged_footer("a group has more columns than the schema");
        pending += schema_[at].children;
      }
    }
    constexpr size_t kShown = 20;
    std::string known;
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) known += (i ? ", " : "") + names[i];
    if (names.size() > kShown) known += ", ...";
    refuse_column(cat("no column \"", column_, "\"; --key names the column that holds the text; there are ", known));
  }

  void judge_column(const SchemaElement& e) {
    const auto not_texts = [&](const std::string& is) {
      refuse_column(cat("column \"", column_, "\": expected a column of texts (BYTE_ARRAY, STRING), this is ", is));
    };
    if (e.children > 0) not_texts("a group of nested columns");
    if (e.repetition == 2) not_texts("a list (REPEATED)");
    if (e.repetition < 0 || e.repetition > 2) damaged_footer(cat("repetition type ", e.repetition));
    if (e.type != kByteArray) not_texts(cat("of type ", name_in(kPhysicalTypes, e.type)));
    const auto is_one_of = [](int64_t value, std::initializer_list<int64_t> allowed) {
      return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
    };
    // STRING, ENUM and JSON; or no logical type: plain bytes, as older writers store texts.
    if (!is_one_of(e.logical_type, {0, 1, 4, 12})) not_texts(cat("of logical type ", e.logical_type));
    if (e.converted_type && !is_one_of(*e.converted_type, {0, 4, 19}))
      not_texts(cat("of converted type ", *e.converted_type));
    layout_.optional = e.repetition == 1;
  }

  ParquetChunk row_group() {
    if (schema_.empty()) damaged_footer("row groups come before the schema");
    std::optional<ColumnChunk> found;
    ParquetChunk chunk{.rows = -1};
    in_.read_struct([&](int id, Type type) {
      if (id == 1) {
        in_.read_list(type, Type::structure, [&] {
          ColumnChunk c = column_chunk(in_);
          if (c.encrypted && c.path.empty()) encrypted_ = true;
          if (c.path.size() == 1 && c.path[0] == column_) found = std::move(c);
        });
        return true;
      }
      return in_.read_integer(id, type, {{3, &chunk.rows}});
    });
    const std::string where = cat("row group ", layout_.chunks.size(), ", column \"", column_, "\"");
    if ((!found && encrypted_) || (found && found->encrypted))
      refuse_column(where + ": is encrypted, which cannot be read");
    if (!found) damaged_footer(where + " is missing");
    with_context(where, [&] { place(*found, chunk); });
    return chunk;
  }

  void place(const ColumnChunk& c, ParquetChunk& chunk) const {
    if (c.elsewhere) refuse_column("its pages are in another file, which cannot be read");
    if (c.type != kByteArray) damaged_footer("its type differs from the schema's");
    if (c.codec != 0 && c.codec != 1 && c.codec != 2 && c.codec != 6)
      refuse_column(
          cat("compression ", name_in(kCodecs, c.codec),
              " is not read, only UNCOMPRESSED, SNAPPY, GZIP and ZSTD: write the file again with one of these"));
    chunk.codec = ParquetCodec(c.codec);
    if (chunk.rows < 0 || c.values != chunk.rows) damaged_footer(cat(c.values, " values in ", chunk.rows, " rows"));
    const bool dictionary_first = c.dictionary_offset > 0 && c.dictionary_offset < c.data_offset;
    chunk.offset = dictionary_first ? c.dictionary_offset : c.data_offset;
    chunk.bytes = c.bytes;
    if (chunk.offset < int64_t(kParquetMagic.size()) || chunk.bytes < 0 || chunk.offset > data_end_ ||
        chunk.bytes > data_end_ - chunk.offset)
      damaged_footer(cat("its pages at bytes ", chunk.offset, " + ", chunk.bytes, " are not in the file's ", data_end_,
                         " bytes of data"));
  }

  ThriftReader in_;
  const std::string& column_;
  const int64_t data_end_;
  std::vector<SchemaElement> schema_;
  ParquetLayout layout_;
  bool encrypted_ = false;
};

}  // namespace

bool is_parquet(std::string_view start) { return start == kParquetMagic || start == kEncryptedMagic; }

ParquetLayout read_parquet_layout(const StableFile& file, const std::string& column) {
  return with_context(file.path(), [&] {
    std::string magic(kParquetMagic.size(), '\0');
    if (file.bytes() < int64_t(kParquetMagic.size()) + kTail)
      damaged_footer("the file is too short for a parquet file");
    file.read(file.bytes() - int64_t(magic.size()), std::as_writable_bytes(std::span(magic)));
    if (magic == kEncryptedMagic) refuse_column("an encrypted parquet file, which cannot be read");
    if (magic != kParquetMagic) damaged_footer("begins as a parquet file but does not end as one: is it complete?");
    const auto size = int64_t{file.value<uint32_t>(file.bytes() - kTail)};
    const int64_t data_end = file.bytes() - kTail - size;
    if (data_end < int64_t(kParquetMagic.size()) || size > kMaxFooter)
      damaged_footer(cat("metadata of ", size, " bytes, expected at most ",
                         std::min(kMaxFooter, file.bytes() - kTail - int64_t(kParquetMagic.size()))));
    std::string bytes(size_t(size), '\0');
    file.read(data_end, std::as_writable_bytes(std::span(bytes)));
    try {
      return FooterReader(bytes, column, data_end).read();
    } catch (const ThriftEnd&) {
      damaged_footer("it ends too early");
    }
  });
}

}  // namespace athanor
