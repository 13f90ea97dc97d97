// tokenizer.athanor.json: what tells a folder of shards, or a checkpoint, which tokenizer made it. The files of the
// tokenizer lie beside it under the names that it lists.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

inline constexpr const char* kTokenizerFile = "tokenizer.athanor.json";

struct Descriptor {
  std::string type;  // "byte", "tiktoken", "gpt2", "huggingface", "sentencepiece"
  int64_t vocab_size = 0;
  int32_t eod_id = -1;
  std::vector<std::string> files;                 // names beside the descriptor; none for "byte"
  std::string fingerprint;                        // checksum of their bytes
  std::string split;                              // tiktoken: the file does not say
  std::map<std::string, int32_t> special_tokens;  // tiktoken: the file does not say
  bool allow_special = false;                     // special tokens in a text are themselves, not ordinary text
};

std::string descriptor_text(const Descriptor& descriptor);
// An Error(usage) naming `where` for what is no descriptor.
Descriptor parse_descriptor(const std::string& text, const std::string& where);
std::string fingerprint_of(const std::vector<TokenizerFile>& files);

}  // namespace athanor
