// Columns of parquet files: the files of tests/data/make_parquet.py in every encoding and compression; what is refused
// by name; damaged and hostile files.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/file.h"
#include "base/rng.h"
#include "data/hybrid_decoder.h"
#include "data/parquet_column.h"
#include "data/unpack.h"
#include "data_testing.h"
#include "parquet_writer.h"

namespace athanor {
namespace {

using namespace testing;

const std::string kFixtures = "tests/data/fixtures/";

// The rows of make_parquet.py; null is empty.
std::vector<std::string> fixture_texts() {
  const std::string cycle[] = {"one", "", "", "two\nlines", "träumt 世界", "it's", std::string(70, 'a')};
  std::vector<std::string> texts;
  for (size_t i = 0; i < 40; ++i) texts.push_back(i % 3 ? cycle[i * i % 7] : cat("row ", i));
  return texts;
}

std::vector<std::string> texts_of(ParquetColumn& column, size_t most = 10'000) {
  std::vector<std::string> texts;
  while (texts.size() < most) {
    const auto text = column.next();
    if (!text) break;
    texts.emplace_back(*text);
  }
  return texts;
}

std::vector<std::string> texts_of(const std::string& path, const std::string& name = "text") {
  ParquetColumn column(path, name);
  return texts_of(column);
}

std::vector<std::string> readable_fixtures() {
  return {"plain",   "plain_optional", "snappy_dictionary", "zstd_dictionary_v2",
          "gzip_v2", "snappy_pages",   "zstd_required_v2"};
}

// Whether this build has the library of a fixture's compression.
bool is_built_in(const std::string& path) {
  try {
    texts_of(path);
  } catch (const Error& e) {
    return std::string(e.what()).find("built without") == std::string::npos;
  }
  return true;
}

TEST(ParquetColumn, ReadsEveryEncodingAndCompression) {
  for (const std::string& name : readable_fixtures()) {
    const std::string path = kFixtures + name + ".parquet";
    if (!is_built_in(path)) continue;
    EXPECT_EQ(texts_of(path), fixture_texts()) << name;
  }
  EXPECT_EQ(texts_of(kFixtures + "column_body.parquet", "body"), fixture_texts());
}

TEST(ParquetColumn, RefusesByNameWhatItCannotRead) {
  const auto message = [](const std::string& name, const std::string& column = "text") {
    return error_of([&] { texts_of(kFixtures + name + ".parquet", column); });
  };
  expect_parts(message("refused_lz4"), {"refused_lz4.parquet", "column \"text\"", "LZ4_RAW", "ZSTD"});
  expect_parts(message("refused_brotli"), {"BROTLI"});
  expect_parts(message("refused_delta"), {"column \"text\"", "DELTA_BYTE_ARRAY", "only PLAIN and dictionaries"});
  expect_parts(message("refused_list"), {"column \"text\"", "nested columns"});
  expect_parts(message("refused_int"), {"column \"text\"", "INT64"});
  expect_parts(message("plain", "meta"), {"column \"meta\"", "nested columns"});
  expect_parts(message("refused_encrypted"), {"encrypted parquet file"});
  expect_parts(message("refused_encrypted_column"), {"row group 0", "column \"text\"", "encrypted"});
  expect_parts(message("column_body"), {"no column \"text\"", "--key", "\"id\", \"body\", \"meta\""});
}

TEST(ParquetColumn, SkipContinuesAtAnyRow) {
  const std::vector<std::string> all = fixture_texts();
  for (const std::string& name : readable_fixtures()) {
    const std::string path = kFixtures + name + ".parquet";
    if (!is_built_in(path)) continue;
    for (size_t first = 0; first <= all.size(); ++first) {
      ParquetColumn column(path, "text");
      column.skip(int64_t(first));
      EXPECT_EQ(texts_of(column), std::vector(all.begin() + std::ptrdiff_t(first), all.end())) << name << " " << first;
    }
    ParquetColumn column(path, "text");
    EXPECT_ERROR(column.skip(41), path, "became shorter", "row 41");
  }
}

TEST(ParquetColumn, ReadsManyRowGroups) {
  TempDir dir;
  std::vector<std::string> texts;
  for (size_t i = 0; i < 1000; ++i) texts.push_back(std::string(i % 50, char('a' + i % 26)));
  write_bytes(dir / "x.parquet", parquet_of(texts, 7));
  EXPECT_EQ(texts_of(dir / "x.parquet"), texts);
  write_bytes(dir / "x.parquet", parquet_of({}));
  EXPECT_TRUE(texts_of(dir / "x.parquet").empty());
}

// Wrong numbers are named before memory is allocated for them.
TEST(ParquetColumn, RefusesNumbersThatTheFileCannotHold) {
  TempDir dir;
  const std::string path = dir / "x.parquet";
  const auto message = [&](const ParquetLies& lies) {
    write_bytes(path, parquet_of({"one", "two"}, 1000, lies));
    return error_of([&] { texts_of(path); });
  };
  expect_parts(message({.page_bytes = 1 << 30}), {path, "row group 0", "1073741824 bytes", "14 compressed"});
  expect_parts(message({.page_bytes = 1 << 30, .codec = 1}), {"1073741824 bytes", "14 compressed"});
  expect_parts(message({.page_bytes = 1 << 30, .codec = 2}), {"1073741824 bytes", "14 compressed"});
  expect_parts(message({.page_bytes = 1 << 30, .codec = 6}), {"1073741824 bytes", "14 compressed"});
  expect_parts(message({.packed_bytes = int64_t{1} << 40}), {"1099511627776 bytes where the column has 14 left"});
  expect_parts(message({.page_values = 3}), {"3 rows where the row group has 2 left"});
  expect_parts(message({.page_values = 1}), {"the column ends before 1 of its rows"});
  expect_parts(message({.page_values = 3, .group_rows = 3}), {"fewer texts than its header says"});
  expect_parts(message({.chunk_offset = 1 << 30}), {"column \"text\"", "bytes 1073741824 + ", "not in the file's"});
  expect_parts(message({.chunk_offset = 0}), {"bytes 0 + ", "not in the file's"});
  expect_parts(message({.codec = 99}), {"compression number 99"});
}

// The file is only in memory: thousands of writes to a disk would be slow.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("parquet", MFD_CLOEXEC)) {}
  std::string path() const { return cat("/proc/self/fd/", fd_.get()); }
  void set(const std::string& bytes) const {
    ASSERT_EQ(::ftruncate(fd_.get(), off_t(bytes.size())), 0);
    ASSERT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
  }

