#include "data/best_fit.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <ostream>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "data/order.h"

namespace athanor {
namespace {

// Index of rows by free space: which sizes exist, and the latest row of each. Finds the smallest space of at least a
// given size in O(log capacity), with a tree of bits, 64 children per node.
class Spaces {
 public:
  explicit Spaces(int64_t capacity) : first_(size_t(capacity) + 1, kNone) {
    for (size_t bits = first_.size(); levels_.empty() || bits > 1; bits = levels_.back().size())
      levels_.emplace_back((bits + 63) / 64, 0);
  }
  void add(int64_t space, int32_t row) {
    if (size_t(row) >= next_.size()) next_.resize(size_t(row) + 1);
    next_[size_t(row)] = std::exchange(first_[size_t(space)], row);
    for (auto at = size_t(space); std::vector<uint64_t> & level : levels_) {
      level[at / 64] |= uint64_t{1} << at % 64;
      at /= 64;
    }
  }
  // The smallest space of at least `size`, or -1.
  int64_t find(int64_t size) const {
    auto at = size_t(size);
    for (size_t level = 0; level < levels_.size(); ++level) {
      if (at / 64 >= levels_[level].size()) return -1;
      const uint64_t word = levels_[level][at / 64] >> at % 64 << at % 64;
      if (word == 0) {
        at = at / 64 + 1;
        continue;
      }
      at = at / 64 * 64 + size_t(std::countr_zero(word));
      while (level-- > 0) at = at * 64 + size_t(std::countr_zero(levels_[level][at]));
      return int64_t(at);
    }
    return -1;
  }
  int32_t take(int64_t space) {
    int32_t& first = first_[size_t(space)];
    const int32_t row = first;
    first = next_[size_t(row)];
    if (first != kNone) return row;
    for (auto at = size_t(space); std::vector<uint64_t> & level : levels_) {
      uint64_t& word = level[at / 64];
      word &= ~(uint64_t{1} << at % 64);
      if (word != 0) break;
      at /= 64;
    }
    return row;
  }

 private:
  static constexpr int32_t kNone = -1;
  std::vector<int32_t> first_, next_;  // linked lists of rows with equal space: [capacity + 1], [rows]
  std::vector<std::vector<uint64_t>> levels_;
};

// Visits every full row of long documents, then the remainder of each document, longest first; equal lengths stay in
// the given order. Calls `whole(index, begin)` and `rest(index, begin, length)`.
template <class Whole, class Rest>
void for_each_piece(std::span<const uint32_t> lengths, std::span<const int32_t> order, int64_t most, Whole&& whole,
                    Rest&& rest) {
  std::vector<int32_t> starts(size_t(most) + 2, 0);  // counting sort of the remainders, descending
  const auto rest_of = [&](int32_t document) {
    const int64_t length = lengths[size_t(document)];
    return length == 0 ? 0 : (length - 1) % most + 1;
  };
  for (const int32_t document : order) ++starts[size_t(most - rest_of(document)) + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int32_t> sorted(order.size());
  for (const int32_t document : order) {
    const int64_t length = rest_of(document);
    sorted[size_t(starts[size_t(most - length)]++)] = document;
    for (int64_t begin = 0; begin + length < int64_t{lengths[size_t(document)]}; begin += most) whole(document, begin);
  }
  for (const int32_t document : sorted)
    if (const int64_t length = rest_of(document); length > 0)
      rest(document, int64_t{lengths[size_t(document)]} - length, length);
}

void require_sane(std::span<const uint32_t> lengths, int64_t capacity, int64_t extra) {
  CHECK(capacity > extra && extra >= 0 && capacity < int64_t{1} << 31, "rows of ", capacity, " places, extra ", extra);
  CHECK(lengths.size() < size_t{1} << 24, "a window of ", lengths.size(), " documents");
}

}  // namespace

PackingCounts& PackingCounts::operator+=(const PackingCounts& o) {
  documents += o.documents;
  cut += o.cut;
  rows += o.rows;
  pieces += o.pieces;
  tokens += o.tokens;
  unused += o.unused;
  return *this;
}

std::ostream& operator<<(std::ostream& out, const PackingCounts& c) {
  const auto share = [](int64_t part, int64_t all) { return all > 0 ? double(part) / double(all) : 0.0; };
  return out << format_text(
             "best-fit packed: %lld documents, %.2f%% of them cut, %.2f pieces a row, %.3f%% of the places unused",
             static_cast<long long>(c.documents), 100 * share(c.cut, c.documents), share(c.pieces, c.rows),
             100 * share(c.unused, c.unused + c.tokens));
}

PackedRows best_fit(std::span<const uint32_t> lengths, const BestFit& how) {
  require_sane(lengths, how.capacity, how.extra);
  if (lengths.empty()) return {.pieces = {}, .first_piece = {0}};
  const Permutation shuffled(int64_t(lengths.size()), how.seed, how.stream);
  std::vector<int32_t> order(lengths.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int32_t(shuffled(int64_t(i)));

  std::vector<std::vector<PackedPiece>> rows;
  Spaces spaces(how.capacity);
  for_each_piece(
      lengths, order, how.capacity - how.extra,
      [&](int32_t document, int64_t begin) {
        rows.push_back({{document, int32_t(begin), int32_t(how.capacity - how.extra)}});
      },
      [&](int32_t document, int64_t begin, int64_t length) {
        const int64_t size = length + how.extra, space = spaces.find(size);
        const int64_t row = space >= 0 ? spaces.take(space) : int64_t(rows.size());
        if (space < 0) rows.emplace_back();
        rows[size_t(row)].push_back({document, int32_t(begin), int32_t(length)});
        const int64_t left = (space >= 0 ? space : how.capacity) - size;
        if (left > how.extra) spaces.add(left, int32_t(row));
      });
  PackedRows packed{.pieces = {}, .first_piece = {0}};
  if (rows.empty()) return packed;
  const Permutation by_row(int64_t(rows.size()), how.seed, ~how.stream);
  for (int64_t i = 0; i < int64_t(rows.size()); ++i) {
    // Also shuffles the pieces within a row; otherwise the longest would always come first.
    auto& pieces = rows[size_t(by_row(i))];
    for (size_t left = pieces.size(); left > 1; --left) {
      const auto bits = philox(how.seed, how.stream, uint64_t(i) << 32 | left);
      std::swap(pieces[left - 1], pieces[bits[0] % left]);
    }
    packed.pieces.insert(packed.pieces.end(), pieces.begin(), pieces.end());
    packed.first_piece.push_back(int32_t(packed.pieces.size()));
  }
  return packed;
}

PackingCounts count_best_fit(std::span<const uint32_t> lengths, int64_t capacity, int64_t extra) {
  require_sane(lengths, capacity, extra);
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  PackingCounts counts;
  int32_t rows = 0;
  int64_t places = 0;
  Spaces spaces(capacity);
  for_each_piece(
      lengths, order, capacity - extra,
      [&](int32_t, int64_t) {
        ++rows;
        ++counts.pieces;
        places += capacity;
      },
      [&](int32_t document, int64_t begin, int64_t length) {
        const int64_t size = length + extra, space = spaces.find(size);
        const int32_t row = space >= 0 ? spaces.take(space) : rows++;
        const int64_t left = (space >= 0 ? space : capacity) - size;
        if (left > extra) spaces.add(left, row);
        ++counts.pieces;
        counts.cut += begin > 0;
        ++counts.documents;
        counts.tokens += lengths[size_t(document)];
        places += size;
      });
  counts.rows = rows;
  counts.unused = rows * capacity - places;
  return counts;
}

}  // namespace athanor
