// A tokenizer of subwords: added tokens found in the text, normalization, split pattern, a model of subwords. Made from
// what tokenizer files say (files.h); the same code for all of them.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/decoding.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/splitter.h"
#include "tokenizer/token_finder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"
#include "tokenizer/word_breaks.h"

namespace athanor {

// A token beside the vocabulary, which is found before anything is split.
struct AddedToken {
  enum class In : uint8_t {
    text,             // in the text
    normal_form,      // its normal form, in the normalized text
    normalized_text,  // in the normalized text, as it is
  };
  std::string text;
  int32_t id = 0;
  bool special = true;  // found only with allow_special
  In in = In::text;
};

// A text and its pieces with spaces between them, by the program that wrote the file.
struct SelfTest {
  std::string text, pieces;
};

// All that a tokenizer file says, whatever its format.
struct SubwordParts {
  enum class Model : uint8_t {
    merges,   // Bpe by a table of merges
    ranks,    // Bpe::by_ranks
    scores,   // Bpe::by_scores
    unigram,  // Unigram
  };
  TokenTable tokens;
  Model model = Model::merges;
  std::vector<Merge> merges;
  bool whole_pieces = false;  // see Bpe
  Unigram::Scores scores;
  std::optional<Unknown> characters;  // what those become that are no tokens; none: tokens are of bytes
  Normalizer normalizer;
  Normalizer respelling;  // a second one, for what is between added tokens
  Splitter splitter;
  bool splits_at_spaces = false;  // at every U+2581 that respelling wrote
  std::vector<AddedToken> added;
  std::map<int32_t, std::string> unreachable;  // vocabulary entries that no text encodes to, only decoded
  Decoding decoding;
  std::vector<SelfTest> self_tests;
  std::string eod;  // text of the token that ends a document, where the file says it
};

class SubwordTokenizer final : public Tokenizer {
 public:
  // The descriptor's vocab_size 0 stands for the greatest id + 1.
  SubwordTokenizer(SubwordParts parts, Descriptor descriptor, std::vector<TokenizerFile> sources);

  std::string name() const override { return descriptor_.type; }
  int64_t vocab_size() const override { return descriptor_.vocab_size; }
  int32_t eod_id() const override { return descriptor_.eod_id; }
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const int32_t> ids, TextPlace place) const override;
  size_t last_cut(std::string_view text, size_t from, size_t to) const override;
  bool cuts() const override;
  std::string caveat() const override { return splitter_.caveat(); }
  const std::vector<TokenizerFile>& files() const override { return files_; }

 private:
  class TextEncoder;
  const TokenTable& tokens() const;
  std::unique_ptr<PieceEncoder> piece_encoder() const;
  std::string_view text_of(int32_t id) const;  // null: no such token
  void check(const SelfTest& test, int32_t unknown) const;
  bool token_covers(std::string_view text, size_t cut) const;
  bool word_ends(std::string_view text, size_t cut) const;

  CharTable table_;
  std::optional<WordBreaks> words_;  // where pieces fall into words; none: pieces stay whole
  std::variant<Bpe, Unigram> model_;
  Splitter splitter_;
  TokenFinder in_text_, in_normalized_text_;  // added tokens that are looked for
  Normalizer normalizer_, respelling_;
  std::map<int32_t, std::string> texts_;  // what ids decode to that do not decode to their bytes
  Decoding decoding_;
  Descriptor descriptor_;
  std::vector<TokenizerFile> files_;
};

}  // namespace athanor
