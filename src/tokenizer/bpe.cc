#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <thread>
#include <utility>

#include "base/error.h"

namespace athanor {

Bpe::Bpe(std::vector<std::string> tokens, const std::vector<Merge>& merges, bool whole_pieces)
    : tokens_(std::move(tokens)), whole_pieces_(whole_pieces), index_(tokens_) {
  CHECK(tokens_.size() < size_t{INT32_MAX} && merges.size() < size_t{kNever}, "vocabulary of ", tokens_.size());
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = char(byte);
    byte_tokens_[byte] = token_of({&c, 1});
    if (byte_tokens_[byte] < 0)
      throw Error(cat("the vocabulary has no token for the byte ", byte, ": only byte-level vocabularies are read"),
                  Exit::usage);
  }
  const size_t slots = std::bit_ceil(std::max<size_t>(2 * merges.size(), 16));
  slots_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  for (const Merge& merge : merges) add_rule(merge);
  byte_rules_.resize(256 * 256);
  for (size_t first = 0; first < 256; ++first)
    for (size_t second = 0; second < 256; ++second)
      byte_rules_[first << 8 | second] = rule(byte_tokens_[first], byte_tokens_[second]);
}

void Bpe::add_rule(const Merge& merge) {
  for (int32_t id : {merge.first, merge.second, merge.merged})
    CHECK(id >= 0 && id < size(), "merge ", merge.rank, " names token ", id);
  const uint64_t key = key_of(merge.first, merge.second);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  ranks_ = std::max(ranks_, merge.rank + 1);
  slots_[slot] = {key,
                  {merge.rank, merge.merged}};  // a pair that is there twice has its last place, as in `tokenizers`
}

int32_t Bpe::token_of(std::string_view bytes) const { return index_.find(bytes, tokens_); }

