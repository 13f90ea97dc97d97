// The ops of ops/one_bit.h, one block at a time in the L1 cache.
#include "ops/one_bit.h"

#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

constexpr int64_t kBlocksAtOnce = 64;  // blocks per thread and chunk
constexpr auto kWords = int(kOneBitBlock / 32);

OneBitRecord* records_in(const Tensor& t) { return reinterpret_cast<OneBitRecord*>(t.as<uint8_t>()); }

// Compresses a block to C(x) and sets its error to x - C(x).
void compress(const float* x, const float* v, float* error, OneBitRecord& record) {
  double squares = 0;
  int count = 0;
  for (int64_t i = 0; i < kOneBitBlock; ++i) {
    const double counted = v[i] != 0 ? double(x[i]) : 0;
    squares += counted * counted;
    count += v[i] != 0 ? 1 : 0;
  }
  const float scale = record.scale = one_bit_scale(squares, count);
  for (int w = 0; w < kWords; ++w) {
    uint32_t signs = 0;
    for (int i = 0; i < 32; ++i) signs |= uint32_t(v[w * 32 + i] != 0 && x[w * 32 + i] < 0) << i;
    record.signs[w] = signs;
  }
  for (int64_t i = 0; i < kOneBitBlock; ++i)
    if (v[i] != 0) error[i] = x[i] - (x[i] < 0 ? -scale : scale);
}

// Updates the fresh variance of a block, before its momentum changes, and returns the maximum of its ratios.
float add_to_variance(float* fresh, const OneBitRecord& record, const float* m, const float* v,
                      const OneBitScalars& a) {
  float most = 0;
  for (int64_t i = 0; i < kOneBitBlock; ++i) {
    if (v[i] == 0) continue;
    const float old = a.beta1 * m[i], moved = record.value(i, v[i]) - old, implied = moved / a.one_minus_beta1;
    const float kept = a.beta2 * (fresh[i] == 0 ? v[i] : fresh[i]), square = implied * implied;
    const float added = a.one_minus_beta2 * square;
    fresh[i] = kept + added;
    const float frozen = std::sqrt(v[i]) / a.root_bias2, now = std::sqrt(fresh[i]) / a.root_bias3;
    most = std::max(most, (frozen + a.eps) / (now + a.eps));
  }
  return most;
}

}  // namespace

void CpuOps::run(const OneBitMomentum& op, void*) {
  const StepState& s = update::state_of(op.state);
  const double beta1 = momentum_now(op.beta1, s);
  const auto keep = float(beta1), take = float(1 - beta1);
  pool_.parallel_ranges(op.blocks.count, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const bool own = op.blocks.is_own(b);
      const int64_t first = b * kOneBitBlock;
      const float *m = op.m.as<float>() + first, *v = op.v.as<float>() + first;
      float *grad = op.grad.as<float>() + first, *error = op.error.as<float>() + first;
      OneBitRecord* record = own ? nullptr : records_in(op.records) + op.blocks.slot(b);
      if (s.skip) {
        if (record) *record = {};
        continue;
      }
      float x[kOneBitBlock];
      for (int64_t i = 0; i < kOneBitBlock; ++i) {
        const float old = keep * m[i], scaled = grad[i] * s.grad_scale, now = take * scaled;
        x[i] = old + now;
      }
      if (own) {
        std::copy_n(x, kOneBitBlock, grad);
        continue;
      }
      for (int64_t i = 0; i < kOneBitBlock; ++i) x[i] += error[i];
      compress(x, v, error, *record);
    }
  });
}

void CpuOps::run(const OneBitMean& op, void*) {
  const StepState& s = update::state_of(op.state);
  const OneBitBlocks& blocks = op.blocks;
  const int order = blocks.order(blocks.worker);
  const int64_t served = blocks.served(order);
  OneBitRecord* records = records_in(op.records) + blocks.begin(order);
  pool_.parallel_ranges(served, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      if (s.skip) {
        records[n] = {};
        continue;
      }
      const int64_t first = (n * blocks.workers + order) * kOneBitBlock;
      const float *x = op.grad.as<float>() + first, *v = op.v.as<float>() + first;
      float *error = op.error.as<float>() + first, y[kOneBitBlock] = {};
      for (int w = 0; w < blocks.workers; ++w) {
        if (w == blocks.worker) {
          for (int64_t i = 0; i < kOneBitBlock; ++i) y[i] += x[i];
          continue;
        }
        const OneBitRecord& from = records_in(op.received)[w * served + n];
        for (int64_t i = 0; i < kOneBitBlock; ++i) y[i] += from.value(i, v[i]);
      }
      for (int64_t i = 0; i < kOneBitBlock; ++i) {
        const float mean = y[i] / float(blocks.workers);
        y[i] = mean + error[i];
      }
      compress(y, v, error, records[n]);
    }
  });
}

void CpuOps::run(const OneBitDirection& op, void*) {
  const StepState& s = update::state_of(op.state);
  const OneBitScalars a = one_bit_scalars(op, s);
  pool_.parallel_ranges(op.blocks.count, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kOneBitBlock;
      const float* v = op.v.as<float>() + first;
      float *m = op.m.as<float>() + first, *grad = op.grad.as<float>() + first;
      if (s.skip) {
        std::fill_n(grad, kOneBitBlock, 0.f);
        continue;
      }
      const OneBitRecord& record = records_in(op.records)[op.blocks.slot(b)];
      if (op.fresh) op.ratios.as<float>()[b] = add_to_variance(op.fresh.as<float>() + first, record, m, v, a);
      for (int64_t i = 0; i < kOneBitBlock; ++i) m[i] = record.value(i, v[i]);
      for (int64_t i = 0; i < kOneBitBlock; ++i) {
        const float root = std::sqrt(v[i]) / a.root_bias2, divisor = root + a.eps, unbiased = a.inverse_bias1 * m[i];
        grad[i] = v[i] != 0 ? unbiased / divisor : 0;
      }
      if (!op.w) continue;
      const float* w = op.w.as<float>() + first;
      for (int64_t i = 0; i < std::min(kOneBitBlock, op.decayed - first); ++i) {
        const float decay = (w[i] * grad[i] >= 0 ? a.decay : a.decay_away) * w[i];
        grad[i] += decay;
      }
    }
  });
}

}  // namespace athanor
