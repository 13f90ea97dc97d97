// Greedy-by-size packing in nearly linear time. Most lifetimes in a deep model overlap, so comparing all pairs of
// blocks would take minutes for thousands of layers.
#include <algorithm>
#include <numeric>
#include <vector>

#include "device/arena.h"

namespace athanor {
namespace {

// Allocated bytes, as disjoint, non-adjacent ranges. Well-packed memory has few ranges.
class Taken {
 public:
  void add(size_t begin, size_t end) {
    const auto first = std::partition_point(ranges_.begin(), ranges_.end(), [&](const R& r) { return r.end < begin; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }

  // Returns `at` if [at, at + bytes) is free, else the end of the first range that overlaps it.
  size_t next_free(size_t at, size_t bytes) const {
    const auto r = std::partition_point(ranges_.begin(), ranges_.end(), [&](const R& x) { return x.end <= at; });
    return r != ranges_.end() && r->begin < at + bytes ? r->end : at;
  }
  bool empty() const { return ranges_.empty(); }

 private:
  struct R {
    size_t begin, end;
  };
  std::vector<R> ranges_;  // ascending
};

// Allocated ranges over time: a segment tree over moments. A node stores the ranges allocated at any moment of its
// span, and those allocated during the whole span.
class TakenOverTime {
 public:
  explicit TakenOverTime(size_t moments) : moments_(moments), nodes_(4 * std::max<size_t>(1, moments)) {}

  struct Span {
    size_t begin, end;  // moments
  };
  void add(Span life, size_t begin, size_t end) { add(1, {0, moments_}, life, begin, end); }

  // Returns the lowest offset at which `bytes` bytes are free during all of `life`.
  size_t first_free(Span life, size_t bytes) {
    found_.clear();
    collect(1, {0, moments_}, life);
    size_t at = 0;
    for (size_t before = 1; before != at;) {
      before = at;
      for (const Taken* taken : found_)
        for (size_t next; (next = taken->next_free(at, bytes)) != at;) at = next;
    }
    return at;
  }

 private:
  struct Node {
    Taken sometime, throughout;
  };

  void add(size_t node, Span span, Span life, size_t begin, size_t end) {
    if (life.end <= span.begin || span.end <= life.begin) return;
    nodes_[node].sometime.add(begin, end);
    if (life.begin <= span.begin && span.end <= life.end) return nodes_[node].throughout.add(begin, end);
    const size_t middle = (span.begin + span.end) / 2;
    add(2 * node, {span.begin, middle}, life, begin, end);
    add(2 * node + 1, {middle, span.end}, life, begin, end);
  }

  void collect(size_t node, Span span, Span life) {
    if (life.end <= span.begin || span.end <= life.begin || nodes_[node].sometime.empty()) return;
    if (life.begin <= span.begin && span.end <= life.end) return found_.push_back(&nodes_[node].sometime);
    if (!nodes_[node].throughout.empty()) found_.push_back(&nodes_[node].throughout);
    const size_t middle = (span.begin + span.end) / 2;
    collect(2 * node, {span.begin, middle}, life);
    collect(2 * node + 1, {middle, span.end}, life);
  }

  size_t moments_;
  std::vector<Node> nodes_;
  std::vector<const Taken*> found_;
};

// Returns the moments after a block has been allocated and before the next block is freed. Any two blocks that are ever
// alive at once are both alive at one of these moments.
std::vector<int64_t> fullest_moments(const std::vector<PlannedBlock>& blocks) {
  std::vector<int64_t> births, deaths, moments;
  for (const PlannedBlock& b : blocks) births.push_back(b.born), deaths.push_back(b.died);
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  for (auto born = births.begin(); born != births.end();) {
    const auto death = std::upper_bound(deaths.begin(), deaths.end(), *born);
    if (death == deaths.end()) break;
    born = std::lower_bound(born, births.end(), *death);
    moments.push_back(born[-1]);
  }
  return moments;
}

}  // namespace

size_t pack(std::vector<PlannedBlock>& blocks) {
  const std::vector<int64_t> moments = fullest_moments(blocks);
  const auto moment = [&](int64_t time) {
    return size_t(std::lower_bound(moments.begin(), moments.end(), time) - moments.begin());
  };
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  TakenOverTime taken(moments.size());
  size_t total = 0;
  for (size_t i : order) {
    PlannedBlock& b = blocks[i];
    const TakenOverTime::Span life{moment(b.born), moment(b.died)};
    b.offset = taken.first_free(life, b.bytes);
    if (b.bytes > 0) taken.add(life, b.offset, b.offset + b.bytes);
    total = std::max(total, b.offset + b.bytes);
  }
  return total;
}

}  // namespace athanor
