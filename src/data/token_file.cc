#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/error.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read without swapping");

// How to recognize a format: all non-empty fields must match.
struct Format {
  std::string_view magic;    // first bytes of the file
  std::string_view suffix;   // suffix of the file name
  std::string_view sibling;  // extension of a required file with the same base name
  TokenLayout (*read)(const Probe&);
};

// Readable formats; the first match is used, and headerless files match the last row. For a new format, add a function
// next to those of token_format.h and a row here.
constexpr Format kFormats[] = {
    {"", ".bin", ".idx", read_megatron},
    {"", ".ds", "", read_nanotron},
    {std::string_view("\x88\xD8\x34\x01", 4), "", "", read_llmc_v1},  // 20240520: GPT-2, FineWeb, modded-nanogpt
    {std::string_view("\xA1\xD9\x34\x01", 4), "", "", read_llmc_v7},  // 20240801: Llama 3
    {"BIN.TOK\n", "", "", read_llmq},
    {"\x93NUMPY", "", "", read_numpy},
    {"ATHIMAGE", "", "", read_images},
    {"", "", "", read_raw},
};

// Files of other kinds that users pass by mistake: an error instead of reading them as tokens.
struct Stranger {
  std::string_view magic;
  const char* what;
};
constexpr Stranger kStrangers[] = {
    {std::string_view("\x8A\xD8\x34\x01", 4), "an llm.c evaluation set"},
    {std::string_view("\xC6\xD7\x34\x01", 4), "an llm.c model"},
    {std::string_view("\xC8\xD7\x34\x01", 4), "an llm.c tokenizer"},
    {std::string_view("\xC7\xD7\x34\x01", 4), "an llm.c optimizer state"},
    {"LITPKDS", "a lit-gpt packed data set"},
};

bool fits(const Format& format, const Probe& probe) {
  return probe.head.starts_with(format.magic) && probe.path().ends_with(format.suffix) &&
         (format.sibling.empty() || file_exists(with_extension(probe.path(), format.sibling)));
}

TokenLayout find_layout(const Probe& probe) {
  if (probe.head.starts_with("MMIDIDX"))
    throw Error(
        cat(probe.path(), ": expected tokens, found the index of a Megatron data set: give the .bin file next to it"),
        Exit::usage);
  for (const Stranger& s : kStrangers)
    if (probe.head.starts_with(s.magic))
      throw Error(cat(probe.path(), ": this is ", s.what, ", which athanor does not read: convert it (data/README.md)"),
                  Exit::usage);
  return std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return fits(f, probe); })
      ->read(probe);
}

// Loss mask in PATH.loss: one byte per token, non-zero if it is predicted [datatrove pipeline/tokens/tokenizer.py].
std::optional<LossMask> find_mask(const std::string& path, int64_t count) {
  const std::string mask = path + ".loss";
  if (!file_exists(mask)) return {};
  StableFile file = StableFile::open(mask);
  if (file.bytes() != count)
    throw Error(cat(mask, ": a loss mask has one byte for each of the ", count, " tokens of ", path, ", this file has ",
                    file.bytes()));
  return LossMask{.file = std::move(file)};
}

// Calls fn.operator()<T>() with the C++ type of the values.
template <class Fn>
decltype(auto) by_type(TokenType type, Fn&& fn) {
  switch (type) {
    case TokenType::u8:
      return fn.template operator()<uint8_t>();
    case TokenType::i8:
      return fn.template operator()<int8_t>();
    case TokenType::u16:
      return fn.template operator()<uint16_t>();
    case TokenType::i16:
      return fn.template operator()<int16_t>();
    case TokenType::u32:
      return fn.template operator()<uint32_t>();
    case TokenType::i32:
      return fn.template operator()<int32_t>();
    case TokenType::u64:
      return fn.template operator()<uint64_t>();
    case TokenType::i64:
      return fn.template operator()<int64_t>();
    case TokenType::f32:
      return fn.template operator()<float>();
    case TokenType::f64:
      break;
  }
  return fn.template operator()<double>();
}

// Converts a stored value to a token id, or to -1 if invalid.
template <class T>
int32_t to_id(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value >= 0 && value < T(0x1p31) && std::trunc(value) == value ? int32_t(value) : -1;
  else if constexpr (sizeof(T) < 4 || std::is_same_v<T, uint32_t>)
    return int32_t(value);  // uint32 above 2^31-1 becomes negative
  else
    return value >= 0 && uint64_t(value) <= uint64_t(std::numeric_limits<int32_t>::max()) ? int32_t(value) : -1;
}

}  // namespace

