#include "convert/hessian.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace athanor {
namespace {

// In-place factorization of symmetric h into upper R with h = R R^T, from the last row up; false if h is not positive
// definite.
bool factor(Square& h, ThreadPool& pool) {
  for (int64_t k = h.size - 1; k >= 0; --k) {
    const float pivot = h.at(k, k);
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const float root = std::sqrt(pivot);
    h.at(k, k) = root;
    for (int64_t i = 0; i < k; ++i) h.at(i, k) /= root;
    std::vector<float> column(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) column[size_t(i)] = h.at(i, k);
    pool.parallel_ranges(k, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = h.row(i);
        const float factor = column[size_t(i)];
        for (int64_t j = i; j < k; ++j) row[j] -= factor * column[size_t(j)];  // only the upper half is needed
      }
    });
  }
  for (int64_t i = 0; i < h.size; ++i) std::fill(h.row(i), h.row(i) + i, 0.0f);
  return true;
}

// Inverse U = r^-1 of the upper triangle r, so that h^-1 = U^T U.
Square inverse(const Square& r, ThreadPool& pool) {
  Square u{std::vector<float>(r.values.size()), r.size};
  // Row i of U solves U R = 1: U_ij = (1_ij - sum_{i<=k<j} U_ik R_kj) / R_jj.
  pool.parallel_for(r.size, [&](int64_t i) {
    float* row = u.row(i);
    row[i] = 1;
    for (int64_t k = i; k < r.size; ++k) {
      row[k] /= r.at(k, k);
      const float* from = r.row(k);
      const float factor = row[k];
      for (int64_t j = k + 1; j < r.size; ++j) row[j] -= factor * from[j];
    }
  });
  return u;
}

}  // namespace

std::vector<int64_t> dead_inputs(Square& h) {
  std::vector<int64_t> dead;
  for (int64_t i = 0; i < h.size; ++i)
    if (h.at(i, i) <= 0) h.at(i, i) = 1, dead.push_back(i);
  return dead;
}

Square inverse_factor(const Square& h, double damping, std::string_view what, ThreadPool& pool) {
  constexpr double kRise = 0.05;
  double mean = 0;
  for (int64_t i = 0; i < h.size; ++i) mean += double(h.at(i, i)) / double(h.size);
  for (; damping < 1; damping += kRise) {
    Square damped = h;
    for (int64_t i = 0; i < h.size; ++i) damped.at(i, i) += float(damping * mean);
    if (factor(damped, pool)) return inverse(damped, pool);
  }
  throw Error(cat(what,
                  ": its inputs on the calibration text have no usable second moments; give more text by "
                  "--calibrate and --calibrate-samples"));
}

}  // namespace athanor
