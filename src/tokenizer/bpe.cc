#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "tokenizer/words.h"

namespace athanor {

Bpe::Bpe(bool by_ranks, TokenTable tokens, bool whole_pieces, const std::optional<Unknown>& characters)
    : tokens_(std::move(tokens)), whole_pieces_(whole_pieces), by_ranks_(by_ranks), unknown_(characters) {
  CHECK(tokens_.size() < size_t{INT32_MAX}, "vocabulary of ", tokens_.size());
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = char(byte);
    byte_tokens_[byte] = token_of({&c, 1});
    if (byte_tokens_[byte] < 0 && !unknown_)
      throw Error(cat("the vocabulary has no token for the byte ", byte, ": only byte-level vocabularies are read"),
                  Exit::usage);
  }
}

Bpe Bpe::by_ranks(TokenTable tokens) {
  Bpe bpe(true, std::move(tokens), true, {});
  bpe.ranks_ = uint32_t(bpe.size());
  bpe.add_byte_rules();
  return bpe;
}

Bpe Bpe::by_scores(TokenTable tokens, const std::vector<double>& scores, const Unknown& unknown) {
  Bpe bpe(true, std::move(tokens), false, unknown);
  CHECK(scores.size() == size_t(bpe.size()), scores.size(), " scores of ", bpe.size(), " tokens");
  std::vector<double> order(scores);
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  for (const double score : scores)
    bpe.rank_of_.push_back(
        uint32_t(std::lower_bound(order.begin(), order.end(), score, std::greater<>()) - order.begin()));
  bpe.ranks_ = uint32_t(order.size());
  bpe.add_byte_rules();
  return bpe;
}

Bpe::Bpe(TokenTable tokens, const std::vector<Merge>& merges, bool whole_pieces,
         const std::optional<Unknown>& characters)
    : Bpe(false, std::move(tokens), whole_pieces, characters) {
  CHECK(merges.size() < size_t{kNever}, merges.size(), " merges");
  const size_t slots = std::bit_ceil(std::max<size_t>(2 * merges.size(), 16));
  slots_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  for (const Merge& merge : merges) add_rule(merge);
  add_byte_rules();
}

void Bpe::add_byte_rules() {
  byte_rules_.resize(256 * 256);
  for (size_t first = 0; first < 256; ++first)
    for (size_t second = 0; second < 256; ++second)
      byte_rules_[first << 8 | second] =
          rule(byte_tokens_[first], byte_tokens_[second], std::string{char(first), char(second)});
}

void Bpe::add_rule(const Merge& merge) {
  for (int32_t id : {merge.first, merge.second, merge.merged})
    CHECK(id >= 0 && id < size(), "merge ", merge.rank, " names token ", id);
  const uint64_t key = key_of(merge.first, merge.second);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  ranks_ = std::max(ranks_, merge.rank + 1);
  slots_[slot] = {key, {merge.rank, merge.merged}};  // the last rank of a pair listed twice counts, as in `tokenizers`
}

std::vector<Merge> Bpe::merges_of_ranks(const TokenTable& tokens) {
  std::vector<Merge> merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t first = tokens.find(token.substr(0, cut));
      const int32_t second = first < 0 ? -1 : tokens.find(token.substr(cut));
      if (second >= 0) merges.push_back({first, second, int32_t(id), uint32_t(id)});
    }
  }
  return merges;
}

namespace {

constexpr size_t kCached = 24;          // maximum bytes of a cached piece
constexpr size_t kCachedIds = 9;        // maximum tokens of a cached piece; both together fill one cache line
constexpr size_t kWays = 2;             // associativity: cache lines that may hold a piece
constexpr size_t kCacheSets = 1 << 15;  // sets of kWays lines: 4 MiB per thread
constexpr size_t kShort = 48;           // up to this many bytes, scanning all neighbours is faster than the queue
constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

// Exact cache key of a short piece.
struct BpeEncoder::Key {
  std::array<uint64_t, kCached / 8> words{};
  uint64_t bytes = 0;

  Key() = default;
  // Eight bytes at a time; the last word ends with the piece and may overlap the word before it.
  explicit Key(std::string_view piece) : bytes(piece.size()) {
    if (bytes < 8) {
      words[0] = short_word(piece);
      return;
    }
    words[0] = word_at(piece, 0, 8);
    if (bytes > 16) words[1] = word_at(piece, 8, 8);
    words[2] = word_at(piece, bytes - 8, 8);
  }
  bool operator==(const Key&) const = default;

