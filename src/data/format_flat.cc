// Formats with an optional small header followed by all tokens: llm.c, LLMQ, NumPy and headerless files.
#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "data/token_format.h"

namespace athanor {
namespace {

constexpr const char* kGiveType =
    "give their type, \"uint16\" or \"uint32\", as --dtype, in a configuration as the source's dtype";

// llm.c: 256 int32 (magic, version, tokens, zeros), then the tokens [llm.c dev/data/data_common.py].
TokenLayout read_llmc(const Probe& probe, int32_t version, TokenType type) {
  const int64_t size = probe.file.bytes(), item = item_size(type);
  if (size < kLlmcHeaderBytes)
    throw Error(cat(probe.path(), ": truncated: an llm.c header has ", kLlmcHeaderBytes, " bytes, the file ", size));
  if (probe.word(1) != version)
    throw Error(cat(probe.path(), ": this llm.c shard should have version ", version, ", it says ", probe.word(1)));
  probe.require_dtype(type);
  // The header's count is an int32 that overflows in some writers: use the file size and compare the low bits.
  const int64_t payload = size - kLlmcHeaderBytes, count = payload / item;
  if (payload % item != 0 || uint32_t(probe.word(2)) != uint32_t(count))
    throw Error(cat(probe.path(), ": the header promises ", probe.word(2), " tokens of ", item, " bytes, but ", payload,
                    " bytes follow it: the file is truncated or was appended to; write it again"));
  return {.format = cat("llm.c-v", version), .offset = kLlmcHeaderBytes, .type = type, .count = count};
}

TokenLayout headerless(const Probe& probe, TokenType type, std::string_view format) {
  const int64_t size = probe.file.bytes(), item = item_size(type);
  if (size % item != 0)
    throw Error(cat(probe.path(), ": its ", size, " bytes are no whole number of ", name_of(type), " tokens"));
  return {.format = cat(format, "-", name_of(type)), .type = type, .count = size / item};
}

// ---- NumPy's array files: magic, version, length of the header, the header as a Python dict, the values
// [numpy/lib/format.py]

class NumpyHeader {
 public:
  NumpyHeader(const std::string& path, std::string text) : path_(path), text_(std::move(text)) {}

  TokenType type() const {
    const std::string descr = quoted("'descr':");
    constexpr std::pair<std::string_view, TokenType> kTypes[] = {
        {"|u1", TokenType::u8},  {"|i1", TokenType::i8},  {"<u2", TokenType::u16}, {"<i2", TokenType::i16},
        {"<u4", TokenType::u32}, {"<i4", TokenType::i32}, {"<u8", TokenType::u64}, {"<i8", TokenType::i64}};
    for (const auto& [name, type] : kTypes)
      if (name == descr) return type;
    throw Error(cat(path_, ": a NumPy array of type ", descr, ", expected little-endian integers"), Exit::usage);
  }

  // Number of values; multi-dimensional arrays are read in row-major order.
  int64_t count() const {
    const size_t open = after("'shape':"), end = text_.find(')', open);
    if (text_[open] != '(' || end == std::string::npos) damaged();
    int64_t gemm = 1;
    int dimensions = 0;
    for (const char* at = text_.data() + open + 1; at < text_.data() + end;) {
      int64_t size = 0;
      const auto [stop, error] = std::from_chars(at, text_.data() + end, size);
      if (error != std::errc() || size < 0 || __builtin_mul_overflow(gemm, size, &gemm)) damaged();
      ++dimensions;
      at = stop;
      while (at < text_.data() + end && (*at == ',' || *at == ' ')) ++at;
    }
    if (dimensions > 1 && text_.compare(after("'fortran_order':"), 5, "False") != 0)
      throw Error(cat(path_, ": a NumPy array in Fortran order, expected C order"), Exit::usage);
    return gemm;
  }

 private:
  [[noreturn]] void damaged() const {
    throw Error(cat(path_, ": the NumPy header is damaged: ", text_.substr(0, 200)));
  }
  size_t after(std::string_view key) const {
    const size_t at = text_.find(key);
    const size_t value = at == std::string::npos ? at : text_.find_first_not_of(' ', at + key.size());
    if (value == std::string::npos) damaged();
    return value;
  }
  std::string quoted(std::string_view key) const {
    const size_t open = after(key), close = text_.find('\'', open + 1);
    if (text_[open] != '\'' || close == std::string::npos) damaged();
    return text_.substr(open + 1, close - open - 1);
  }

