#include "data/byte_tokenizer.h"

#include "base/error.h"

namespace athanor {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (char c : text) ids.push_back(uint8_t(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || id >= kVocab) throw Error(cat("byte tokenizer: id ", id, " is outside its vocabulary of ", kVocab));
    if (id == kEod)
      text += "<|endoftext|>";
    else
      text += char(id);
  }
  return text;
}

}  // namespace athanor
