#include "tokenizer/byte_tokenizer.h"

#include "base/error.h"
#include "tokenizer/descriptor.h"

namespace athanor {
namespace {

class ByteEncoder final : public Encoder {
 public:
  void append(std::string_view text, std::vector<int32_t>& out, TextPlace) override {
    for (char c : text) out.push_back(uint8_t(c));
  }
};

}  // namespace

ByteTokenizer::ByteTokenizer()
    : files_{{kTokenizerFile, descriptor_text({.type = "byte", .vocab_size = kVocab, .eod_id = kEod})}} {}

std::unique_ptr<Encoder> ByteTokenizer::encoder() const { return std::make_unique<ByteEncoder>(); }

std::string ByteTokenizer::decode(std::span<const int32_t> ids, TextPlace) const {
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
