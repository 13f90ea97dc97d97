// tokenizer.athanor.json records, in a folder of shards or in a checkpoint, which tokenizer was used. The tokenizer's
// files are stored next to it under the names that it lists.
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
  std::vector<std::string> files;                 // file names, next to the descriptor; none for "byte"
  std::string fingerprint;                        // checksum of the content of these files
  std::string split;                              // split pattern; only tiktoken, whose files lack it
  std::map<std::string, int32_t> special_tokens;  // only tiktoken, whose files lack them
  bool allow_special = false;                     // special tokens that occur in a text are encoded as such, not as
                                                  // ordinary text
};

std::string descriptor_text(const Descriptor& descriptor);
// Throws Error(usage) naming `where` if the text is no valid descriptor.
Descriptor parse_descriptor(const std::string& text, const std::string& where);
std::string fingerprint_of(const std::vector<TokenizerFile>& files);

}  // namespace athanor