  // Multiply and mix with the odd constants of splitmix64 [Steele et al. 2014].
  uint64_t hash() const {
    uint64_t hash = (words[0] ^ bytes) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ (hash >> 29) ^ words[1]) * 0x94d049bb133111ebull;
    hash = (hash ^ (hash >> 31) ^ words[2]) * 0xbf58476d1ce4e5b9ull;
    return hash >> 40;
  }
};

struct alignas(64) BpeEncoder::CacheLine {
  std::array<uint64_t, kCached / 8> words;  // bytes of the Key
  uint8_t bytes = 0;                        // 0: empty
  uint8_t count = 0;
  std::array<int32_t, kCachedIds> ids;

  bool has(const Key& key) const { return bytes == key.bytes && words == key.words; }
};
struct BpeEncoder::CacheSet : std::array<CacheLine, kWays> {};

// A piece as a linked list of tokens that are merged.
struct BpeEncoder::Pieces {
  struct Node {
    int32_t token;
    uint32_t next, previous;
    uint32_t rank;   // rank of the pair (this, next); kNever: no rule, or the node was removed
    int32_t merged;  // token that the pair merges into
  };
  const Bpe& bpe;
  std::string_view piece;
  std::vector<Node> nodes;  // [piece's bytes]: a token's node is at its first byte; node 0 is the head of the list

  Pieces(const Bpe& b, std::string_view p) : bpe(b), piece(p) {
    CHECK(piece.size() < kNone / 4, "piece of ", piece.size(), " bytes");
    reset();
  }

  void reset() {
    nodes.resize(piece.size());
    uint32_t previous = kNone;
    for (uint32_t at = 0; at < uint32_t(piece.size());) {
      const Bpe::Symbol symbol = bpe.symbol_at(piece, at);
      const uint32_t next = at + symbol.bytes;
      nodes[at] = {symbol.token, next < piece.size() ? next : kNone, previous, Bpe::kNever, -1};
      previous = at;
      at = next;
    }
  }

  // Calls push(rank, node) for each pair that has a rule, from left to right.
  template <class Fn>
  void look_at_all(Fn&& push) {
    for (uint32_t at = 0; at != kNone; at = nodes[at].next)
      if (look(at)) push(nodes[at].rank, at);
  }

  // Finds the merge rule of the pair that begins at a node; false: none.
  bool look(uint32_t at) {
    Node& node = nodes[at];
    Bpe::Rule rule;
    if (node.next != kNone) {
      const size_t end = std::min<size_t>(nodes[node.next].next, piece.size());
      rule = bpe.rule(node.token, nodes[node.next].token, piece.substr(at, end - at));
    }
    node.rank = rule.rank;
    node.merged = rule.merged;
    return rule.rank != Bpe::kNever;
  }

  void merge(uint32_t at) {
    Node& node = nodes[at];
    Node& gone = nodes[node.next];
    node.token = node.merged;
    node.next = gone.next;
    node.rank = gone.rank = Bpe::kNever;
    if (node.next != kNone) nodes[node.next].previous = at;
  }
};

// Priority queue of mergeable pairs: a list per rank, and a 64-way tree of bit words that finds the lowest rank in use.
// Every operation takes constant time.
struct BpeEncoder::Queue {
  struct Entry {
    uint32_t node, next;
  };
  std::vector<Entry> entries;
  std::vector<uint32_t> first, last;          // [ranks]
  std::array<std::vector<uint64_t>, 4> used;  // level 0 has a bit per rank, each higher level a bit per word of the
                                              // level below

  explicit Queue(uint32_t ranks) : first(ranks, kNone), last(ranks, kNone) {
    size_t words = ranks;
    for (auto& level : used) level.resize(words = (words + 63) / 64);
    CHECK(used.back().size() <= 1, "too many merges: ", ranks);
  }

  void clear() {
    for (uint32_t rank = least(); rank != kNone; rank = least()) pop(rank);
    entries.clear();
  }

  void push(uint32_t rank, uint32_t node) {
    const auto entry = uint32_t(entries.size());
    entries.push_back({node, kNone});
    if (first[rank] == kNone) {
      size_t bit = rank;
      for (auto& level : used) {
        level[bit / 64] |= uint64_t{1} << (bit % 64);
        bit /= 64;
      }
      first[rank] = entry;
    } else {
      entries[last[rank]].next = entry;
    }
    last[rank] = entry;
  }

