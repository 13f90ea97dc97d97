// tiktoken's rank files: parse_rank_file of files.h.
#include <array>
#include <charconv>

#include "base/error.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

// [RFC 4648, section 4]: what a character stands for; 64: nothing.
constexpr std::array<uint8_t, 256> kDigits = [] {
  std::array<uint8_t, 256> digits{};
  digits.fill(64);
  uint8_t digit = 0;
  for (const char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
    digits[uint8_t(c)] = digit++;
  return digits;
}();

// False for what is no base64.
bool from_base64(std::string_view text, std::string& bytes) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  bytes.clear();
  uint32_t bits = 0, seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t digit = kDigits[uint8_t(text[i])];
    seen |= digit;
    bits = bits << 6 | digit;
    if (i % 4 > 0) bytes += char(bits >> (6 - 2 * (i % 4)));
  }
  return seen < 64;
}

}  // namespace

BpeParts parse_rank_file(std::string_view content, const std::string& where) {
  BpeParts parts;
  parts.whole_pieces = parts.by_ranks = true;
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
    std::string token;
    if (space == line.npos || !from_base64(line.substr(0, space), token))
      refuse("expected base64 of a token, a space and its rank, got \"", line.substr(0, 40), "\"");
    int64_t rank = -1;
    const char* last = line.data() + line.size();
    const auto [stop, problem] = std::from_chars(line.data() + space + 1, last, rank);
    if (problem != std::errc() || stop != last || rank < 0 || rank >= kMostTokens)
      refuse("expected a rank from 0 to ", kMostTokens - 1, ", got \"", line.substr(space + 1, 40), "\"");
    if (token.size() > kLongestToken) refuse("a token of ", token.size(), " bytes; at most ", kLongestToken);
    if (rank >= int64_t(parts.tokens.size())) parts.tokens.resize(size_t(rank) + 1);
    if (!parts.tokens[size_t(rank)].empty()) refuse("rank ", rank, " is there twice");
    parts.tokens[size_t(rank)] = std::move(token);
  }
  if (parts.tokens.empty()) throw Error(cat(where, ": a rank file without a token"), Exit::usage);
  if (const int32_t rank = TokenIndex(parts.tokens).repeated(); rank >= 0)
    throw Error(cat(where, ": rank ", rank, ": its token is there twice"), Exit::usage);
  return parts;
}

}  // namespace athanor
