#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read without swapping");

// What a format's reader may look at: the file's name, size and first bytes, and what the user said about it.
struct Probe {
  const std::string& path;
  int64_t size;
  std::string_view head;
  std::string_view dtype;
};

int32_t word(const Probe& probe, size_t index) {
  int32_t value = 0;
  if (probe.head.size() >= 4 * (index + 1)) std::memcpy(&value, probe.head.data() + 4 * index, 4);
  return value;
}

int64_t size_of_dtype(std::string_view dtype) { return dtype == "uint16" ? 2 : 4; }

// ---- llm.c: 256 int32 (magic, version, tokens, zeros), then the tokens [llm.c dev/data/data_common.py]
constexpr int64_t kLlmcHeader = 1024;

template <int32_t kVersion, int64_t kItem>
TokenLayout read_llmc(const Probe& probe) {
  if (probe.size < kLlmcHeader)
    throw Error(cat(probe.path, ": truncated: an llm.c header has ", kLlmcHeader, " bytes, the file ", probe.size));
  if (word(probe, 1) != kVersion)
    throw Error(cat(probe.path, ": this llm.c shard should have version ", kVersion, ", it says ", word(probe, 1)));
  if (probe.dtype != "auto" && size_of_dtype(probe.dtype) != kItem)
    throw Error(cat(probe.path, ": dtype is given as ", probe.dtype, ", but the header says uint", kItem * 8,
                    ": leave dtype at \"auto\""),
                Exit::usage);
  // The header's count is an int32 and some writers let it wrap: the file's size is the truth and the count must agree
  // with it in the bits that it has.
  const int64_t payload = probe.size - kLlmcHeader, count = payload / kItem;
  if (payload % kItem != 0 || uint32_t(word(probe, 2)) != uint32_t(count))
    throw Error(cat(probe.path, ": the header promises ", word(probe, 2), " tokens of ", kItem, " bytes, but ", payload,
                    " bytes follow it: the file is truncated or was appended to; write it again"));
  return {cat("llm.c-v", kVersion), kLlmcHeader, kItem, count};
}

// ---- Headerless (nanoGPT, OLMo): the user must say the type
TokenLayout read_raw(const Probe& probe) {
  if (probe.dtype == "auto")
    throw Error(
        cat(probe.path, ": expected a token shard with a header (llm.c magic 20240520 or 20240801), found first word ",
            uint32_t(word(probe, 0)), ": for headerless tokens set the source's dtype to \"uint16\" or \"uint32\""),
        Exit::usage);
  const int64_t item = size_of_dtype(probe.dtype);
  if (probe.size % item != 0)
    throw Error(cat(probe.path, ": its ", probe.size, " bytes are no whole number of ", probe.dtype, " tokens"));
  return {cat("raw-", probe.dtype), 0, item, probe.size / item};
}

struct Format {
  std::string_view magic;  // first bytes of the file
  TokenLayout (*read)(const Probe&);
};

// The formats that can be read. A new one is a function above and a row here; headerless files match the last row.
constexpr Format kFormats[] = {
    {std::string_view("\x88\xD8\x34\x01", 4), read_llmc<1, 2>},  // 20240520: GPT-2, FineWeb, modded-nanogpt
    {std::string_view("\xA1\xD9\x34\x01", 4), read_llmc<7, 4>},  // 20240801: Llama 3
    {std::string_view(), read_raw},
};

// Files that people give by mistake: better named than read as tokens.
struct Stranger {
  std::string_view magic;
  const char* what;
};
constexpr Stranger kStrangers[] = {
    {std::string_view("\x8A\xD8\x34\x01", 4), "an llm.c evaluation set"},
    {std::string_view("\xC6\xD7\x34\x01", 4), "an llm.c model"},
    {std::string_view("\xC8\xD7\x34\x01", 4), "an llm.c tokenizer"},
    {std::string_view("\xC7\xD7\x34\x01", 4), "an llm.c optimizer state"},
    {std::string_view("MMIDIDX\0", 8), "the index of a Megatron data set"},
    {std::string_view("BIN.TOK\n", 8), "an LLMQ token file"},
    {std::string_view("LITPKDS", 7), "a lit-gpt packed data set"},
    {std::string_view("\x93NUMPY", 6), "a NumPy array file"},
};

