// Parser of tiktoken's rank files: parse_rank_file of files.h.
#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

// Base64 value of each character [RFC 4648, section 4]; 64: invalid.
constexpr std::array<uint8_t, 256> kDigits = [] {
  std::array<uint8_t, 256> digits{};
  digits.fill(64);
  uint8_t digit = 0;
  for (const char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
    digits[uint8_t(c)] = digit++;
  return digits;
}();

// Returns false if the text is not valid base64.
bool from_base64(std::string_view text, std::string& bytes) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const auto digit = [&](size_t i) { return i + padding < text.size() ? kDigits[uint8_t(text[i])] : uint8_t{0}; };
  bytes.resize(text.size() / 4 * 3);
  uint32_t seen = 0;
  for (size_t i = 0, out = 0; i < text.size(); i += 4, out += 3) {
    const uint32_t a = digit(i), b = digit(i + 1), c = digit(i + 2), d = digit(i + 3);
    seen |= a | b | c | d;
    const uint32_t bits = a << 18 | b << 12 | c << 6 | d;
    bytes[out] = char(bits >> 16), bytes[out + 1] = char(bits >> 8), bytes[out + 2] = char(bits);
  }
  bytes.resize(bytes.size() - padding);
  return seen < 64;
}

}  // namespace

SubwordParts parse_rank_file(std::string_view content, const std::string& where) {
  SubwordParts parts;
  parts.whole_pieces = true;
  parts.model = SubwordParts::Model::ranks;
  const int64_t lines = std::count(content.begin(), content.end(), '\n') + 1;
  parts.tokens.reserve(size_t(std::min(lines, kMostTokens)), content.size() / 4 * 3);
  std::string token;
  size_t number = 0;
  for (size_t begin = 0; begin < content.size(); ++number) {
    const size_t place = begin, end = std::min(content.find('\n', begin), content.size());
    std::string_view line = content.substr(begin, end - begin);
    const auto refuse = [&](auto... what) {
      throw Error(cat(where, ": line ", number + 1, " (byte ", place, "): ", what...), Exit::usage);
    };
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || !from_base64(line.substr(0, space), token))
      refuse("expected base64 of a token, a space and its rank, got \"", line.substr(0, 40), "\"");
    int64_t rank = -1;
    const char* last = line.data() + line.size();
    const auto [stop, problem] = std::from_chars(line.data() + space + 1, last, rank);
    if (problem != std::errc() || stop != last || rank < 0 || rank >= kMostTokens)
      refuse("expected a rank from 0 to ", kMostTokens - 1, ", got \"", line.substr(space + 1, 40), "\"");
    if (token.size() > kLongestToken) refuse("a token of ", token.size(), " bytes; at most ", kLongestToken);
    const auto id = size_t(rank);
    if (id < parts.tokens.size() && !parts.tokens[id].empty()) refuse("rank ", rank, " appears twice");
    if (!parts.tokens.put(id, token)) refuse("rank ", rank, ": its token appears twice");
  }
  if (parts.tokens.count() == 0) throw Error(cat(where, ": a rank file without a token"), Exit::usage);
  return parts;
}

}  // namespace athanor