 private:
  Fd fd_;
};

// Any byte changed, or the file cut anywhere: texts or an Error, never more rows than the file says.
TEST(ParquetColumn, SurvivesDamage) {
  const MemoryFile file;
  int errors = 0;
  for (const std::string& name : readable_fixtures()) {
    const std::string good = read_bytes(kFixtures + name + ".parquet");
    const auto try_bytes = [&](const std::string& bytes) {
      file.set(bytes);
      try {
        ParquetColumn column(file.path(), "text");
        EXPECT_LE(texts_of(column).size(), 10'000u);
      } catch (const Error&) {
        ++errors;
      }
    };
    for (size_t i = 0; i < good.size(); i += 5) {
      std::string bad = good;
      bad[i] = char(bad[i] ^ (1 << random_bits(1, 2, i) % 8));
      try_bytes(bad);
      bad[i] = char(random_bits(2, 2, i));
      try_bytes(bad);
    }
    for (size_t size = 4; size < good.size(); size += 37)
      try_bytes(good.substr(0, size) + good.substr(good.size() - 8));
  }
  EXPECT_GT(errors, 300);
}

TEST(Snappy, UnpacksLiteralsAndCopies) {
  const auto unpacked = [](const std::string& packed, size_t size) {
    std::string out(size, '?');
    unpack_snappy(packed, out, "x");
    return out;
  };
  // Length 9; literal "abc"; a copy of 6 from 3 back with an offset of two bytes, which overlaps itself.
  EXPECT_EQ(unpacked(std::string("\x09\x08"
                                 "abc"
                                 "\x16\x03\x00",
                                 8),
                     9),
            "abcabcabc");
  // A copy of 4 bytes from 3 back, with an 11-bit offset, and one with a 4-byte offset.
  EXPECT_EQ(unpacked(std::string("\x07\x08"
                                 "abc"
                                 "\x01\x03",
                                 7),
                     7),
            "abcabca");
  EXPECT_EQ(unpacked(std::string("\x05\x08"
                                 "abc"
                                 "\x07\x02\x00\x00\x00",
                                 10),
                     5),
            "abcbc");
  EXPECT_EQ(unpacked(std::string("\x00", 1), 0), "");
  // A literal whose length follows in a byte.
  const std::string text(100, 'z');
  EXPECT_EQ(unpacked("\x64\xf0\x63" + text, 100), text);
  for (const auto& [packed, says] : {std::pair{std::string("\x09\x08"
                                                           "abc",
                                                           5),
                                               "ends too early"},
                                     {std::string("\x09\x08"
                                                  "ab",
                                                  4),
                                      "literal"},
                                     {std::string("\x09\x08"
                                                  "abc"
                                                  "\x16\x04\x00",
                                                  8),
                                      "copy"},
                                     {std::string("\x09\x08"
                                                  "abc"
                                                  "\x16\x00\x00",
                                                  8),
                                      "copy"},
                                     {std::string("\x09\x08"
                                                  "abc"
                                                  "\x3e\x03\x00",
                                                  8),
                                      "copy"},
                                     {std::string("\x0a\x08"
                                                  "abc",
                                                  5),
                                      "another size"},
                                     {std::string("\xff\xff\xff\xff\xff\x01", 6), "32 bits"},
                                     {std::string(), "ends too early"}})
    EXPECT_ERROR(unpacked(packed, 9), "x: damaged snappy data", says);
}

TEST(HybridDecoder, ReadsRunsAndPackedValues) {
  // Eight 3-bit packed values, 0 to 7 [Encodings.md], then a run of four fives.
  HybridDecoder decoder(std::string_view("\x03\x88\xc6\xfa\x08\x05", 6), 3);
  std::vector<uint32_t> values;
  for (int i = 0; i < 12; ++i) values.push_back(decoder.next());
  EXPECT_EQ(values, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 5, 5, 5, 5}));
  EXPECT_THROW(decoder.next(), Error);
  HybridDecoder wide(std::string_view("\x02\x01\x02\x03\x04\x03"
                                      "12345678901234567890123456789012",
                                      38),
                     32);
  EXPECT_EQ(wide.next(), 0x04030201u);
  EXPECT_EQ(wide.next(), 0x34333231u);
  HybridDecoder nothing(std::string_view("\x10", 1), 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(nothing.next(), 0u);
  EXPECT_THROW(HybridDecoder("x", 33), Error);
  HybridDecoder too_large("\x02\x08", 3);
  EXPECT_THROW(too_large.next(), Error);
}

}  // namespace
}  // namespace athanor
