// Byte-pair encoding of one piece of text, from its bytes or its characters: the merge rules, and an encoder that
// applies them in linear time. Knows nothing of files, split patterns or special tokens.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/huge_pages.h"
#include "tokenizer/subword.h"
#include "tokenizer/token_table.h"
#include "tokenizer/unicode.h"

namespace athanor {

// One merge rule: `first` followed by `second` becomes `merged`. The rule with the lowest rank is applied first; among
// pairs of equal rank, the leftmost one.
struct Merge {
  int32_t first, second, merged;
  uint32_t rank;
};

class Bpe {
 public:
  // Merges must name existing tokens. whole_pieces: a piece that equals a token becomes that token, whatever the merges
  // are. With `characters`, merging starts from characters, and `characters` specifies the encoding of characters that
  // are no tokens; otherwise it starts from bytes, all 256 of which must be tokens.
  Bpe(TokenTable tokens, const std::vector<Merge>& merges, bool whole_pieces,
      const std::optional<Unknown>& characters = {});
  // Merges implied by ranks [tiktoken]: any two neighbours whose joined bytes are a token merge, and its id is the
  // rank. No merge table is built: looking up the joined token is as fast, and a large vocabulary would need a million
  // merges. Sets whole_pieces.
  static Bpe by_ranks(TokenTable tokens);
  static std::vector<Merge> merges_of_ranks(const TokenTable& tokens);  // the same merges as a table, for export
  // SentencePiece's merges of characters: any two neighbours whose joined text is a token merge; the pair with the
  // highest score [id] first, and among equal scores the leftmost pair.
  static Bpe by_scores(TokenTable tokens, const std::vector<double>& scores, const Unknown& unknown);

  int64_t size() const { return int64_t(tokens_.size()); }
  const TokenTable& tokens() const { return tokens_; }
  std::string_view bytes_of(int32_t id) const { return tokens_[size_t(id)]; }
  bool whole_pieces() const { return whole_pieces_; }
  int32_t token_of(std::string_view bytes) const { return tokens_.find(bytes); }  // -1: none
  int32_t token_of_byte(uint8_t byte) const {
    return byte_tokens_[byte];
  }  // -1: none, which happens only if
     // merging starts from characters

  // The unit that merging starts from at a position of a piece: a byte or a character; token -1: a character that is no
  // token.
  struct Symbol {
    int32_t token;
    uint8_t bytes;
  };
  Symbol symbol_at(std::string_view piece, size_t at) const {
    const auto byte = uint8_t(piece[at]);
    if (!unknown_ || byte < 0x80) return {byte_tokens_[byte], 1};
    const uint8_t bytes = char_at(piece, at).bytes;
    return {token_of(piece.substr(at, bytes)), bytes};
  }
  const Unknown& unknown() const { return *unknown_; }

  static constexpr uint32_t kNever = UINT32_MAX;
  struct Rule {
    uint32_t rank = kNever;
    int32_t merged = -1;
  };
  // Merge rule of two neighbouring tokens whose joined bytes are `both`.
  Rule rule(int32_t first, int32_t second, std::string_view both) const {
    return by_ranks_ ? rule_of_rank(both) : rule_of_table(first, second);
  }
  // Merge rule of two one-byte tokens, from a table.
  Rule rule_of_bytes(uint8_t first, uint8_t second) const { return byte_rules_[size_t{first} << 8 | second]; }
  uint32_t ranks() const { return ranks_; }  // all ranks are smaller

 private:
  Bpe(bool by_ranks, TokenTable tokens, bool whole_pieces, const std::optional<Unknown>& characters);
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Rule rule;
  };
  static uint64_t key_of(int32_t first, int32_t second) { return uint64_t(uint32_t(first)) << 32 | uint32_t(second); }
  size_t slot_of(uint64_t key) const { return size_t((key * 0x9e3779b97f4a7c15ull) >> shift_); }  // [Knuth 6.4]
  void add_rule(const Merge& merge);
  void add_byte_rules();
  Rule rule_of_rank(std::string_view both) const {
    const int32_t id = both.size() > tokens_.longest() ? -1 : token_of(both);
    if (id < 0) return {};
    return {rank_of_.empty() ? uint32_t(id) : rank_of_[size_t(id)], id};
  }
  Rule rule_of_table(int32_t first, int32_t second) const {
    const uint64_t key = key_of(first, second);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].rule;
      if (slots_[slot].key == kEmpty) return {};
    }
  }

  TokenTable tokens_;
  bool whole_pieces_, by_ranks_;
  std::optional<Unknown> unknown_;  // absent: merging starts from bytes
  std::vector<uint32_t> rank_of_;   // [id]; empty: the rank is the id
  std::array<int32_t, 256> byte_tokens_{};
  std::vector<Slot, HugePages<Slot>> slots_;  // open addressing, at most half full
  std::vector<Rule> byte_rules_;              // [first byte, second byte]
  uint64_t mask_ = 0;
  int shift_ = 64;
  uint32_t ranks_ = 0;
};

// Encodes pieces. It owns scratch memory, so use one per thread. Short pieces are cached, in memory of fixed size,
// which does not change results.
class BpeEncoder final : public PieceEncoder {
 public:
  explicit BpeEncoder(const Bpe& bpe);
  ~BpeEncoder() override;
  void append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) override;
  void append(std::string_view piece, std::vector<int32_t>& out) { append({&piece, 1}, out); }

 private:
  struct Key;
  struct CacheLine;
  struct CacheSet;
  struct Pieces;
  struct Queue;
  void append_batch(std::span<const std::string_view> pieces, std::vector<int32_t>& out);
  static const CacheLine* found(const CacheSet& set, const Key& key);
  static void remember(CacheSet& set, const Key& key, std::span<const int32_t> ids);
  void merge(std::string_view piece, std::vector<int32_t>& out);
  void merge_short(std::string_view piece, std::vector<int32_t>& out);
  void merge_long(std::string_view piece, std::vector<int32_t>& out);
  bool merge_by_queue(Pieces& pieces);
  void merge_by_heap(Pieces& pieces);
  // Writes the tokens that result from the merges of a piece.
  class Output;

  const Bpe& bpe_;
  std::vector<CacheSet, HugePages<CacheSet>> cache_;
  std::unique_ptr<Queue> queue_;  // allocated for the first long piece
};

}  // namespace athanor
