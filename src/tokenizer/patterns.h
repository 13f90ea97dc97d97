// The split patterns of well-known tokenizers, by hand: each cuts a text into the pieces that byte-pair encoding then
// works on, exactly as its regular expression would, in linear time.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

namespace athanor {

// Where the piece that starts at text[at] ends; at < text.size(). What follows text is its end, not more text.
using NextPiece = size_t (*)(const CharTable&, std::string_view text, size_t at);

struct Pattern {
  const char* name;   // "gpt2"
  const char* regex;  // as tiktoken or a tokenizer.json writes it
  NextPiece next;
  bool cuts = true;  // at the places of last_safe_cut(); those that do match every character
};

// By name or by the exact regular expression; null for any other. Several expressions may have one name: the first is
// what the name alone means.
const Pattern* find_pattern(std::string_view name_or_regex);
std::string pattern_names();  // for messages: "gpt2, cl100k, ..."

// Every pattern that says so ends a piece between a letter or a number and white space that follows, and looks no
// further there. So a text may be cut at such a place and its parts split on their own, with the same pieces. The last
// such place in text[from, to], or `from` when there is none.
size_t last_safe_cut(const CharTable&, std::string_view text, size_t from, size_t to);

}  // namespace athanor
