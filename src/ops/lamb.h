// Ops of LAMB [You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", alg. 2] and
// of its 1-bit variant: Adam's step direction, which replaces the gradient, and scaling by each tensor's trust ratio.
// Update clipping (optim/update_clipping.cc) uses AdamDirection without weight decay.
#pragma once
#include <vector>

#include "ops/update.h"

namespace athanor {

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = (m / c1) / (sqrt(v / c2) + eps);  r = u + wd w
// with g = grad * state.grad_scale and c1, c2 the corrections of the two averages, in f32; the gradient becomes r.
// Cautious, as in ops/update.h: the decay is left out where w u < 0. In a skipped step m and v are unchanged and the
// gradient becomes 0. bf16 moments are rounded after use, as in UpdatePart (ops/update.h).
struct AdamDirection {
  struct Part {
    Tensor w;                                               // [n] f32; absent in all parts if there is no decay
    Tensor m, v;                                            // [n] f32 or bf16
    Tensor grad;                                            // [n] f32
    int64_t decayed = std::numeric_limits<int64_t>::max();  // weight decay applies to elements below this index
    uint64_t moment_stream = 0, first = 0;
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  uint64_t seed = 0;
  int average1 = 0, average2 = 1;  // indices into StepState::corrections for beta1, beta2
  bool cautious = false;
  static constexpr const char* kName = "adam_direction";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(),
                 {{"w", Io::in, &p.w}, {"m", Io::inout, &p.m}, {"v", Io::inout, &p.v}, {"grad", Io::inout, &p.grad}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    const DType m = parts.front().m.dtype, v = parts.front().v.dtype;
    const bool decays = bool(parts.front().w);
    e.that(decays || weight_decay == 0, "weight_decay", "0 without w");
    e.that(m == DType::f32 || m == DType::bf16, "m", "f32 or bf16");
    e.that(v == DType::f32 || v == DType::bf16, "v", "f32 or bf16");
    for (const Part& p : parts) {
      const Shape& n = p.grad.shape;
      if (p.w) e.is("w", p.w, DType::f32, n);
      e.that(bool(p.w) == decays, "w", "in all parts or in none");
      e.is("m", p.m, m, n).is("v", p.v, v, n).is("grad", p.grad, DType::f32, n);
    }
  }
  Cost cost() const { return {14.0 * double(elements(parts, &Part::grad)), traffic(*this)}; }
};

// grad *= |w| / |r|, the trust ratio of the tensor that the part belongs to, or 1 if either norm is 0.
struct ScaleByTrustRatio {
  struct Part {
    Tensor grad;  // [n] f32
    Tensor sums;  // [2, S] f64: S partial sums of the squares of w, and S of r; both are added in order
  };
  std::vector<Part> parts = std::vector<Part>(1);
  static constexpr const char* kName = "scale_by_trust_ratio";
  std::vector<Field> fields() {
    std::vector<Field> all;
    for (Part& p : parts) all.insert(all.end(), {{"grad", Io::inout, &p.grad}, {"sums", Io::in, &p.sums}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      e.matrix("sums", p.sums).is("sums", p.sums, DType::f64, {2, p.sums.cols()});
      e.is("grad", p.grad, DType::f32, p.grad.shape);
    }
  }
  Cost cost() const { return {double(elements(parts, &Part::grad)), traffic(*this)}; }
};

// Trust ratios of 1-bit LAMB. While gradients are communicated uncompressed, |w| / |r|; afterwards the running average
// of those ratios times a factor that follows the variance (ops/one_bit.h). trust = {average, factor} of a tensor, both
// initially 0.
constexpr float kTrustDecay = 0.9F;                 // decay of the running average
constexpr float kMinFactor = 0.5F, kMaxFactor = 4;  // values of the paper's authors
constexpr float kFactorChange = 0.1F;               // maximum relative change of the factor in one step

// average = 0.9 average + 0.1 |w| / |r|, or the first ratio itself; unchanged in a skipped step.
struct AverageTrustRatio {
  struct Part {
    Tensor sums;   // [2, S] f64, as in ScaleByTrustRatio
    Tensor trust;  // [2] f32
  };
  std::vector<Part> parts = std::vector<Part>(1);
  Tensor state;  // StepState
  static constexpr const char* kName = "average_trust_ratio";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts) all.insert(all.end(), {{"sums", Io::in, &p.sums}, {"trust", Io::inout, &p.trust}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      e.matrix("sums", p.sums).is("sums", p.sums, DType::f64, {2, p.sums.cols()});
      e.is("trust", p.trust, DType::f32, {2});
    }
  }
  Cost cost() const { return {4.0 * double(parts.size()), traffic(*this)}; }
};

// factor = maximum of OneBitDirection::ratios over the tensor, clamped to [kMinFactor, kMaxFactor] and to within 10 %
// of the previous factor (initially 1; unchanged if no element has a variance). sums = {(average factor)^2, 1}, so that
// ScaleByTrustRatio scales by average * factor. A skipped step leaves trust unchanged and writes sums {1, 1}.
struct FrozenTrustRatio {
  struct Part {
    Tensor max;    // [1] f32
    Tensor trust;  // [2] f32
    Tensor sums;   // [2, 1] f64
  };
  std::vector<Part> parts = std::vector<Part>(1);
  Tensor state;  // StepState
  static constexpr const char* kName = "frozen_trust_ratio";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"max", Io::in, &p.max}, {"trust", Io::inout, &p.trust}, {"sums", Io::out, &p.sums}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    for (const Part& p : parts)
      e.is("max", p.max, DType::f32, {1}).is("trust", p.trust, DType::f32, {2}).is("sums", p.sums, DType::f64, {2, 1});
  }
  Cost cost() const { return {8.0 * double(parts.size()), traffic(*this)}; }
};

