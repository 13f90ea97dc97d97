#include "convert/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tensor/half.h"

namespace athanor {
namespace {

constexpr int64_t kRows = 16;  // of the weight that share each row of the factor while it is in cache

// Square, row by row.
struct Square {
  std::vector<float> values;
  int64_t size;
  float* row(int64_t i) { return values.data() + i * size; }
  float& at(int64_t i, int64_t j) { return values[size_t(i * size + j)]; }
};

// Inputs that are always 0 decide nothing: their columns become 0.
std::vector<int64_t> dead_inputs(Square& h) {
  std::vector<int64_t> dead;
  for (int64_t i = 0; i < h.size; ++i)
    if (h.at(i, i) <= 0) h.at(i, i) = 1, dead.push_back(i);
  return dead;
}

Square permuted(const Square& h, const std::vector<int64_t>& order) {
  Square out{std::vector<float>(h.values.size()), h.size};
  for (int64_t i = 0; i < h.size; ++i)
    for (int64_t j = 0; j < h.size; ++j) out.at(i, j) = h.values[size_t(order[size_t(i)] * h.size + order[size_t(j)])];
  return out;
}

// In place: symmetric h -> upper R with h = R R^T, from the last row up; false if h is not positive definite.
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
        for (int64_t j = i; j < k; ++j) row[j] -= factor * column[size_t(j)];  // the upper half suffices
      }
    });
  }
  for (int64_t i = 0; i < h.size; ++i) std::fill(h.row(i), h.row(i) + i, 0.0f);
  return true;
}

// The inverse of an upper triangle: U with h^-1 = U^T U.
Square inverse(Square r, ThreadPool& pool) {
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

Square inverse_factor(const Square& h, const GptqOptions& o, std::string_view what, ThreadPool& pool) {
  double mean = 0;
  for (int64_t i = 0; i < h.size; ++i) mean += double(h.values[size_t(i * h.size + i)]) / double(h.size);
  for (double damping = o.damping; damping < 1; damping += 0.05) {
    Square damped = h;
    for (int64_t i = 0; i < h.size; ++i) damped.at(i, i) += float(damping * mean);
    if (factor(damped, pool)) return inverse(std::move(damped), pool);
  }
  throw Error(cat(what,
                  ": its inputs on the calibration text have no usable second moments; give more text by "
                  "--calibrate and --calibrate-samples"));
}

float scale_of(const float* w, int64_t count, int bits) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(w[i]));
  const float scale = to_float(from_float<f16>((largest > 0 ? 2 * largest : 2.0f) / float((1 << bits) - 1)));
  return scale > 0 ? scale : 0x1p-24f;  // f16's least
}

}  // namespace

GptqMatrix quantize_gptq(GptqProblem p, const GptqOptions& o, ThreadPool& pool) {
  const int64_t in = p.in, out = p.out, group = o.group > 0 ? o.group : in, groups = in / group;
  CHECK(in % group == 0 && int64_t(p.weight.size()) == out * in && int64_t(p.hessian.size()) == in * in, p.what);
  Square h{std::move(p.hessian), in};
  const std::vector<int64_t> dead = dead_inputs(h);
  std::vector<int64_t> order(static_cast<size_t>(in));
  std::iota(order.begin(), order.end(), 0);
  if (o.act_order) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return h.at(a, a) > h.at(b, b); });
    h = permuted(h, order);
  }
  Square u = inverse_factor(h, o, p.what, pool);
  GptqMatrix result{.codes = std::vector<uint8_t>(p.weight.size()),
                    .scales = std::vector<float>(static_cast<size_t>(groups * out)),
                    .group_of = std::vector<int32_t>(static_cast<size_t>(in))};
  for (int64_t i = 0; i < in; ++i) result.group_of[size_t(order[size_t(i)])] = int32_t(i / group);
  const int half = 1 << (o.bits - 1);
  pool.parallel_ranges(out, kRows, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>((end - begin) * in));  // in the order of rounding
    for (int64_t r = begin; r < end; ++r) {
      float* const original = p.weight.data() + r * in;
      for (const int64_t i : dead) original[i] = 0;
      for (int64_t i = 0; i < in; ++i) rows[size_t((r - begin) * in + i)] = original[order[size_t(i)]];
    }
    for (int64_t i = 0; i < in; ++i) {
      const float* const moves = u.row(i);
      for (int64_t r = begin; r < end; ++r) {
        float* const w = rows.data() + (r - begin) * in;
        float& scale = result.scales[size_t(i / group * out + r)];
        if (i % group == 0) scale = scale_of(w + i, group, o.bits);
        const float code = std::clamp(std::nearbyint(w[i] / scale), -float(half), float(half - 1));
        result.codes[size_t(r * in + order[size_t(i)])] = uint8_t(int(code) + half);
        const float error = (w[i] - code * scale) / moves[i];
        for (int64_t j = i + 1; j < in; ++j) w[j] -= error * moves[j];
      }
    }
  });
  return result;
}

}  // namespace athanor
