// NF4 weights, DoRA's column scaling, and 2:4 sparsity.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "reference/reference_ops.h"
#include "reference/values.h"
#include "tensor/half.h"

namespace athanor {
namespace {

// Returns the indices of the pruned elements, two of every four.
std::vector<int64_t> pruned_of(const Values& x) {
  std::vector<int64_t> pruned;
  for (int64_t at = 0; at < x.size(); at += 4) {
    std::array<int64_t, 4> order;
    std::iota(order.begin(), order.end(), at);
    std::ranges::stable_sort(order, {}, [&](int64_t i) { return std::abs(to_float(from_float<bf16>(float(x[i])))); });
    pruned.insert(pruned.end(), {order[0], order[1]});
  }
  return pruned;
}

}  // namespace

void ReferenceOps::run(const KeepTwoOfFour& op, void*) {
  Values y = load(op.x);
  for (const int64_t i : pruned_of(y)) y[i] = 0;
  store(op.y, y);
}

void ReferenceOps::run(const DecayPruned& op, void*) {
  StepState state;
  std::memcpy(static_cast<void*>(&state), op.state.data, sizeof state);
  if (state.skip || state.grad_scale == 0) return;
  Values grad = load(op.grad);
  const Values w = load(op.w);
  for (const int64_t i : pruned_of(w)) grad[i] += double(op.decay) / double(state.grad_scale) * w[i];
  store(op.grad, grad);
}

void ReferenceOps::run(const DequantizeNf4& op, void*) {
  Values y = zeros_like(op.y);
  const auto* packed = op.packed.as<uint8_t>();
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t block = i / kNf4Block;
    float absmax = 0;
    if (op.nested()) {
      const float share = op.map.as<float>()[op.absmax.as<uint8_t>()[block]];
      absmax = share * op.nested_absmax.as<float>()[block / kNf4NestedBlock];
      absmax += *op.offset.as<float>();
    } else {
      absmax = op.absmax.as<float>()[block];
    }
    const int value = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
    y[i] = double(kNf4.value[value]) * double(absmax);
  }
  store(op.y, y);
}

void ReferenceOps::run(const Int8Gemm& op, void*) {
  Values d = zeros_like(op.d);
  const Values a = load(op.a), t = load(op.scales), bias = op.bias ? load(op.bias) : Values(1, d.cols);
  const auto* quantized = op.quantized.as<uint8_t>();
  const auto is_outlier = [&](double x) { return !(std::fabs(x) < double(op.limit())); };
  for (int64_t i = 0; i < d.rows; ++i) {
    float amax = 0;
    for (int64_t k = 0; k < a.cols; ++k)
      if (!is_outlier(a(i, k))) amax = std::max(amax, float(std::fabs(a(i, k))));
    const float inverse = int8_inverse(amax), scale = amax / kInt8Most;
    for (int64_t j = 0; j < d.cols; ++j) {
      double sum = 0, apart = 0;
      for (int64_t k = 0; k < a.cols; ++k) {
        const double w = double(quantized[j * a.cols + k]) - kInt8Offset;
        if (is_outlier(a(i, k)))
          apart += a(i, k) * t[j] * w;
        else
          sum += double(int8_code(float(a(i, k)), inverse)) * w;
      }
      d(i, j) = double(scale) * t[j] * sum + apart + bias[j];
    }
  }
  store(op.d, d);
}

void ReferenceOps::run(const ScaleByMagnitude& op, void*) {
  const Values x = load(op.x);
  Values y = op.accumulate ? load(op.y) : zeros_like(op.y);
  const Values m = op.magnitude ? load(op.magnitude) : Values(1, y.cols),
               b = op.bias ? load(op.bias) : Values(1, y.cols);
  for (int64_t c = 0; c < y.cols; ++c) {
    const double factor = op.magnitude ? double(float(m[c] / std::sqrt(op.squares.as<double>()[c]))) : 1;
    for (int64_t r = 0; r < y.rows; ++r) y(r, c) += x(r, c) * factor + b[c];
  }
  store(op.y, y);
}

void ReferenceOps::run(const ScaleByMagnitudeBwd& op, void*) {
  Values dx = load(op.dy), dm = load(op.dm);
  const Values x = load(op.x), m = load(op.magnitude);
  for (int64_t c = 0; c < dx.cols; ++c) {
    const double norm = std::sqrt(op.squares.as<double>()[c]);
    for (int64_t r = 0; r < dx.rows; ++r) {
      dm[c] += dx(r, c) * x(r, c) / norm;
      dx(r, c) *= double(float(m[c] / norm));
    }
  }
  store(op.dx, dx);
  store(op.dm, dm);
}

}  // namespace athanor