  const std::string& path_;
  std::string text_;
};

}  // namespace

TokenLayout read_llmc_v1(const Probe& probe) { return read_llmc(probe, 1, TokenType::u16); }
TokenLayout read_llmc_v7(const Probe& probe) { return read_llmc(probe, 7, TokenType::u32); }

// LLMQ: "BIN.TOK
// ", int32 version, bytes per token, tokens, and from version 2 on vocabulary and has_masks; int32 tokens from byte
// 1024; then one mask bit per token, lowest first [llmq src/training/dataloader.cpp, scripts/tokenize_data.py].
TokenLayout read_llmq(const Probe& probe) {
  const int64_t size = probe.file.bytes();
  if (size < kLlmcHeaderBytes)
    throw Error(cat(probe.path(), ": truncated: an LLMQ header has ", kLlmcHeaderBytes, " bytes, the file ", size));
  const int32_t version = probe.word(2), item = probe.word(3);
  const int64_t count = probe.word(4);
  if (version != 1 && version != 2)
    throw Error(cat(probe.path(), ": expected an LLMQ file of version 1 or 2, it says ", version));
  const int32_t masks = version == 2 ? probe.word(6) : 0;
  if (item != 4 || count < 0 || masks < 0 || masks > 1)
    throw Error(cat(probe.path(), ": damaged LLMQ header: ", item, " bytes per token (expected 4), ", count,
                    " tokens, has_masks ", masks));
  probe.require_dtype(TokenType::i32);
  const int64_t expected = kLlmcHeaderBytes + 4 * count + (masks ? (count + 7) / 8 : 0);
  if (size != expected)
    throw Error(cat(probe.path(), ": the header promises ", count, " tokens", masks ? " with a mask" : "", ", that is ",
                    expected, " bytes, but the file has ", size, ": it is truncated or was appended to"));
  TokenLayout layout{
      .format = cat("llmq-v", version), .offset = kLlmcHeaderBytes, .type = TokenType::i32, .count = count};
  if (masks) layout.mask = LossMask{.file = {}, .offset = kLlmcHeaderBytes + 4 * count, .is_bits = true};
  return layout;
}

TokenLayout read_numpy(const Probe& probe) {
  constexpr int64_t kMaxHeader = 1 << 20;
  const int64_t size = probe.file.bytes();
  const bool wide = probe.head.size() > 6 && probe.head[6] > 1;  // from version 2 on, the length field has four bytes
  const int64_t fixed = wide ? 12 : 10;
  if (size < fixed) throw Error(cat(probe.path(), ": truncated: a NumPy header has more than ", size, " bytes"));
  const int64_t length = wide ? int64_t{probe.file.value<uint32_t>(8)} : int64_t{probe.file.value<uint16_t>(8)};
  if (length > kMaxHeader || length > size - fixed)
    throw Error(cat(probe.path(), ": truncated or damaged: its NumPy header is said to have ", length,
                    " bytes, the file has ", size));
  std::string text(size_t(length), ' ');
  probe.file.read(fixed, std::as_writable_bytes(std::span(text)));
  const NumpyHeader header(probe.path(), std::move(text));
  const TokenType type = header.type();
  probe.require_dtype(type);
  const int64_t payload = size - fixed - length, count = header.count();
  if (payload % item_size(type) != 0 || payload / item_size(type) != count)
    throw Error(cat(probe.path(), ": the NumPy header promises ", count, " values of ", name_of(type), ", but ",
                    payload, " bytes follow it: the file is truncated or was appended to"));
  return {.format = cat("numpy-", name_of(type)), .offset = fixed + length, .type = type, .count = count};
}

TokenLayout read_raw(const Probe& probe) {
  if (!probe.dtype)
    throw Error(cat(probe.path(),
                    ": expected a token shard with a header (llm.c magic 20240520 or 20240801), found first word ",
                    uint32_t(probe.word(0)), ": if it has headerless tokens, ", kGiveType,
                    "; of a Megatron data set the .idx belongs next to the .bin"),
                Exit::usage);
  return headerless(probe, *probe.dtype, "raw");
}

// X.ds holds only tokens; the first line of X.ds.metadata is "TOKENIZER|BYTES"; X.ds.index has one uint64 per document:
// its end in tokens [datatrove pipeline/tokens/tokenizer.py].
TokenLayout read_nanotron(const Probe& probe) {
  constexpr int64_t kMaxMetadata = 1 << 16;
  const std::string metadata = probe.path() + ".metadata", index_path = probe.path() + ".index";
  TokenType type = probe.dtype.value_or(TokenType::u16);
  if (file_exists(metadata)) {
    const std::string text = read_file(metadata, kMaxMetadata), line = text.substr(0, text.find('\n'));
    const std::string bytes = line.substr(line.rfind('|') + 1);
    if (bytes != "2" && bytes != "4")
      throw Error(cat(metadata, ": expected a first line \"TOKENIZER|2\" or \"TOKENIZER|4\", found \"", line, "\""));
    type = bytes == "2" ? TokenType::u16 : TokenType::u32;
    probe.require_dtype(type);
  } else if (!probe.dtype) {
    throw Error(cat(probe.path(), ": there is no ", metadata, " to say how large its tokens are: ", kGiveType),
                Exit::usage);
  }
  TokenLayout layout = headerless(probe, type, "nanotron");
  if (!file_exists(index_path)) return layout;
  StableFile index = StableFile::open(index_path);
  const int64_t documents = index.bytes() / 8;
  if (index.bytes() % 8 != 0) throw Error(cat(index_path, ": its ", index.bytes(), " bytes are no whole uint64s"));
  ValueRun<int64_t> ends(index, 0, documents);
  for (int64_t i = 0, before = 0; i < documents; before = ends[i++])
    if (ends[i] < before || ends[i] > layout.count)
      throw Error(cat(index_path, ": document ", i, " ends at token ", uint64_t(ends[i]), ", expected ", before, " to ",
                      layout.count, ": it is damaged or belongs to another file"));
  if (documents == 0 || ends[documents - 1] != layout.count)
    throw Error(cat(index_path, ": its ", documents, " documents end at token ", documents ? ends[documents - 1] : 0,
                    ", the file has ", layout.count, ": it is truncated or belongs to another file"));
  layout.documents.emplace(std::move(index), DocumentIndex::Flat{.ends = 0, .count = documents});
  return layout;
}

}  // namespace athanor
