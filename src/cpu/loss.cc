// Softmax cross-entropy per row of logits: one sweep for the maximum and the sum of exponentials (online, block by
// block [Milakov & Gimelshein 2018]), one sweep that writes the gradient while the row is still in the L2 cache.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace athanor {
namespace {

constexpr int64_t kBlock = 2048;  // logits per step of the online sum: read twice from the L1 cache

struct LogSum {
  float base;  // the largest logit; 0 when all are -inf
  double sum;  // of exp(logit - base)
};

template <class T>
ATHANOR_INLINE LogSum log_sum(const T* x, int64_t vocab) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float max = -kInf;
  LogSum s{0, 0};
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const T* block = x + begin;
    const int64_t n = vocab - begin < kBlock ? vocab - begin : kBlock;
    float block_max = max;
#pragma omp simd reduction(max : block_max)
    for (int64_t i = 0; i < n; ++i) {
      const float v = to_float(block[i]);
      block_max = v > block_max ? v : block_max;
    }
    if (block_max > max) s.sum *= double(exp_nonpositive(max - block_max));
    max = block_max;
    s.base = max == -kInf ? 0 : max;  // -inf - -inf would be NaN
    float block_sum = 0;
#pragma omp simd reduction(+ : block_sum)
    for (int64_t i = 0; i < n; ++i) block_sum += exp_nonpositive(to_float(block[i]) - s.base);
    s.sum += double(block_sum);
  }
  return s;
}

struct XentRow {
  int64_t vocab, padded;
  float scale;  // of the gradient
  bool grad;
};

// Returns the loss of one row; with grad, x becomes scale (softmax(x) - onehot(target)).
template <class T>
ATHANOR_CLONES float xent_row(T* x, int32_t target, const XentRow& a) {
  const LogSum s = log_sum(x, a.vocab);
  const float logit = to_float(x[target]);
  const float loss = float(std::log(s.sum) + (double(s.base) - double(logit)));
  if (!a.grad) return loss;
  const float factor = float(double(a.scale) / s.sum), base = s.base;
#pragma omp simd
  for (int64_t i = 0; i < a.vocab; ++i) x[i] = from_float<T>(exp_nonpositive(to_float(x[i]) - base) * factor);
  x[target] = from_float<T>(a.scale * float(double(exp_nonpositive(logit - base)) / s.sum - 1.0));
  std::memset(x + a.vocab, 0, size_t(a.padded - a.vocab) * sizeof(T));
  return loss;
}

}  // namespace

void CpuOps::run(const CrossEntropy& op, void*) {
  const int64_t n = op.logits.rows(), padded = op.logits.cols();
  const int32_t* targets = flat<int32_t>(op.targets);
  float* losses = flat<float>(op.losses);
  for (int64_t i = 0; i < n; ++i)
    if (targets[i] >= op.vocab)
      throw Error(cat(op.kName, ": targets[", i, "] = ", targets[i], " is outside the vocabulary of ", op.vocab));
  const XentRow row{op.vocab, padded, op.grad ? *op.scale.as<float>() * op.inv_count : 0, op.grad};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(n, row_grain(padded), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* x = logits + i * padded;
        losses[i] = targets[i] < 0 ? 0 : xent_row(x, targets[i], row);
        if (targets[i] < 0 && op.grad) std::memset(x, 0, size_t(padded) * sizeof(T));
      }
    });
  });
}

}  // namespace athanor
