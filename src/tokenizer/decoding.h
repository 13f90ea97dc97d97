// How tokens become a text again, in the steps that a tokenizer file names. Without a step: one behind the other.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace athanor {

// "<0x41>" is a byte. Bytes in a row that are no UTF-8 become U+FFFD each.
struct ByteTokens {};
struct Fuse {};  // all tokens become one
struct Strip {
  std::string content;  // up to `start` of it at the start of each token
  size_t start = 0;
};
struct Metaspace {
  bool first = true;  // spaces of the first token are left out, not only marked ones shown
};
// Decodes as SentencePiece does: spaces from U+2581, bytes from byte pieces.
struct PieceText {
  bool drop_space = true;   // the space at the start of a text, as add_dummy_prefix put it there
  bool drop_spaces = true;  // remove_extra_whitespaces: spaces at the start, up to the first token that is more
  bool bytes = false;       // byte_fallback
};

class Decoding {
 public:
  using Step = std::variant<Replace, ByteTokens, Fuse, Strip, Metaspace, PieceText>;
  void add(Step step);
  bool empty() const { return steps_.empty(); }
  std::string text_of(std::vector<std::string> tokens, TextPlace place) const;

 private:
  std::vector<Step> steps_;
};

std::string byte_token(uint8_t byte);  // "<0x0A>"

}  // namespace athanor
