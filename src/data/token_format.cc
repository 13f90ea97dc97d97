#include "data/token_format.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/error.h"

namespace athanor {
namespace {

struct TypeRow {
  std::string_view name;
  int64_t size;
};
constexpr std::array<TypeRow, 10> kTokenTypes = {{{"uint8", 1},
                                                  {"int8", 1},
                                                  {"uint16", 2},
                                                  {"int16", 2},
                                                  {"uint32", 4},
                                                  {"int32", 4},
                                                  {"uint64", 8},
                                                  {"int64", 8},
                                                  {"float32", 4},
                                                  {"float64", 8}}};

}  // namespace

int64_t item_size(TokenType type) { return kTokenTypes[size_t(type)].size; }
std::string_view name_of(TokenType type) { return kTokenTypes[size_t(type)].name; }

std::optional<TokenType> token_type(std::string_view dtype) {
  if (dtype == "auto") return {};
  std::string known = "\"auto\"";
  for (size_t i = 0; i < kTokenTypes.size(); ++i) {
    if (kTokenTypes[i].name == dtype) return TokenType(i);
    known += cat(", \"", kTokenTypes[i].name, "\"");
  }
  throw Error(cat("dtype: expected one of ", known, ", got \"", dtype, "\""), Exit::usage);
}

int32_t Probe::word(size_t index) const {
  int32_t value = 0;
  if (head.size() >= 4 * (index + 1)) std::memcpy(&value, head.data() + 4 * index, 4);
  return value;
}

void Probe::require_dtype(TokenType found) const {
  if (dtype && *dtype != found)
    throw Error(cat(path(), ": dtype is given as ", name_of(*dtype), ", but the file says ", name_of(found),
                    ": leave dtype at \"auto\""),
                Exit::usage);
}

std::string doubt_of_type(const TokenLayout& layout, std::span<const int32_t> tokens) {
  constexpr size_t kEnough = 64;
  constexpr int32_t kHighHalf = 15;  // maximum high half of ids below 2^20, the largest vocabularies
  const bool says_type = !layout.format.starts_with("raw-") && !layout.format.starts_with("nanotron-");
  if (says_type || tokens.size() < kEnough || item_size(layout.type) > 4) return "";
  size_t small[2] = {}, zeros[2] = {};  // at even and odd positions
  for (size_t i = 0; i < tokens.size(); ++i) {
    small[i % 2] += uint32_t(tokens[i]) <= uint32_t(kHighHalf);
    zeros[i % 2] += tokens[i] == 0;
  }
  for (const size_t high : {1, 0}) {
    const size_t highs = (tokens.size() + 1 - high) / 2, lows = tokens.size() - highs;
    if (small[high] < highs || 2 * zeros[high] < highs || 2 * small[1 - high] > lows) continue;
    return cat("every second token is ", zeros[high] == highs ? "0" : cat("at most ", kHighHalf),
               ", so these are probably ",
               item_size(layout.type) == 1   ? "uint16"
               : item_size(layout.type) == 2 ? "uint32"
                                             : "uint64",
               " tokens, not ", name_of(layout.type), ": set dtype accordingly");
  }
  return "";
}

bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string with_extension(const std::string& path, std::string_view extension) {
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  const bool has_dot = dot != std::string::npos && (slash == std::string::npos || dot > slash);
  return cat(has_dot ? path.substr(0, dot) : path, extension);
}

}  // namespace athanor
