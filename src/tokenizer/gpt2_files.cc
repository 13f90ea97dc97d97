// GPT-2's encoder.json and vocab.bpe, and a vocabulary in their byte-level alphabet, which tokenizer.json shares.
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

// Byte of each character [character], or -1; the alphabet ends at U+0143.
std::array<int, 0x144> byte_of_character() {
  std::array<int, 0x144> bytes;
  bytes.fill(-1);
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    bytes[prints ? size_t(byte) : next++] = byte;
  }
  return bytes;
}

}  // namespace

bool from_byte_level(std::string_view text, std::string& bytes) {
  static const std::array<int, 0x144> byte_of = byte_of_character();
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const Char c = char_at(text, at);
    if (c.code >= byte_of.size() || byte_of[c.code] < 0) return false;
    bytes += char(byte_of[c.code]);
    at += c.bytes;
  }
  return true;
}

std::string to_byte_level(std::string_view bytes) {
  static const std::array<std::string, 256> text_of = [] {
    const std::array<int, 0x144> byte_of = byte_of_character();
    std::array<std::string, 256> texts;
    for (size_t c = 0; c < byte_of.size(); ++c) {
      if (byte_of[c] < 0) continue;
      std::string& text = texts[size_t(byte_of[c])];  // the character in UTF-8
      if (c < 0x80) text = char(c);
      if (c >= 0x80) text = {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
    }
    return texts;
  }();
  std::string out;
  for (const char byte : bytes) out += text_of[uint8_t(byte)];
  return out;
}

void Vocabulary::add(const std::string& text, int64_t id) {
  const auto refuse = [&](auto... what) {
    throw Error(cat(where_, ": token \"", text.substr(0, 40), "\": ", what...), Exit::usage);
  };
  if (id < 0 || id >= kMostTokens) refuse("id ", id, " is not between 0 and ", kMostTokens - 1);
  if (text.empty() || text.size() > kLongestToken) refuse("expected 1 to ", kLongestToken, " bytes, got ", text.size());
  if (!ids_.emplace(text, int32_t(id)).second) refuse("appears twice");
  const auto place = size_t(id);
  if ((place < parts_.tokens.size() && !parts_.tokens[place].empty()) || parts_.unreachable.contains(int32_t(id)))
    refuse("id ", id, " appears twice");
  std::string bytes = text;
  if (byte_level_ && !from_byte_level(text, bytes)) {
    parts_.unreachable[int32_t(id)] = text;
    bytes.clear();
  }
  parts_.tokens.put(place, bytes);
}

int32_t Vocabulary::id_of(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

void Vocabulary::add_merge(const std::string& first, const std::string& second, size_t rank, const std::string& where) {
  const auto token = [&](const std::string& text) {
    const int32_t id = id_of(text);
    if (id < 0)
      throw Error(cat(where, ": merge of \"", first.substr(0, 40), "\" and \"", second.substr(0, 40), "\": \"",
                      text.substr(0, 80), "\" is not in the vocabulary"),
                  Exit::usage);
    return id;
  };
  parts_.merges.push_back({token(first), token(second), token(first + second), uint32_t(rank)});
}

SubwordParts parse_gpt2(std::string_view vocab, const std::string& vocab_where, std::string_view merges,
                        const std::string& merges_where) {
  Vocabulary vocabulary(vocab_where);
  const auto ids = parse_json_text<nlohmann::json>(vocab, vocab_where);
  if (!ids.is_object()) throw Error(cat(vocab_where, ": expected a JSON object of tokens and ids"), Exit::usage);
  for (const auto& [text, id] : ids.items()) {
    if (!id.is_number_integer())
      throw Error(cat(vocab_where, ": token \"", text.substr(0, 40), "\": expected a number, got ",
                      json_text(id).substr(0, 40)),
                  Exit::usage);
    vocabulary.add(text, id.get<int64_t>());
  }
  size_t rank = 0, number = 0;
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string_view line = merges.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string place = cat(merges_where, ": line ", ++number, " (byte ", begin, ")");
    begin = end + 1;
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
      throw Error(cat(place, ": expected two tokens and a space between them, got \"", line.substr(0, 80), "\""),
                  Exit::usage);
    vocabulary.add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), rank++, place);
  }
  return vocabulary.take();
}

}  // namespace athanor