TokenFile TokenFile::open(const std::string& path, std::string_view dtype, int64_t vocab_size) {
  TokenFile file = open_any(path, token_type(dtype), vocab_size);
  if (file.layout_.images)
    throw Error(cat(path, ": expected tokens, found images, which only models of model_type vit read"), Exit::usage);
  return file;
}

TokenFile TokenFile::open_images(const std::string& path) {
  TokenFile file = open_any(path, {}, 0);
  if (!file.layout_.images)
    throw Error(cat(path, ": expected images, found tokens (", file.layout_.format,
                    "): model_type vit reads shards that `athanor data images` makes"),
                Exit::usage);
  return file;
}

TokenFile TokenFile::open_any(const std::string& path, std::optional<TokenType> type, int64_t vocab_size) {
  StableFile file = StableFile::open(path);
  if (file.bytes() == 0) throw Error(cat(path, ": the file is empty, expected tokens"));
  std::array<char, 64> head{};
  const auto head_size = size_t(std::min<int64_t>(file.bytes(), head.size()));
  file.read(0, std::as_writable_bytes(std::span(head)).first(head_size));
  TokenLayout layout = find_layout({file, std::string_view(head.data(), head_size), type});
  if (!layout.mask) layout.mask = find_mask(path, layout.count);
  return {std::move(file), std::move(layout), vocab_size};
}

void TokenFile::require_range(int64_t at, int64_t size) const {
  if (at < 0 || at > count() || size > count() - at)
    throw Error(cat(path(), ": tokens ", at, " to ", at, " + ", size, " are asked for, it has ", count()));
}

void TokenFile::require_vocabulary(int64_t at, std::span<const int32_t> tokens) const {
  const int64_t limit = vocab_size_ > 0 ? vocab_size_ : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  uint32_t largest = 0;
  for (int32_t t : tokens) largest = std::max(largest, uint32_t(t));
  if (int64_t{largest} < limit) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](int32_t t) { return int64_t{uint32_t(t)} >= limit; });
  const int64_t where = at + (bad - tokens.begin());
  throw Error(cat(path(), ": token ", where, " is ", item_text(where), ", expected less than the ",
                  "vocabulary's size ", limit, ": wrong tokenizer, wrong dtype, or a damaged file"));
}

std::string TokenFile::item_text(int64_t at) const {
  require_range(at, 1);
  return by_type(layout_.type,
                 [&]<class T>() { return cat(+file_.value<T>(layout_.offset + at * int64_t(sizeof(T)))); });
}

void TokenFile::read_unchecked(int64_t at, std::span<int32_t> out) const {
  const auto size = int64_t(out.size());
  require_range(at, size);
  by_type(layout_.type, [&]<class T>() {
    std::array<T, 32768 / sizeof(T)> chunk;
    for (int64_t done = 0; done < size;) {
      const int64_t n = std::min<int64_t>(size - done, chunk.size());
      file_.read(layout_.offset + (at + done) * int64_t(sizeof(T)),
                 std::as_writable_bytes(std::span(chunk)).first(size_t(n) * sizeof(T)));
      std::transform(chunk.begin(), chunk.begin() + n, out.begin() + done, to_id<T>);
      done += n;
    }
  });
}

void TokenFile::read(int64_t at, std::span<int32_t> out) const {
  read_unchecked(at, out);
  require_vocabulary(at, out);
}

void TokenFile::read_mask(int64_t at, std::span<uint8_t> out) const {
  const auto size = int64_t(out.size());
  require_range(at, size);
  if (!layout_.mask) return std::fill(out.begin(), out.end(), uint8_t{1});
  const LossMask& mask = *layout_.mask;
  const StableFile& file = mask.file ? *mask.file : file_;
  if (!mask.is_bits) {
    file.read(mask.offset + at, std::as_writable_bytes(out));
    for (uint8_t& value : out) value = value != 0;
    return;
  }
  const int64_t first = at / 8;
  std::vector<uint8_t> bits(size_t((at + size + 7) / 8 - first));
  file.read(mask.offset + first, std::as_writable_bytes(std::span(bits)));
  for (int64_t i = 0; i < size; ++i) out[size_t(i)] = bits[size_t((at + i) / 8 - first)] >> ((at + i) % 8) & 1;
}

}  // namespace athanor