  // The lowest rank in use; kNone if there is none.
  uint32_t least() const {
    if (used[3].empty() || used[3][0] == 0) return kNone;
    size_t word = 0;
    for (size_t level = 4; level-- > 0;) word = word * 64 + size_t(std::countr_zero(used[level][word]));
    return uint32_t(word);
  }

  uint32_t pop(uint32_t rank) {
    const Entry entry = entries[first[rank]];
    first[rank] = entry.next;
    size_t bit = rank;
    for (auto level = used.begin(); entry.next == kNone && level != used.end(); ++level, bit /= 64) {
      (*level)[bit / 64] &= ~(uint64_t{1} << (bit % 64));
      if ((*level)[bit / 64] != 0) break;
    }
    return entry.node;
  }
};

class BpeEncoder::Output {
 public:
  Output(const Bpe& bpe, std::vector<int32_t>& out) : bpe_(bpe), out_(out) {}
  void add(int32_t token, std::string_view text) {
    if (token >= 0)
      out_.push_back(token);
    else
      bpe_.unknown().append(text, after_unknown_, out_);
    after_unknown_ = token < 0;
  }

 private:
  const Bpe& bpe_;
  std::vector<int32_t>& out_;
  bool after_unknown_ = false;
};

BpeEncoder::BpeEncoder(const Bpe& bpe) : bpe_(bpe), cache_(kCacheSets) {}
BpeEncoder::~BpeEncoder() = default;

void BpeEncoder::append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) {
  for (; pieces.size() > kBatch; pieces = pieces.subspan(kBatch)) append_batch(pieces.first(kBatch), out);
  append_batch(pieces, out);
}

// Cache misses dominate, so the cache sets of all pieces are prefetched first.
void BpeEncoder::append_batch(std::span<const std::string_view> pieces, std::vector<int32_t>& out) {
  std::array<Key, kBatch> keys;
  std::array<CacheSet*, kBatch> sets;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].size() == 1 || pieces[i].size() > kCached) continue;
    keys[i] = Key(pieces[i]);
    sets[i] = &cache_[keys[i].hash() % kCacheSets];
    for (const CacheLine& line : *sets[i]) __builtin_prefetch(&line);
  }
  std::array<int32_t, kBatch * kCachedIds> ids;  // ids not yet copied to `out`
  size_t count = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t bytes = pieces[i].size();
    const bool cached = bytes > 1 && bytes <= kCached;
    if (const int32_t token = bytes == 1 ? bpe_.token_of_byte(uint8_t(pieces[i][0])) : -1; token >= 0) {
      ids[count++] = token;
    } else if (const CacheLine* line = cached ? found(*sets[i], keys[i]) : nullptr) {
      std::copy(line->ids.begin(), line->ids.end(), &ids[count]);  // copies the whole array: a size known at compile
                                                                   // time is faster
      count += line->count;
    } else {
      out.insert(out.end(), ids.data(), ids.data() + std::exchange(count, 0));
      const size_t before = out.size();
      merge(pieces[i], out);
      if (cached) remember(*sets[i], keys[i], std::span(out).subspan(before));
    }
  }
  out.insert(out.end(), ids.data(), ids.data() + count);
}

const BpeEncoder::CacheLine* BpeEncoder::found(const CacheSet& set, const Key& key) {
  for (const CacheLine& line : set)
    if (line.has(key)) return &line;
  return nullptr;
}

void BpeEncoder::remember(CacheSet& set, const Key& key, std::span<const int32_t> ids) {
  if (ids.size() > kCachedIds) return;
  std::copy_backward(set.begin(), set.end() - 1, set.end());  // evicts the oldest line
  set[0] = {.words = key.words, .bytes = uint8_t(key.bytes), .count = uint8_t(ids.size()), .ids = {}};
  std::copy(ids.begin(), ids.end(), set[0].ids.begin());
}