// ---- scalars, as in ops/update.h

struct LambScalars {
  float grad_scale, decay, decay_away, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_bias1, root_bias2, eps;
  ATHANOR_HOST_DEVICE LambScalars undecayed() const {
    LambScalars a = *this;
    a.decay = a.decay_away = 0;
    return a;
  }
};

// Op: the op or the kernel argument made from it.
template <class Op>
ATHANOR_HOST_DEVICE LambScalars lamb_scalars(const Op& op, const StepState& s) {
  const double beta1 = momentum_now(op.beta1, s);
  const auto decay = float(op.weight_decay * s.weight_decay_factor);
  return {.grad_scale = s.grad_scale,
          .decay = decay,
          .decay_away = op.cautious ? 0.f : decay,
          .beta1 = float(beta1),
          .one_minus_beta1 = float(1 - beta1),
          .beta2 = float(op.beta2),
          .one_minus_beta2 = float(1 - op.beta2),
          .inverse_bias1 = float(1 / double(s.corrections[op.average1])),
          .root_bias2 = float(std::sqrt(double(s.corrections[op.average2]))),
          .eps = float(op.eps)};
}

// sums: [2, count]
inline ATHANOR_HOST_DEVICE float trust_ratio(const double* sums, int64_t count) {
  double w = 0, r = 0;
  for (int64_t i = 0; i < count; ++i) {
    w += sums[i];
    r += sums[count + i];
  }
  return w > 0 && r > 0 ? float(std::sqrt(w / r)) : 1.f;
}

inline ATHANOR_HOST_DEVICE float next_average(float average, float ratio) {
  const double kept = double(kTrustDecay) * average, added = double(1 - kTrustDecay) * ratio;
  return average == 0 ? ratio : float(kept + added);
}

inline ATHANOR_HOST_DEVICE float next_factor(float factor, float max) {
  const float last = factor == 0 ? 1 : factor;
  if (!(max > 0)) return last;
  const float limited = max < kMinFactor ? kMinFactor : max > kMaxFactor ? kMaxFactor : max;
  const float lower = (1 - kFactorChange) * last, upper = (1 + kFactorChange) * last;
  return limited < lower ? lower : limited > upper ? upper : limited;
}

}  // namespace athanor
