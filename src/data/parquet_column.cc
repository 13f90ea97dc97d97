#include "data/parquet_column.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "data/thrift_reader.h"
#include "data/unpack.h"

namespace athanor {
namespace {

using Type = ThriftReader::Type;

constexpr int64_t kMaxPage = int64_t{1} << 30;     // maximum bytes of an unpacked page; writers aim at 1 MiB
constexpr int64_t kFirstHeader = 4096;             // bytes first read for a page header
constexpr int64_t kMaxHeader = int64_t{16} << 20;  // a header contains the smallest and the largest text of the page
enum PageType : uint8_t { kData = 0, kDictionary = 2, kDataV2 = 3 };
enum Encoding : uint8_t { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8 };

constexpr const char* kEncodings[] = {
    "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
    "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};

[[noreturn]] void damaged_page(const std::string& what) { throw Error(cat("damaged page: ", what)); }

[[noreturn]] void refuse_encoding(const char* of, int64_t encoding) {
  const bool known = encoding >= 0 && encoding < int64_t(std::size(kEncodings));
  throw Error(cat(of, " encoded as ", known ? kEncodings[encoding] : cat("number ", encoding).c_str(),
                  ", only PLAIN and dictionaries are read: write the file again without this encoding"),
              Exit::usage);
}

// Upper bound of the unpacked size of `packed` compressed bytes.
int64_t most_unpacked(ParquetCodec codec, int64_t packed) {
  switch (codec) {
    case ParquetCodec::uncompressed:
      return packed;
    case ParquetCodec::snappy:
      return packed * 22;  // a copy of 64 bytes takes 3 bytes
    case ParquetCodec::gzip:
      return packed * 1032;  // [zlib.net/zlib_tech.html: maximum ratio of deflate]
    case ParquetCodec::zstd:
      return (packed / 4 + 1) * (128 << 10);  // a block of one repeated byte [RFC 8878, 3.1.1.2]
  }
  return 0;
}

// Removes one plain-encoded text from `values`: a length of 4 bytes, then the text.
std::string_view take_plain(std::string_view& values) {
  uint32_t length = 0;
  if (values.size() < sizeof length) damaged_page("it has fewer texts than its header says");
  std::memcpy(&length, values.data(), sizeof length);
  values.remove_prefix(sizeof length);
  if (length > values.size()) damaged_page(cat("a text of ", length, " bytes where ", values.size(), " are left"));
  const std::string_view text = values.substr(0, length);
  values.remove_prefix(length);
  return text;
}

}  // namespace

struct ParquetColumn::PageHeader {
  int64_t type = -1, unpacked_bytes = -1, packed_bytes = -1;
  int64_t values = -1, encoding = -1;
  int64_t level_encoding = kRle;                  // version 1
  int64_t level_bytes = 0, repetition_bytes = 0;  // version 2
  bool compressed = true;                         // version 2

  void read(ThriftReader& in) {
    in.read_struct([&](int id, Type field) {
      if (id == 5 || id == 7 || id == 8) {
        if (field != Type::structure) damaged_page("a header's part is no struct");
        in.read_struct([&](int part, Type kind) { return read_part(in, id, part, kind); });
        return true;
      }
      return in.read_integer(id, field, {{1, &type}, {2, &unpacked_bytes}, {3, &packed_bytes}});
    });
  }

