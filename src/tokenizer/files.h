// Parsers of tokenizer file formats: text in, SubwordParts out. Errors name the file (`where`) and the place in it;
// unsupported features are refused by name. Opens no files.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/subword_tokenizer.h"

namespace athanor {

// Upper bounds; no real vocabulary comes close, and a corrupt file could otherwise request unbounded memory.
inline constexpr int64_t kMostTokens = int64_t{1} << 22;
inline constexpr size_t kLongestToken = 4096;  // bytes

// tiktoken: one line per token: base64 of its bytes, a space, and its rank, which is its id.
SubwordParts parse_rank_file(std::string_view content, const std::string& where);

// GPT-2: encoder.json (or vocab.json) is {"text": id}; vocab.bpe (or merges.txt) has one pair per line.
SubwordParts parse_gpt2(std::string_view vocab, const std::string& vocab_where, std::string_view merges,
                        const std::string& merges_where);

// Hugging Face tokenizer.json.
SubwordParts parse_huggingface(std::string_view content, const std::string& where);

// SentencePiece's model file.
SubwordParts parse_sentencepiece(std::string_view content, const std::string& where);
// True if a file begins like a SentencePiece model.
inline bool is_sentencepiece(std::string_view content) { return content.starts_with('\n'); }

// GPT-2's byte-level alphabet writes every byte as a printable character: bytes 33..126, 161..172 and 174..255 as the
// character of that number, the other 68, in order, as U+0100 and up [openai/gpt-2 encoder.py, bytes_to_unicode].
// Returns false if a character is not in this alphabet.
bool from_byte_level(std::string_view text, std::string& bytes);
std::string to_byte_level(std::string_view bytes);

// Builds a vocabulary: stores tokens by id and finds them by text, given in the byte-level alphabet or as plain text.
class Vocabulary {
 public:
  explicit Vocabulary(std::string where, bool byte_level = true) : where_(std::move(where)), byte_level_(byte_level) {}
  void add(const std::string& text, int64_t id);
  // Adds the merge of rank `rank`; both parts and the merged text must be tokens.
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
