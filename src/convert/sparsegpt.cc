#include "convert/sparsity.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "convert/hessian.h"

namespace athanor {
namespace {

constexpr int64_t kGroup = 4;

// u: diagonal element of U for column c; u^2 is (H^-1)_cc restricted to the columns from c on.
double score(float w, float u) { return double(w) * double(w) / (double(u) * double(u)); }

// Mask [out, end - begin] for a block of columns: selects the given fraction with the smallest scores.
std::vector<uint8_t> block_mask(const SparseGptProblem& p, const Square& u, int64_t begin, int64_t end, double share) {
  std::vector<double> scores;
  for (int64_t r = 0; r < int64_t(p.weight.size()); r += p.in)
    for (int64_t i = begin; i < end; ++i) scores.push_back(score(p.weight[size_t(r + i)], u.at(i, i)));
  return mask_of_smallest(scores, size_t(std::llround(share * double(scores.size()))));
}

// Masks two of the four columns starting at `column` in one row.
void mask_group(const float* row, const Square& u, int64_t column, uint8_t* mask) {
  std::array<double, kGroup> scores;
  for (int64_t i = 0; i < kGroup; ++i) scores[size_t(i)] = score(row[column + i], u.at(column + i, column + i));
  std::ranges::copy(mask_of_smallest(scores, kGroup / 2), mask);
}

// Sets w[column] to 0 and adjusts the following columns by its error.
void remove(float* w, int64_t column, const Square& u) {
  const float* const moves = u.row(column);
  const float error = w[column] / moves[column];
  w[column] = 0;
  for (int64_t j = column + 1; j < u.size; ++j) w[j] -= error * moves[j];
}

}  // namespace

void prune_by_sparsegpt(SparseGptProblem p, const Sparsity& sparsity, ThreadPool& pool) {
  const int64_t in = p.in, out = int64_t(p.weight.size()) / in;
  const bool groups = sparsity.pattern == PrunePattern::two_of_four;
  CHECK(int64_t(p.weight.size()) == out * in && int64_t(p.hessian.size()) == in * in, p.what);
  CHECK(!groups || (in % kGroup == 0 && p.mask_block % kGroup == 0), p.what, ": ", in, " inputs in groups of ", kGroup);
  Square h{std::move(p.hessian), in};
  for (const int64_t i : dead_inputs(h))  // irrelevant inputs
    for (int64_t r = 0; r < out; ++r) p.weight[size_t(r * in + i)] = 0;
  const Square u = inverse_factor(h, p.damping, p.what, pool);
  for (int64_t begin = 0; begin < in; begin += p.mask_block) {
    const int64_t end = std::min(in, begin + p.mask_block), columns = end - begin;
    std::vector<uint8_t> mask = groups ? std::vector<uint8_t>(static_cast<size_t>(out * columns))
                                       : block_mask(p, u, begin, end, sparsity.share);
    pool.parallel_ranges(out, kRowsTogether, [&](int64_t first, int64_t last) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t r = first; r < last; ++r) {
          float* const w = p.weight.data() + r * in;
          uint8_t* const removed = mask.data() + r * columns - begin;
          if (groups && i % kGroup == 0) mask_group(w, u, i, removed + i);
          if (removed[i]) remove(w, i, u);
        }
    });
  }
}

}  // namespace athanor
