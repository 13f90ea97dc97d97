// Hand-written split patterns of well-known tokenizers: each cuts a text into the pieces for byte-pair encoding,
// exactly as its regular expression would, in linear time.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

namespace athanor {

// Returns the end of the piece that starts at text[at]; at < text.size(). The end of `text` is the end of the whole
// text.
using NextPiece = size_t (*)(const CharTable&, std::string_view text, size_t at);

struct Pattern {
  const char* name;   // "gpt2"
  const char* regex;  // as written by tiktoken or a tokenizer.json
  NextPiece next;
  bool cuts = true;  // may be cut at the places of last_safe_cut(); true if the pattern matches every character
};

// Finds a pattern by name or by its exact regular expression; null if unknown. Several expressions may share a name:
// the name refers to the first.
const Pattern* find_pattern(std::string_view name_or_regex);
std::string pattern_names();  // list for messages: "gpt2, cl100k, ..."

// Every pattern with `cuts` ends a piece between a letter or number and the white space after it, without looking
// further. So a text may be cut there, and its parts split separately into the same pieces. Returns the last such place
// in text[from, to], or `from` if there is none.
size_t last_safe_cut(const CharTable&, std::string_view text, size_t from, size_t to);

}  // namespace athanor
