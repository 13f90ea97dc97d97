// Converts tokens back to text with the decoder steps of a tokenizer file. Without steps, tokens are concatenated.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace athanor {

// Tokens like "<0x41>" become bytes. If consecutive bytes are not valid UTF-8, each becomes U+FFFD.
struct ByteTokens {};
struct Fuse {};  // concatenates all tokens into one
struct Strip {
  std::string content;  // removes up to `start` copies of it from the start of each token
  size_t start = 0;
};
struct Metaspace {
  bool first = true;  // removes the spaces of the first token instead of writing them
};
// Decodes like SentencePiece: U+2581 becomes a space, byte pieces become bytes.
struct PieceText {
  bool drop_space = true;   // drop the space at the start of a text, which add_dummy_prefix put there
  bool drop_spaces = true;  // remove_extra_whitespaces: drop spaces at the start, up to the first token with other text
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
