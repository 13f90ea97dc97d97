// Unigram model of one piece of text: chooses, among all segmentations into tokens, the one with the highest sum of
// scores.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/subword.h"
#include "tokenizer/token_table.h"

namespace athanor {

class Unigram {
 public:
  struct Scores {
    std::vector<double> of;  // score of each token [id]
    double unknown = 0;      // score of a character that is no token
    bool single = false;     // accumulate sums in fp32 like SentencePiece, which decides between nearly equal
                             // segmentations
  };
  Unigram(TokenTable tokens, Scores scores, const Unknown& unknown);

  int64_t size() const { return int64_t(tokens_.size()); }
  const TokenTable& tokens() const { return tokens_; }
  double score(std::span<const int32_t> ids) const;  // score of a text segmented into these tokens

 private:
  friend class UnigramEncoder;
  // A node of the trie of all tokens; its children are stored consecutively.
  struct Node {
    uint32_t first = 0;
    uint32_t children = 0;
    int32_t token = -1;
  };
  const Node* child(const Node& node, char byte) const {
    const char* first = bytes_.data() + node.first;
    const auto* found = static_cast<const char*>(std::memchr(first, byte, node.children));
    return found ? &nodes_[size_t(found - bytes_.data())] : nullptr;
  }

  TokenTable tokens_;
  Scores scores_;
  Unknown unknown_;
  std::vector<Node> nodes_;  // [0]: the root
  std::string bytes_;        // [node]: the byte on the edge to it
};

class UnigramEncoder final : public PieceEncoder {
 public:
  explicit UnigramEncoder(const Unigram& model) : model_(model) {}
  void append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) override;

 private:
  // The best segmentation up to a position of the piece.
  struct Best {
    double score = 0;
    uint32_t begin = kNowhere;  // start of its last token
    int32_t token = -1;         // its last token; -1: unknown
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;
  template <class Sum>
  void find_best(std::string_view piece);
  void append_best(std::string_view piece, std::vector<int32_t>& out);

  const Unigram& model_;
  std::vector<Best> best_;      // [bytes of the piece + 1]
  std::vector<uint32_t> ends_;  // ends of the best tokens, last first
};

}  // namespace athanor