std::vector<Merge> Bpe::merges_of_ranks(const std::vector<std::string>& tokens) {
  const TokenIndex index(tokens);
  // Most of the time that a large rank file takes to load goes here, so threads share the tokens out.
  constexpr size_t kTokensOfThread = 1 << 15;
  const size_t count = std::clamp<size_t>(tokens.size() / kTokensOfThread, 1, 8);
  std::vector<std::vector<Merge>> parts(count);
  const auto find_part = [&](size_t part) {
    for (size_t id = tokens.size() * part / count; id < tokens.size() * (part + 1) / count; ++id) {
      const std::string_view token = tokens[id];
      for (size_t cut = 1; cut < token.size(); ++cut) {
        const int32_t first = index.find(token.substr(0, cut), tokens);
        const int32_t second = first < 0 ? -1 : index.find(token.substr(cut), tokens);
        if (second >= 0) parts[part].push_back({first, second, int32_t(id), uint32_t(id)});
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t part = 1; part < count; ++part) threads.emplace_back(find_part, part);
  find_part(0);
  threads.clear();  // joins
  for (size_t part = 1; part < count; ++part) parts[0].insert(parts[0].end(), parts[part].begin(), parts[part].end());
  return std::move(parts[0]);
}

// ---- BpeEncoder

namespace {

constexpr size_t kCached = 24;           // bytes of a piece that is remembered, at most
constexpr size_t kCachedIds = 9;         // and its tokens: together one cache line
constexpr size_t kCacheLines = 1 << 16;  // 4 MiB a thread
constexpr size_t kShort = 48;            // bytes up to which looking at every neighbour beats the queue
constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

struct alignas(64) BpeEncoder::CacheLine {
  std::array<char, kCached> piece;  // zeros behind its end
  uint8_t bytes = 0;                // 0: empty
  uint8_t count = 0;
  std::array<int32_t, kCachedIds> ids;
};

// A piece as a list of tokens that merge.
struct BpeEncoder::Pieces {
  struct Node {
    int32_t token;
    uint32_t next, previous;
    uint32_t rank;   // of the pair (this, next); kNever: there is none, or the node is gone
    int32_t merged;  // what that pair becomes
  };
  std::vector<Node> nodes;

  void reset(std::string_view piece, const Bpe& bpe) {
    CHECK(piece.size() < kNone / 4, "piece of ", piece.size(), " bytes");
    nodes.resize(piece.size());
    const auto count = uint32_t(piece.size());
    for (uint32_t i = 0; i < count; ++i)
      nodes[i] = {bpe.token_of_byte(uint8_t(piece[i])), i + 1 < count ? i + 1 : kNone, i > 0 ? i - 1 : kNone,
                  Bpe::kNever, -1};
  }

  // Finds the rule of the pair that begins at a node; false: none.
  bool look(uint32_t at, const Bpe& bpe) {
    Node& node = nodes[at];
    const Bpe::Rule rule = node.next == kNone ? Bpe::Rule{} : bpe.rule(node.token, nodes[node.next].token);
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

// Pairs that may merge, by rank: a list for each rank, and a tree of bit words, 64 ways, that finds the least rank in
// use. Every operation takes constant time.
struct BpeEncoder::Queue {
  struct Entry {
    uint32_t node, next;
  };
  std::vector<Entry> entries;
  std::vector<uint32_t> first, last;          // [ranks]
  std::array<std::vector<uint64_t>, 4> used;  // level 0 has a bit for each rank; the others one for each word below

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

  // The least rank in use; kNone when there is none.
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

BpeEncoder::BpeEncoder(const Bpe& bpe) : bpe_(bpe), cache_(std::make_unique<CacheLine[]>(kCacheLines)) {}
BpeEncoder::~BpeEncoder() = default;

void BpeEncoder::append(std::string_view piece, std::vector<int32_t>& out) {
  if (piece.size() == 1) {
    out.push_back(bpe_.token_of_byte(uint8_t(piece[0])));
    return;
  }
  if (piece.size() > kCached) {
    merge(piece, out);
    return;
  }
  std::array<char, kCached> key{};
  std::copy(piece.begin(), piece.end(), key.begin());
  const auto words = std::bit_cast<std::array<uint64_t, kCached / 8>>(key);
  // Multiply and mix, odd constants of splitmix64 [Steele et al. 2014].
  uint64_t hash = (words[0] ^ piece.size()) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 29) ^ words[1]) * 0x94d049bb133111ebull;
  hash = (hash ^ (hash >> 31) ^ words[2]) * 0xbf58476d1ce4e5b9ull;
  CacheLine& line = cache_[(hash >> 40) & (kCacheLines - 1)];
  if (line.bytes == piece.size() && line.piece == key) {
    out.insert(out.end(), line.ids.begin(), line.ids.begin() + line.count);
    return;
  }
  const size_t before = out.size();
  merge(piece, out);
  const size_t count = out.size() - before;
  if (count > kCachedIds) return;
  line.piece = key;
  line.bytes = uint8_t(piece.size());
  line.count = uint8_t(count);
  std::copy(out.begin() + ptrdiff_t(before), out.end(), line.ids.begin());
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
  std::array<Bpe::Rule, kShort> rules;  // rules[i]: of tokens[i] and tokens[i + 1]
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) tokens[i] = bpe_.token_of_byte(uint8_t(piece[i]));
  for (size_t i = 0; i + 1 < count; ++i) rules[i] = bpe_.rule_of_bytes(uint8_t(piece[i]), uint8_t(piece[i + 1]));
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (rules[i].rank < rules[best].rank) best = i;
    if (rules[best].rank == Bpe::kNever) break;
    tokens[best] = rules[best].merged;
    std::copy(tokens.begin() + ptrdiff_t(best) + 2, tokens.begin() + ptrdiff_t(count),
              tokens.begin() + ptrdiff_t(best) + 1);
    std::copy(rules.begin() + ptrdiff_t(best) + 1, rules.begin() + ptrdiff_t(count) - 1,
              rules.begin() + ptrdiff_t(best));
    --count;
    if (best + 1 < count) rules[best] = bpe_.rule(tokens[best], tokens[best + 1]);
    if (best > 0) rules[best - 1] = bpe_.rule(tokens[best - 1], tokens[best]);
  }
  out.insert(out.end(), tokens.begin(), tokens.begin() + ptrdiff_t(count));
}

// Merges everything that may merge. False: a merge made a pair that goes before itself, so the order of equal pairs
// matters and the queue, which does not keep it, is no help. Trained vocabularies have no such pair.
bool BpeEncoder::merge_by_queue(Pieces& p) {
  if (!queue_) queue_ = std::make_unique<Queue>(bpe_.ranks());
  Queue& q = *queue_;
  q.clear();
  for (uint32_t i = 0; i < p.nodes.size(); ++i)
    if (p.look(i, bpe_)) q.push(p.nodes[i].rank, i);
  for (uint32_t rank = q.least(); rank != kNone; rank = q.least()) {
    uint32_t at = q.pop(rank);
    if (p.nodes[at].rank != rank) continue;  // it merged otherwise meanwhile
    // Pairs that overlap, as in "aaa", go from left to right, whatever their order in the queue.
    while (p.nodes[at].previous != kNone && p.nodes[p.nodes[at].previous].rank == rank) at = p.nodes[at].previous;
    for (; at != kNone && p.nodes[at].rank == rank; at = p.nodes[at].next) {
      p.merge(at);
      for (const uint32_t changed : {at, p.nodes[at].previous}) {
        if (changed == kNone || !p.look(changed, bpe_)) continue;
        if (p.nodes[changed].rank <= rank) return false;
        q.push(p.nodes[changed].rank, changed);
      }
    }
  }
  return true;
}

void BpeEncoder::merge_by_heap(Pieces& p) {
  using Place = std::pair<uint32_t, uint32_t>;  // rank, node: nodes are in the order of the text
  std::priority_queue<Place, std::vector<Place>, std::greater<>> heap;
  for (uint32_t i = 0; i < p.nodes.size(); ++i)
    if (p.look(i, bpe_)) heap.emplace(p.nodes[i].rank, i);
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (p.nodes[at].rank != rank) continue;
    p.merge(at);
    for (const uint32_t changed : {at, p.nodes[at].previous})
      if (changed != kNone && p.look(changed, bpe_)) heap.emplace(p.nodes[changed].rank, changed);
  }
}

void BpeEncoder::merge_long(std::string_view piece, std::vector<int32_t>& out) {
  Pieces pieces;
  pieces.reset(piece, bpe_);
  if (!merge_by_queue(pieces)) {
    pieces.reset(piece, bpe_);
    merge_by_heap(pieces);
  }
  for (uint32_t at = 0; at != kNone; at = pieces.nodes[at].next) out.push_back(pieces.nodes[at].token);
}

}  // namespace athanor
