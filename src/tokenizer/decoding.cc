#include "tokenizer/decoding.h"

#include <charconv>

#include "tokenizer/unicode.h"
#include "tokenizer/word_breaks.h"

namespace athanor {
namespace {

using Tokens = std::vector<std::string>;
constexpr std::string_view kBroken = "\xef\xbf\xbd";  // U+FFFD

// The byte that a token like "<0x41>" stands for; -1: none.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  unsigned byte = 0;
  const char* end = token.data() + 5;
  return std::from_chars(token.data() + 3, end, byte, 16).ptr == end ? int(byte) : -1;
}

void apply(const Replace& step, Tokens& tokens, TextPlace) {
  for (std::string& token : tokens) {
    std::string out;
    append_replaced(token, step.from, step.to, out);
    token = std::move(out);
  }
}

// Returns the bytes, with every invalid UTF-8 byte replaced by U+FFFD.
std::string shown(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const Char c = char_at(bytes, at);
    out += c.code & kInvalidByte ? kBroken : bytes.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

// Like the `tokenizers` package, replaces a whole run of bytes if one is invalid UTF-8 [decoders/byte_fallback.rs].
void apply(const ByteTokens&, Tokens& tokens, TextPlace place) {
  Tokens out;
  std::string row;
  const auto end_row = [&] {
    if (row.empty()) return;
    std::string text;
    for (size_t at = 0; at < row.size() && text.size() == at; at += char_at(row, at).bytes)
      if (!(char_at(row, at).code & kInvalidByte)) text += row.substr(at, char_at(row, at).bytes);
    if (text != row && place == TextPlace::document)
      out.insert(out.end(), row.size(), std::string(kBroken));
    else
      out.push_back(row);
    row.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of(token); byte >= 0) {
      row += char(byte);
      continue;
    }
    end_row();
    out.push_back(std::move(token));
  }
  end_row();
  tokens = std::move(out);
}

void apply(const Fuse&, Tokens& tokens, TextPlace) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens = {std::move(all)};
}

void apply(const Strip& step, Tokens& tokens, TextPlace place) {
  for (std::string& token : tokens)
    for (size_t i = 0; i < step.start && place != TextPlace::inside && token.starts_with(step.content); ++i)
      token.erase(0, step.content.size());
}

void apply(const Metaspace& step, Tokens& tokens, TextPlace place) {
  bool first = step.first && place != TextPlace::inside;
  for (std::string& token : tokens) {
    std::string out;
    append_replaced(token, kSpaceMark, first ? "" : " ", out);
    token = std::move(out);
    first = false;
  }
}

// [sentencepiece 0.2.3 sentencepiece_processor.cc, Decode]
void apply(const PieceText& step, Tokens& tokens, TextPlace place) {
  std::string text, row;
  bool at_start = place != TextPlace::inside, dropped = false;
  const auto end_row = [&] {
    text += place == TextPlace::document ? shown(row) : row;
    row.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = step.bytes ? byte_of(token) : -1; byte >= 0) {
      row += char(byte);
      continue;
    }
    end_row();
    at_start = at_start && !dropped && text.empty();
    std::string_view rest = token;
    const bool drops = at_start && (step.drop_space || step.drop_spaces) && rest.starts_with(kSpaceMark);
    if (drops) rest.remove_prefix(kSpaceMark.size());
    dropped = drops && !step.drop_spaces;
    append_replaced(rest, kSpaceMark, " ", text);
  }
  end_row();
  tokens = {std::move(text)};
}

}  // namespace

void Decoding::add(Step step) { steps_.push_back(std::move(step)); }

std::string Decoding::text_of(std::vector<std::string> tokens, TextPlace place) const {
  for (const Step& step : steps_) std::visit([&](const auto& s) { apply(s, tokens, place); }, step);
  apply(Fuse{}, tokens, place);
  return std::move(tokens[0]);
}

std::string byte_token(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace athanor
