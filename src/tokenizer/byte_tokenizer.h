// Byte tokenizer: ids 0..255 are bytes, 256 is the end of a document. Needs no files, is lossless, works for any
// language.
#pragma once
#include "tokenizer/tokenizer.h"

namespace athanor {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEod = 256;
  static constexpr int64_t kVocab = 257;

  ByteTokenizer();
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocab; }
  int32_t eod_id() const override { return kEod; }
  std::unique_ptr<Encoder> encoder() const override;
  // The end-of-document token decodes to "<|endoftext|>".
  std::string decode(std::span<const int32_t> ids, TextPlace = TextPlace::document) const override;
  size_t last_cut(std::string_view, size_t, size_t to) const override { return to; }
  const std::vector<TokenizerFile>& files() const override { return files_; }

 private:
  std::vector<TokenizerFile> files_;
};

}  // namespace athanor