TokenLayout find_layout(const Probe& probe) {
  if (probe.size == 0) throw Error(cat(probe.path, ": the file is empty, expected tokens"));
  for (const Stranger& s : kStrangers)
    if (probe.head.starts_with(s.magic))
      throw Error(cat(probe.path, ": this is ", s.what, ", which athanor does not read: convert it (data/README.md)"),
                  Exit::usage);
  for (const Format& f : kFormats)
    if (probe.head.starts_with(f.magic)) return f.read(probe);
  throw Error(cat(probe.path, ": unknown format"));
}

}  // namespace

void require_token_dtype(std::string_view dtype) {
  if (dtype != "auto" && dtype != "uint16" && dtype != "uint32")
    throw Error(cat("dtype: expected \"auto\", \"uint16\" or \"uint32\", got \"", dtype, "\""), Exit::usage);
}

TokenFile TokenFile::open(const std::string& path, std::string_view dtype, int64_t vocab_size) {
  require_token_dtype(dtype);
  TokenFile file;
  file.path_ = path;
  file.vocab_size_ = vocab_size;
  file.file_ = open_regular(path);
  file.bytes_ = file_bytes(file.file_, path);
  std::array<char, 16> head{};
  const size_t head_size = size_t(std::min<int64_t>(file.bytes_, head.size()));
  pread_all(file.file_, std::as_writable_bytes(std::span(head)).first(head_size), 0, path);
  file.layout_ = find_layout({path, file.bytes_, std::string_view(head.data(), head_size), dtype});
  return file;
}

// Catches growth and truncation. Not caught: a file rewritten in place at the same size (the fingerprint of a resumed
// run sees that at the file's ends).
void TokenFile::require_unchanged() const {
  const int64_t now = file_bytes(file_, path_);
  if (now != bytes_)
    throw Error(cat(path_, ": had ", bytes_, " bytes at open and has ", now,
                    " now: shards must not change during a run; write new ones under new names"));
}

void TokenFile::require_vocabulary(int64_t at, std::span<const int32_t> tokens) const {
  const int64_t limit = vocab_size_ > 0 ? vocab_size_ : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  uint32_t largest = 0;
  for (int32_t t : tokens) largest = std::max(largest, uint32_t(t));
  if (int64_t{largest} < limit) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](int32_t t) { return int64_t{uint32_t(t)} >= limit; });
  throw Error(cat(path_, ": token ", at + (bad - tokens.begin()), " is ", uint32_t(*bad), ", expected less than the ",
                  "vocabulary's size ", limit, ": wrong tokenizer, wrong dtype, or a damaged file"));
}

void TokenFile::read_unchecked(int64_t at, std::span<int32_t> out) const {
  const int64_t size = int64_t(out.size());
  if (at < 0 || at > count() || size > count() - at)
    throw Error(cat(path_, ": tokens ", at, " to ", at, " + ", size, " are asked for, it has ", count()));
  require_unchanged();
  if (layout_.item_size == 4) {
    pread_all(file_, std::as_writable_bytes(out), layout_.offset + at * 4, path_);
    return;
  }
  std::array<uint16_t, 16384> chunk;
  for (int64_t done = 0; done < size;) {
    const int64_t n = std::min<int64_t>(size - done, chunk.size());
    pread_all(file_, std::as_writable_bytes(std::span(chunk)).first(size_t(n) * 2), layout_.offset + (at + done) * 2,
              path_);
    std::copy_n(chunk.begin(), n, out.begin() + done);
    done += n;
  }
}

void TokenFile::read(int64_t at, std::span<int32_t> out) const {
  read_unchecked(at, out);
  require_vocabulary(at, out);
}

void TokenFile::read_bytes(int64_t offset, std::span<std::byte> out) const {
  CHECK(offset >= 0 && int64_t(out.size()) <= bytes_ - offset, "bytes ", offset, " + ", out.size(), " of ", bytes_);
  require_unchanged();
  pread_all(file_, out, offset, path_);
}

}  // namespace athanor
