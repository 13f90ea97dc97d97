// A tokenizer of subwords: added tokens found in the text, normalization, split pattern, merges. Made from
// what tokenizer files say (files.h); the same code for all of them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/nfc.h"
#include "tokenizer/splitter.h"
#include "tokenizer/token_finder.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// A token beside the vocabulary, which is found in the text before anything is split.
struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = true;      // found only with allow_special
  bool normalized = false;  // found in the normalized text
};

// All that a tokenizer file says, whatever its format.
struct SubwordParts {
  TokenTable tokens;
  std::vector<Merge> merges;
  bool whole_pieces = false;  // see Bpe
  bool by_ranks = false;      // the merges are those that ranks imply [Bpe::by_ranks]; `merges` is empty
  Splitter splitter;
  bool nfc = false;
  std::vector<AddedToken> added;
  std::map<int32_t, std::string> unreachable;  // vocabulary entries that no text encodes to, only decoded
};

class SubwordTokenizer final : public Tokenizer {
 public:
  // The descriptor's vocab_size 0 stands for the greatest id + 1.
  SubwordTokenizer(SubwordParts parts, Descriptor descriptor, std::vector<TokenizerFile> sources);

  std::string name() const override { return descriptor_.type; }
  int64_t vocab_size() const override { return descriptor_.vocab_size; }
  int32_t eod_id() const override { return descriptor_.eod_id; }
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const int32_t> ids) const override;
  size_t last_cut(std::string_view text, size_t from, size_t to) const override;
  bool cuts() const override;
  std::string caveat() const override { return splitter_.caveat(); }
  const std::vector<TokenizerFile>& files() const override { return files_; }

 private:
  class TextEncoder;
  std::string_view text_of(int32_t id) const;  // empty: no such token
  bool token_covers(std::string_view text, size_t cut) const;

  CharTable table_;
  Bpe bpe_;
  Splitter splitter_;
  std::unique_ptr<Nfc> nfc_;                  // null: none
  TokenFinder in_text_, in_normalized_text_;  // added tokens that are looked for
  std::map<int32_t, std::string> texts_;      // what ids decode to that do not decode to their bytes
  Descriptor descriptor_;
  std::vector<TokenizerFile> files_;
};

}  // namespace athanor
