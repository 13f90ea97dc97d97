// The formats of tokenizer files: text in, SubwordParts out. Errors name the file (`where`) and the place in it; what a
// file asks for and is not there is refused by name. Nothing is opened here.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/subword_tokenizer.h"

namespace athanor {

// Ids and tokens beyond these are refused: no vocabulary comes near, and damaged files ask for any amount of memory.
inline constexpr int64_t kMostTokens = int64_t{1} << 22;
inline constexpr size_t kLongestToken = 4096;  // bytes

// tiktoken: a line for each token, base64 of its bytes, a space, its rank, which is its id.
SubwordParts parse_rank_file(std::string_view content, const std::string& where);

// GPT-2: encoder.json (also vocab.json) {"text": id}, vocab.bpe (also merges.txt) with a pair in each line.
SubwordParts parse_gpt2(std::string_view vocab, const std::string& vocab_where, std::string_view merges,
                        const std::string& merges_where);

// Hugging Face tokenizer.json.
SubwordParts parse_huggingface(std::string_view content, const std::string& where);

// SentencePiece's model file.
SubwordParts parse_sentencepiece(std::string_view content, const std::string& where);
// Whether a file begins as one.
inline bool is_sentencepiece(std::string_view content) { return content.starts_with('\n'); }

// GPT-2 writes bytes as characters that print: bytes 33..126, 161..172 and 174..255 as the character of that number,
// the other 68 in order as U+0100 and up [openai/gpt-2 encoder.py, bytes_to_unicode]. False: a character is none of
// these.
bool from_byte_level(std::string_view text, std::string& bytes);
std::string to_byte_level(std::string_view bytes);

// Places tokens by id and finds them by text, in the byte-level alphabet or as it is.
class Vocabulary {
 public:
  explicit Vocabulary(std::string where, bool byte_level = true) : where_(std::move(where)), byte_level_(byte_level) {}
  void add(const std::string& text, int64_t id);
  // The merge number `rank`; both and their union must be tokens.
  void add_merge(const std::string& first, const std::string& second, size_t rank, const std::string& where);
  int32_t id_of(const std::string& text) const;  // -1: none
  SubwordParts take() { return std::move(parts_); }

 private:
  std::string where_;
  bool byte_level_;
  std::unordered_map<std::string, int32_t> ids_;
  SubwordParts parts_;
};

}  // namespace athanor
