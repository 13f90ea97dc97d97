// Ops of ops/one_bit.h, block by block, in the precision of their definition.
#include "ops/one_bit.h"

#include <array>
#include <cstring>

#include "reference/reference_ops.h"

namespace athanor {
namespace {

using Block = std::array<float, kOneBitBlock>;

StepState state_in(const Tensor& t) {
  StepState s;
  std::memcpy(&s, t.data, sizeof s);
  return s;
}

OneBitRecord* records_in(const Tensor& t) { return reinterpret_cast<OneBitRecord*>(t.as<uint8_t>()); }

// Compresses a block to C(x) and sets its error to x - C(x).
OneBitRecord compress(const Block& x, const float* v, float* error) {
  double squares = 0;
  int count = 0;
  for (int64_t i = 0; i < kOneBitBlock; ++i)
    if (v[i] != 0) squares += double(x[size_t(i)]) * double(x[size_t(i)]), ++count;
  OneBitRecord record{.scale = one_bit_scale(squares, count), .signs = {}};
  for (int64_t i = 0; i < kOneBitBlock; ++i) {
    if (v[i] == 0) continue;
    if (x[size_t(i)] < 0) record.signs[i / 32] |= uint32_t{1} << (i % 32);
    error[i] = x[size_t(i)] - record.value(i, v[i]);
  }
  return record;
}

}  // namespace

void ReferenceOps::run(const OneBitMomentum& op, void*) {
  const StepState s = state_in(op.state);
  const double beta1 = momentum_now(op.beta1, s);
  const auto keep = float(beta1), take = float(1 - beta1);
  for (int64_t b = 0; b < op.blocks.count; ++b) {
    const int64_t first = b * kOneBitBlock;
    const float *m = op.m.as<float>() + first, *v = op.v.as<float>() + first;
    float *grad = op.grad.as<float>() + first, *error = op.error.as<float>() + first;
    const bool own = op.blocks.is_own(b);
    Block x;
    for (int64_t i = 0; i < kOneBitBlock; ++i) {
      const float old = keep * m[i], scaled = grad[i] * s.grad_scale, now = take * scaled;
      x[size_t(i)] = old + now;
      if (own && s.skip == 0) grad[i] = x[size_t(i)];
      if (!own) x[size_t(i)] += error[i];
    }
    if (own) continue;
    records_in(op.records)[op.blocks.slot(b)] = s.skip ? OneBitRecord{} : compress(x, v, error);
  }
}

void ReferenceOps::run(const OneBitMean& op, void*) {
  const StepState s = state_in(op.state);
  const int order = op.blocks.order(op.blocks.worker);
  const int64_t served = op.blocks.served(order);
  for (int64_t n = 0; n < served; ++n) {
    const int64_t first = (n * op.blocks.workers + order) * kOneBitBlock;
    const float *x = op.grad.as<float>() + first, *v = op.v.as<float>() + first;
    float* error = op.error.as<float>() + first;
    Block y = {};
    for (int64_t i = 0; i < kOneBitBlock; ++i) {
      float sum = 0;
      for (int w = 0; w < op.blocks.workers; ++w)
        sum += w == op.blocks.worker ? x[i] : records_in(op.received)[w * served + n].value(i, v[i]);
      const float mean = sum / float(op.blocks.workers);
      y[size_t(i)] = mean + error[i];
    }
    records_in(op.records)[op.blocks.begin(order) + n] = s.skip ? OneBitRecord{} : compress(y, v, error);
  }
}

void ReferenceOps::run(const OneBitDirection& op, void*) {
  const StepState s = state_in(op.state);
  const OneBitScalars a = one_bit_scalars(op, s);
  for (int64_t b = 0; b < op.blocks.count; ++b) {
    const OneBitRecord& record = records_in(op.records)[op.blocks.slot(b)];
    float most = 0;  // maximum of the block's ratios
    for (int64_t i = 0; i < kOneBitBlock; ++i) {
      const int64_t at = b * kOneBitBlock + i;
      const float v = op.v.as<float>()[at], m = record.value(i, v), old = op.m.as<float>()[at];
      float& grad = op.grad.as<float>()[at];
      grad = 0;
      if (s.skip) continue;
      op.m.as<float>()[at] = m;
      const float root = std::sqrt(v) / a.root_bias2, divisor = root + a.eps, unbiased = a.inverse_bias1 * m;
      if (v != 0) grad = unbiased / divisor;
      if (!op.fresh) continue;
      if (float& fresh = op.fresh.as<float>()[at]; v != 0) {
        const float moved = m - a.beta1 * old, implied = moved / a.one_minus_beta1, square = implied * implied;
        fresh = a.beta2 * (fresh == 0 ? v : fresh) + a.one_minus_beta2 * square;
        most = std::max(most, divisor / (std::sqrt(fresh) / a.root_bias3 + a.eps));
      }
      const float w = op.w.as<float>()[at];
      if (at < op.decayed) grad += (w * grad >= 0 ? a.decay : a.decay_away) * w;
    }
    if (op.ratios && !s.skip) op.ratios.as<float>()[b] = most;
  }
}

}  // namespace athanor
