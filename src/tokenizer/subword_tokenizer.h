// Subword tokenizer: finds added tokens in the text, normalizes, splits by a pattern, and encodes with a subword model.
// Built from SubwordParts (files.h), whatever the file format.
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

// A token outside the vocabulary, which is found before the text is split.
struct AddedToken {
  enum class In : uint8_t {
    text,             // its text is looked up in the original text
    normal_form,      // its normalized text is looked up in the normalized text
    normalized_text,  // its text is looked up, unchanged, in the normalized text
  };
  std::string text;
  int32_t id = 0;
  bool special = true;  // found only with allow_special
  In in = In::text;
  bool strips_left = false, strips_right = false;  // includes the white space before it, or after it; only In::text
};

// A test case stored by the program that wrote the file: a text and its pieces, separated by spaces.
struct SelfTest {
  std::string text, pieces;
};

// Everything in a tokenizer file, whatever its format.
struct SubwordParts {
  enum class Model : uint8_t {
    merges,   // Bpe with a merge table
    ranks,    // Bpe::by_ranks
    scores,   // Bpe::by_scores
    unigram,  // Unigram
  };
  TokenTable tokens;
  Model model = Model::merges;
  std::vector<Merge> merges;
  bool whole_pieces = false;  // see Bpe
  Unigram::Scores scores;
  std::optional<Unknown> characters;  // encoding of characters that are no tokens; absent: tokens consist of bytes
  Normalizer normalizer;
  Normalizer respelling;  // second normalizer, for the text between added tokens
  Splitter splitter;
  bool splits_at_spaces = false;  // the text is also split at every U+2581 that `respelling` wrote
  std::vector<AddedToken> added;
  std::map<int32_t, std::string> unreachable;  // vocabulary entries that are decoded but never produced by encoding
  Decoding decoding;
  std::vector<SelfTest> self_tests;
  std::string eod;  // text of the end-of-document token, if the file names one
};

class SubwordTokenizer final : public Tokenizer {
 public:
  // vocab_size 0 in the descriptor means the largest id + 1.
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
  std::string_view text_of(int32_t id) const;  // data() is null if there is no such token
  void check(const SelfTest& test, int32_t unknown) const;
  bool token_covers(std::string_view text, size_t cut) const;
  bool word_ends(std::string_view text, size_t cut) const;

  CharTable table_;
  std::optional<WordBreaks> words_;  // splits pieces into words; absent: pieces stay whole
  std::variant<Bpe, Unigram> model_;
  Splitter splitter_;
  TokenFinder in_text_, in_normalized_text_;  // finders of the added tokens
  Normalizer normalizer_, respelling_;
  std::map<int32_t, std::string> texts_;  // decoded texts of added tokens and unreachable vocabulary entries
  Decoding decoding_;
  Descriptor descriptor_;
  std::vector<TokenizerFile> files_;
};

}  // namespace athanor