 private:
  // Reads a field of DataPageHeader (5), DictionaryPageHeader (7) or DataPageHeaderV2 (8).
  bool read_part(ThriftReader& in, int which, int id, Type field) {
    if (which == 8 && id == 7) {
      compressed = ThriftReader::boolean(field);
      return true;
    }
    if (which == 8)
      return in.read_integer(id, field, {{1, &values}, {4, &encoding}, {5, &level_bytes}, {6, &repetition_bytes}});
    return in.read_integer(id, field, {{1, &values}, {2, &encoding}}) ||
           (which == 5 && in.read_integer(id, field, {{3, &level_encoding}}));
  }
};

ParquetColumn::ParquetColumn(const std::string& path, std::string column)
    : column_(std::move(column)), file_(StableFile::open(path)), layout_(read_parquet_layout(file_, column_)) {}

void ParquetColumn::begin_group() {
  group_left_ = chunk().rows;
  page_left_ = 0;
  offset_ = chunk().offset;
  has_dictionary_ = false;
}

std::optional<std::string_view> ParquetColumn::next() {
  for (; group_ < layout_.chunks.size(); ++group_, group_left_ = -1) {
    if (group_left_ < 0) begin_group();
    if (page_left_ == 0 && group_left_ == 0) continue;
    try {
      return next_text();
    } catch (const Error& e) {  // not with_context(), which would build its text for every row
      throw Error(cat(file_.path(), ": row group ", group_, ", column \"", column_, "\": ", e.what()), e.code());
    }
  }
  return {};
}

void ParquetColumn::skip(int64_t rows) {
  const int64_t wanted = rows;
  for (; rows > 0 && group_ < layout_.chunks.size(); ++group_, group_left_ = -1) {
    if (group_left_ < 0) begin_group();
    if (page_left_ + group_left_ > rows) break;
    rows -= page_left_ + group_left_;
    page_left_ = 0;
  }
  for (; rows > 0 && next(); --rows) {
  }
  if (rows > 0) throw Error(cat(file_.path(), ": became shorter while it is read: cannot continue at row ", wanted));
}

std::string_view ParquetColumn::next_text() {
  while (page_left_ == 0) read_page();
  --page_left_;
  if (layout_.optional && levels_.next() == 0) return {};
  return next_value();
}

std::string_view ParquetColumn::next_value() {
  if (!by_index_) return take_plain(values_);
  const uint32_t index = indices_.next();
  if (index >= dictionary_.size())
    damaged_page(cat("index ", index, " into a dictionary of ", dictionary_.size(), " texts"));
  return dictionary_[index];
}

// Reads pages up to the next data page of the group.
void ParquetColumn::read_page() {
  const PageHeader header = read_header();
  const int64_t end = chunk().offset + chunk().bytes;
  if (header.packed_bytes < 0 || header.packed_bytes > end - offset_)
    damaged_page(cat(header.packed_bytes, " bytes where the column has ", end - offset_, " left"));
  const int64_t most = most_unpacked(chunk().codec, header.packed_bytes);
  if (header.unpacked_bytes < 0 || header.unpacked_bytes > std::max(most, header.packed_bytes))
    damaged_page(cat(header.unpacked_bytes, " bytes, more than ", header.packed_bytes, " compressed ones can hold"));
  if (header.unpacked_bytes > kMaxPage)
    throw Error(cat("a page of ", header.unpacked_bytes, " bytes, expected at most ", kMaxPage,
                    ": write the file again with smaller pages"),
                Exit::usage);
  const bool wanted = header.type == kData || header.type == kDataV2 || header.type == kDictionary;
  packed_.resize(wanted ? size_t(header.packed_bytes) : 0);
  file_.read(offset_, std::as_writable_bytes(std::span(packed_)));
  offset_ += header.packed_bytes;
  if (header.type == kDictionary) return read_dictionary(header, packed_);
  if (wanted) read_data(header, packed_);
}

ParquetColumn::PageHeader ParquetColumn::read_header() {
  const int64_t left = chunk().offset + chunk().bytes - offset_;
  for (int64_t wanted = kFirstHeader;; wanted *= 4) {
    packed_.resize(size_t(std::min(wanted, left)));
    file_.read(offset_, std::as_writable_bytes(std::span(packed_)));
    try {
      ThriftReader in(packed_);
      PageHeader header;
      header.read(in);
      offset_ += int64_t(in.used());
      return header;
    } catch (const ThriftEnd&) {
      if (wanted >= left) damaged_page(cat("the column ends before ", group_left_, " of its rows"));
      if (wanted >= kMaxHeader) damaged_page(cat("its header has more than ", kMaxHeader, " bytes"));
    }
  }
}

void ParquetColumn::unpack(std::string_view packed, size_t bytes, std::string& out) const {
  out.resize(bytes);
  if (bytes == 0) return;
  switch (chunk().codec) {
    case ParquetCodec::uncompressed:
      if (packed.size() != bytes) damaged_page(cat(packed.size(), " bytes, expected ", bytes));
      out.assign(packed);
      break;
    case ParquetCodec::snappy:
      return unpack_snappy(packed, out, "a page");
    case ParquetCodec::gzip:
      return unpack_gzip(packed, out, "a page");
    case ParquetCodec::zstd:
      return unpack_zstd(packed, out, "a page");
  }
}

void ParquetColumn::read_dictionary(const PageHeader& header, std::string_view packed) {
  if (has_dictionary_) damaged_page("a second dictionary");
  if (header.encoding != kPlain && header.encoding != kPlainDictionary)
    refuse_encoding("a dictionary", header.encoding);
  unpack(packed, size_t(header.unpacked_bytes), dictionary_page_);
  dictionary_.clear();
  if (header.values < 0 || header.values > int64_t(dictionary_page_.size() / sizeof(uint32_t)))
    damaged_page(cat("a dictionary of ", header.values, " texts in ", dictionary_page_.size(), " bytes"));
  std::string_view rest = dictionary_page_;
  for (int64_t i = 0; i < header.values; ++i) dictionary_.push_back(take_plain(rest));
  has_dictionary_ = true;
}

void ParquetColumn::read_data(const PageHeader& header, std::string_view packed) {
  if (header.values < 0 || header.values > group_left_)
    damaged_page(cat(header.values, " rows where the row group has ", group_left_, " left"));
  std::string_view values, levels;
  if (header.type == kDataV2) {
    if (header.repetition_bytes != 0) damaged_page("a flat column has repetition levels");
    if (header.level_bytes < 0 || header.level_bytes > int64_t(packed.size()) ||
        header.level_bytes > header.unpacked_bytes)
      damaged_page(cat(header.level_bytes, " bytes of levels in a page of ", packed.size()));
    levels = packed.substr(0, size_t(header.level_bytes));
    packed.remove_prefix(levels.size());
    const auto bytes = size_t(header.unpacked_bytes) - levels.size();
    if (header.compressed) {
      unpack(packed, bytes, page_);
      values = page_;
    } else {
      if (packed.size() != bytes) damaged_page(cat(packed.size(), " bytes of values, expected ", bytes));
      values = packed;
    }
  } else {
    unpack(packed, size_t(header.unpacked_bytes), page_);
    values = page_;
    if (layout_.optional) {
      if (header.level_encoding != kRle) refuse_encoding("levels", header.level_encoding);
      levels = take_plain(values);
    }
  }
  if (layout_.optional) levels_ = HybridDecoder(levels, 1);
  begin_values(header.encoding, values);
  page_left_ = header.values;
  group_left_ -= header.values;
}

void ParquetColumn::begin_values(int64_t encoding, std::string_view values) {
  by_index_ = encoding == kPlainDictionary || encoding == kRleDictionary;
  if (!by_index_ && encoding != kPlain) refuse_encoding("texts", encoding);
  values_ = values;
  if (!by_index_) return;
  if (!has_dictionary_) damaged_page("its texts are in a dictionary, which is missing");
  if (values.empty()) {  // the page has only nulls
    indices_ = HybridDecoder();
    return;
  }
  indices_ = HybridDecoder(values.substr(1), uint8_t(values[0]));
}

}  // namespace athanor