void BpeEncoder::merge(std::string_view piece, std::vector<int32_t>& out) {
  if (bpe_.whole_pieces()) {
    if (const int32_t id = bpe_.token_of(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  if (piece.size() <= kShort)
    merge_short(piece, out);
  else
    merge_long(piece, out);
}

void BpeEncoder::merge_short(std::string_view piece, std::vector<int32_t>& out) {
  std::array<int32_t, kShort> tokens;
  std::array<uint8_t, kShort + 1> begins;  // offsets of the tokens in the piece, then the piece's end
  std::array<Bpe::Rule, kShort> rules;     // rules[i]: rule of tokens[i] and tokens[i + 1]
  size_t count = 0;
  for (size_t at = 0; at < piece.size(); ++count) {
    const Bpe::Symbol symbol = bpe_.symbol_at(piece, at);
    tokens[count] = symbol.token;
    begins[count] = uint8_t(at);
    at += symbol.bytes;
  }
  begins[count] = uint8_t(piece.size());
  const auto look = [&](size_t i) {
    const auto both = piece.substr(begins[i], size_t(begins[i + 2] - begins[i]));
    rules[i] = both.size() == 2 ? bpe_.rule_of_bytes(uint8_t(both[0]), uint8_t(both[1]))
                                : bpe_.rule(tokens[i], tokens[i + 1], both);
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (rules[i].rank < rules[best].rank) best = i;
    if (rules[best].rank == Bpe::kNever) break;
    tokens[best] = rules[best].merged;
    const auto drop = [count](auto& all, size_t at) {
      std::copy(all.begin() + ptrdiff_t(at) + 1, all.begin() + ptrdiff_t(count), all.begin() + ptrdiff_t(at));
    };
    drop(tokens, best + 1);
    drop(begins, best + 1);
    begins[count - 1] = uint8_t(piece.size());
    drop(rules, best);
    --count;
    if (best + 1 < count) look(best);
    if (best > 0) look(best - 1);
  }
  Output output(bpe_, out);
  for (size_t i = 0; i < count; ++i) output.add(tokens[i], piece.substr(begins[i], size_t(begins[i + 1] - begins[i])));
}

// Performs all merges. Returns false if a merge made a pair of lower or equal rank: then the order of equal pairs
// matters, and the queue does not keep it. Trained vocabularies have no such pair.
bool BpeEncoder::merge_by_queue(Pieces& p) {
  if (!queue_) queue_ = std::make_unique<Queue>(bpe_.ranks());
  Queue& q = *queue_;
  q.clear();
  p.look_at_all([&](uint32_t rank, uint32_t at) { q.push(rank, at); });
  for (uint32_t rank = q.least(); rank != kNone; rank = q.least()) {
    uint32_t at = q.pop(rank);
    if (p.nodes[at].rank != rank) continue;  // stale entry: the node has merged differently meanwhile
    // Overlapping pairs, as in "aaa", merge from left to right, whatever their order in the queue.
    while (p.nodes[at].previous != kNone && p.nodes[p.nodes[at].previous].rank == rank) at = p.nodes[at].previous;
    for (; at != kNone && p.nodes[at].rank == rank; at = p.nodes[at].next) {
      p.merge(at);
      for (const uint32_t changed : {at, p.nodes[at].previous}) {
        if (changed == kNone || !p.look(changed)) continue;
        if (p.nodes[changed].rank <= rank) return false;
        q.push(p.nodes[changed].rank, changed);
      }
    }
  }
  return true;
}

void BpeEncoder::merge_by_heap(Pieces& p) {
  using Place = std::pair<uint32_t, uint32_t>;  // rank, node; nodes are in text order
  std::priority_queue<Place, std::vector<Place>, std::greater<>> heap;
  p.look_at_all([&](uint32_t rank, uint32_t at) { heap.emplace(rank, at); });
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (p.nodes[at].rank != rank) continue;
    p.merge(at);
    for (const uint32_t changed : {at, p.nodes[at].previous})
      if (changed != kNone && p.look(changed)) heap.emplace(p.nodes[changed].rank, changed);
  }
}

void BpeEncoder::merge_long(std::string_view piece, std::vector<int32_t>& out) {
  Pieces pieces(bpe_, piece);
  if (!merge_by_queue(pieces)) {
    pieces.reset();
    merge_by_heap(pieces);
  }
  Output output(bpe_, out);
  for (uint32_t at = 0; at != kNone; at = pieces.nodes[at].next)
    output.add(pieces.nodes[at].token, piece.substr(at, std::min<size_t>(pieces.nodes[at].next, piece.size()) - at));
}

}  // namespace athanor
