// Elementwise update rules of optimizers, each over a list of contiguous parts, and the scalars that they use. All
// rules store master weights in the same formats.
#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "base/host_device.h"
#include "ops/dynamic_map.h"
#include "ops/optimizer.h"

namespace athanor {

// A contiguous range of a unit's weights (or of this rank's shard) with its optimizer state. The op zeroes the gradient
// for the next step, even if the step is skipped. Rounding, by dtype:
//   master f32: exact; with a bf16 param rounded by settled() (tensor/half.h)
//   master i16: remainders of f32 master weights whose upper halves are `param`
//   bf16: stochastic rounding with random_bits(seed, stream, updates * 2^40 + first + i): the master weight by the
//   upper 16 bits; with moment_stream instead, m by the upper and v by the lower 16 bits
struct UpdatePart {
  Tensor master;  // [n] f32, bf16 or i16
  Tensor param;   // [n] compute copy: bf16 or f16 with f32 masters, bf16 with i16 masters, absent otherwise
  Tensor m, v;    // [n] f32 or bf16; absent if the rule has no such state
  Tensor grad;    // [n] f32 or bf16
  int64_t decayed = std::numeric_limits<int64_t>::max();  // weight decay applies to elements below this index
  uint64_t stream = 0, moment_stream = 0, first = 0;
};

// Use of a state by a rule. The functions below implement fields(), checks and memory traffic for all rules.
enum class Kept : uint8_t { none, optional, required };
struct UpdateStates {
  Kept m, v;
};

template <class Op>
std::vector<Field> update_fields(Op& op) {
  std::vector<Field> all{{"state", Io::in, &op.state}};
  for (UpdatePart& p : op.parts) {
    all.insert(all.end(), {{"master", Io::inout, &p.master},
                           {"param", p.master.dtype == DType::i16 ? Io::inout : Io::out, &p.param}});
    if (Op::kStates.m != Kept::none) all.push_back({"m", Io::inout, &p.m});
    if (Op::kStates.v != Kept::none) all.push_back({"v", Io::inout, &p.v});
    all.push_back({"grad", Io::inout, &p.grad});
  }
  return all;
}

// Checks the master weights of all parts of an op, and their compute copies.
template <class Part>
void check_masters(const Expect& e, const std::vector<Part>& parts) {
  const DType master = parts.front().master.dtype;
  const Tensor& like = parts.front().param;
  for (const Part& p : parts) {
    e.is("master", p.master, master, p.master.shape);
    if (p.param) e.is("param", p.param, like.dtype, p.master.shape);
    e.that(bool(p.param) == bool(like), "param", "in all parts or in none");
  }
  const bool copies = like && like.dtype == DType::bf16;
  const bool fits = (master == DType::f32 && (!like || copies || like.dtype == DType::f16)) ||
                    (master == DType::bf16 && !like) || (master == DType::i16 && copies);
  e.that(fits, "master", "f32, alone or with param in bf16 or f16; bf16 alone; i16 with bf16");
}

template <class Op>
void check_update(const Op& op) {
  Expect e{Op::kName};
  e.is("state", op.state, DType::u8, {int64_t(sizeof(StepState))}).that(!op.parts.empty(), "at least one part");
  check_masters(e, op.parts);
  const UpdatePart& like = op.parts.front();
  for (const UpdatePart& p : op.parts) {
    const Shape& n = p.master.shape;
    e.gradient("grad", p.grad, n).dtype("grad", p.grad, like.grad.dtype);
    const auto state = [&](const char* name, const Tensor& t, const Tensor& first, Kept kept) {
      e.that(kept == Kept::optional || bool(t) == (kept == Kept::required), name, "exactly where the rule needs it")
          .that(bool(t) == bool(first), name, "in all parts or in none");
      if (!t) return;
      e.is(name, t, first.dtype, n);
      e.that(t.dtype == DType::f32 || t.dtype == DType::bf16, name, "f32 or bf16");
    };
    state("m", p.m, like.m, Op::kStates.m);
    state("v", p.v, like.v, Op::kStates.v);
  }
}

template <class Op>
Cost update_cost(const Op& op, double flops) {
  return {flops * double(elements(op.parts, &UpdatePart::master)), traffic(op)};
}

// Decoupled weight decay [Loshchilov & Hutter 2019, alg. 2], in the order of operations of torch.optim.AdamW:
//   w -= lr wd w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr (m / c1) / (sqrt(v / c2) + eps)
// with g = grad * state.grad_scale, lr = state.lr * rate, and c1, c2 the corrections of the two averages, in f32.
// Coupled [Kingma & Ba 2015, with L2 as in torch.optim.Adam]: g = grad * state.grad_scale + wd w, and w does not decay.
// Cautious [Chen et al. 2025, "Cautious Weight Decay"], for all rules: a weight decays only if the rest of its step
// does not move it away from zero, i.e. w times what the step subtracts is >= 0.
struct AdamW {
  using Part = UpdatePart;
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  uint64_t seed = 0;
  double rate = 1;                 // multiplies the step's learning rate
  int average1 = 0, average2 = 1;  // indices into StepState::corrections for beta1, beta2
  bool coupled = false;
  bool cautious = false;  // requires decoupled decay
  static constexpr const char* kName = "adamw";
  static constexpr UpdateStates kStates = {Kept::required, Kept::required};
  std::vector<Field> fields() { return update_fields(*this); }
  void check() const {
    check_update(*this);
    Expect{kName}.that(!(cautious && coupled), "cautious decay only if it is decoupled");
  }
  Cost cost() const { return update_cost(*this, 14); }
};

// AdamW with 8-bit moments [Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"]: each block of
// kMomentBlock elements stores its amax in f32 and per element an index into the 256 values of ops/dynamic_map.h. A
// step dequantizes the moments to f32, computes with the same rounding as AdamW, and quantizes the new moments.
struct AdamW8bit {
  struct Part {
    Tensor master, param, grad;  // as in UpdatePart
    Tensor m, v;                 // [n] u8; n a multiple of kMomentBlock
    Tensor m_scale, v_scale;     // [n / kMomentBlock] f32
    int64_t decayed = std::numeric_limits<int64_t>::max();
    uint64_t stream = 0, first = 0;
    UpdatePart weights() const {
      return {.master = master, .param = param, .grad = grad, .decayed = decayed, .stream = stream, .first = first};
    }
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  uint64_t seed = 0;
  double rate = 1;
  int average1 = 0, average2 = 1;
  bool cautious = false;
  static constexpr bool coupled = false;
  static constexpr const char* kName = "adamw_8bit";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"master", Io::inout, &p.master},
                             {"param", p.master.dtype == DType::i16 ? Io::inout : Io::out, &p.param},
                             {"m", Io::inout, &p.m},
                             {"m_scale", Io::inout, &p.m_scale},
                             {"v", Io::inout, &p.v},
                             {"v_scale", Io::inout, &p.v_scale},
                             {"grad", Io::inout, &p.grad}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    check_masters(e, parts);
    for (const Part& p : parts) {
      const Shape& n = p.master.shape;
      e.that(n.numel() % kMomentBlock == 0, "master", "whole blocks of 256");
      e.gradient("grad", p.grad, n).dtype("grad", p.grad, parts.front().grad.dtype);
      e.is("m", p.m, DType::u8, n).is("v", p.v, DType::u8, n);
      e.is("m_scale", p.m_scale, DType::f32, {n.numel() / kMomentBlock});
      e.is("v_scale", p.v_scale, DType::f32, {n.numel() / kMomentBlock});
    }
  }
  // 14 for AdamW, the rest for quantizing and dequantizing two moments
  Cost cost() const { return {50.0 * double(elements(parts, &Part::master)), traffic(*this)}; }
};

// Stochastic gradient descent, in the order of operations of torch.optim.SGD:
//   g += wd w;  m = momentum m + g;  w -= lr (m, or with nesterov g + momentum m, or g if there is no m)
// with g = grad * state.grad_scale. With `direction`, grad is an update direction computed by another rule: it is not
// scaled, and the decay is decoupled (w -= lr wd w).
struct Sgd {
  using Part = UpdatePart;
  std::vector<Part> parts = std::vector<Part>(1);  // m: absent without momentum
  Tensor state;                                    // StepState
  double momentum = 0, weight_decay = 0;
  uint64_t seed = 0;
  double rate = 1;
  bool nesterov = false, direction = false;
  bool cautious = false;  // requires `direction`
  static constexpr const char* kName = "sgd";
  static constexpr UpdateStates kStates = {Kept::optional, Kept::none};
  std::vector<Field> fields() { return update_fields(*this); }
  void check() const {
    check_update(*this);
    Expect{kName}.that(!cautious || direction, "cautious decay only if it is decoupled");
  }
  Cost cost() const { return update_cost(*this, 7); }
};

// [Chen et al. 2023, "Symbolic discovery of optimization algorithms", alg. 2]
//   w -= lr wd w;  w -= lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g;  sign(0) = 0
struct Lion {
  using Part = UpdatePart;
  std::vector<Part> parts = std::vector<Part>(1);
  Tensor state;  // StepState
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  uint64_t seed = 0;
  double rate = 1;
  bool cautious = false;
  static constexpr const char* kName = "lion";
  static constexpr UpdateStates kStates = {Kept::required, Kept::none};
  std::vector<Field> fields() { return update_fields(*this); }
  void check() const { check_update(*this); }
  Cost cost() const { return update_cost(*this, 9); }
};

// Schedule-free AdamW [Defazio et al. 2024, "The Road Less Scheduled"], with the decay at y as in the authors' package.
// Gradients are taken at the weights y = (1 - b1) z + b1 x, where z takes the steps and x is the average of z:
//   v = b2 v + (1 - b2) g^2;  u = g / (sqrt(v / c2) + eps) + wd y;  z -= lr u;  x += c (z - x)
// with g = grad * state.grad_scale and c the weight of this step in the average. Stored are y and m = x - y, which
// starts at 0 and makes x available without b1. With z = y - b1 / (1 - b1) m the same step is
//   y -= c b1 / (1 - b1) m + lr (1 - b1 (1 - c)) u;  m = (1 - c) (m + (1 - b1) lr u)
// in f32. Cautious: no decay where y g < 0.
struct ScheduleFreeAdamW {
  using Part = UpdatePart;
  std::vector<Part> parts = std::vector<Part>(1);  // m: f32
  Tensor state;                                    // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  uint64_t seed = 0;
  double rate = 1;
  int average1 = 0, average2 = 1;  // indices into StepState::corrections for x and for v
  bool cautious = false;
  static constexpr const char* kName = "schedule_free_adamw";
  static constexpr UpdateStates kStates = {Kept::required, Kept::required};
  std::vector<Field> fields() { return update_fields(*this); }
  void check() const {
    check_update(*this);
    Expect{kName}.that(parts.front().m.dtype == DType::f32, "m", "f32");
  }
  Cost cost() const { return update_cost(*this, 17); }
};

// Running average of the weights, computed after the update rule: exponential with Adam's bias correction [Kingma & Ba
// 2015, sec. 3], so that after the first step it equals the weights; with decay 0 the arithmetic mean.
//   average += (1 - decay) / c (w - average)
// with c = StepState::corrections[average]. A skipped step does not change it.
struct Ema {
  struct Part {
    Tensor average;  // [n] f32
    Tensor master;   // [n] f32, bf16 or i16
    Tensor param;    // [n] bf16, only with i16 masters: the upper halves of the weights
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double decay = 0.999;
  int average = 0;  // index into StepState::corrections
  static constexpr const char* kName = "ema";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(),
                 {{"average", Io::inout, &p.average}, {"master", Io::in, &p.master}, {"param", Io::in, &p.param}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    const DType master = parts.front().master.dtype;
    e.that(master == DType::f32 || master == DType::bf16 || master == DType::i16, "master", "f32, bf16 or i16");
    for (const Part& p : parts) {
      const Shape& n = p.master.shape;
      e.is("master", p.master, master, n).is("average", p.average, DType::f32, n);
      e.that(bool(p.param) == (master == DType::i16), "param", "only with masters in i16");
      if (p.param) e.is("param", p.param, DType::bf16, n);
    }
  }
  Cost cost() const { return {3.0 * double(elements(parts, &Part::master)), traffic(*this)}; }
};

// ---- scalars: computed in double and rounded once to f32, as torch.optim does. undecayed(): the scalars for weights
// without decay. decay_away: the decay factor for weights that the step moves away from zero.

struct AdamScalars {
  float grad_scale, decay, decay_away, l2, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_bias2, eps;
  ATHANOR_HOST_DEVICE AdamScalars undecayed() const {
    AdamScalars a = *this;
    a.decay = a.decay_away = 1;
    a.l2 = 0;
    return a;
  }
};

// Op: the op or the kernel argument made from it.
template <class Op>
ATHANOR_HOST_DEVICE AdamScalars adam_scalars(const Op& op, const StepState& s) {
  const double lr = double(s.lr) * op.rate, beta1 = momentum_now(op.beta1, s);
  const double weight_decay = op.weight_decay * s.weight_decay_factor;
  const float decay = op.coupled ? 1.f : float(1 - lr * weight_decay);
  return {.grad_scale = s.grad_scale,
          .decay = decay,
          .decay_away = op.cautious ? 1.f : decay,
          .l2 = op.coupled ? float(weight_decay) : 0.f,
          .beta1 = float(beta1),
          .one_minus_beta1 = float(1 - beta1),
          .beta2 = float(op.beta2),
          .one_minus_beta2 = float(1 - op.beta2),
          .step_size = float(lr / double(s.corrections[op.average1])),
          .root_bias2 = float(std::sqrt(double(s.corrections[op.average2]))),
          .eps = float(op.eps)};
}

struct SgdScalars {
  float grad_scale, decay, decay_away, l2, momentum;
  float from_gradient, from_average, lr;  // the step: lr (from_gradient g + from_average m)
  ATHANOR_HOST_DEVICE SgdScalars undecayed() const {
    SgdScalars a = *this;
    a.decay = a.decay_away = 1;
    a.l2 = 0;
    return a;
  }
};
template <class Op>
ATHANOR_HOST_DEVICE SgdScalars sgd_scalars(const Op& op, const StepState& s) {
  const double lr = double(s.lr) * op.rate, weight_decay = op.weight_decay * s.weight_decay_factor;
  const bool plain = op.momentum == 0;
  const double momentum = plain ? 0 : momentum_now(op.momentum, s);
  const float decay = op.direction ? float(1 - lr * weight_decay) : 1.f;
  return {.grad_scale = op.direction ? 1.f : s.grad_scale,
          .decay = decay,
          .decay_away = op.cautious ? 1.f : decay,
          .l2 = op.direction ? 0.f : float(weight_decay),
          .momentum = float(momentum),
          .from_gradient = plain || op.nesterov ? 1.f : 0.f,
          .from_average = plain         ? 0.f
                          : op.nesterov ? float(momentum)
                                        : 1.f,
          .lr = float(lr)};
}

struct ScheduleFreeScalars {
  float grad_scale, decay, decay_away, beta2, one_minus_beta2, root_bias2, eps;
  float from_m, step, keep, m_step;  // y -= from_m m + step u;  m = keep (m + m_step u)
  ATHANOR_HOST_DEVICE ScheduleFreeScalars undecayed() const {
    ScheduleFreeScalars a = *this;
    a.decay = a.decay_away = 0;
    return a;
  }
};
template <class Op>
ATHANOR_HOST_DEVICE ScheduleFreeScalars schedule_free_scalars(const Op& op, const StepState& s) {
  const double lr = double(s.lr) * op.rate, share = 1 / double(s.corrections[op.average1]);
  const auto decay = float(op.weight_decay * s.weight_decay_factor);
  return {.grad_scale = s.grad_scale,
          .decay = decay,
          .decay_away = op.cautious ? 0.f : decay,
          .beta2 = float(op.beta2),
          .one_minus_beta2 = float(1 - op.beta2),
          .root_bias2 = float(std::sqrt(double(s.corrections[op.average2]))),
          .eps = float(op.eps),
          .from_m = float(share * op.beta1 / (1 - op.beta1)),
          .step = float(lr * (1 - op.beta1 * (1 - share))),
          .keep = float(1 - share),
          .m_step = float((1 - op.beta1) * lr)};
}

// Returns the weight of the current weights in their running average.
inline ATHANOR_HOST_DEVICE float ema_rate(double decay, int average, const StepState& s) {
  return float(1 - decay) / s.corrections[average];
}

struct LionScalars {
  float grad_scale, decay, decay_away, beta1, one_minus_beta1, beta2, one_minus_beta2, lr;
  ATHANOR_HOST_DEVICE LionScalars undecayed() const {
    LionScalars a = *this;
    a.decay = a.decay_away = 1;
    return a;
  }
};
template <class Op>
ATHANOR_HOST_DEVICE LionScalars lion_scalars(const Op& op, const StepState& s) {
  const double lr = double(s.lr) * op.rate, beta1 = momentum_now(op.beta1, s);
  const auto decay = float(1 - lr * op.weight_decay * s.weight_decay_factor);
  return {.grad_scale = s.grad_scale,
          .decay = decay,
          .decay_away = op.cautious ? 1.f : decay,
          .beta1 = float(beta1),
          .one_minus_beta1 = float(1 - beta1),
          .beta2 = float(op.beta2),
          .one_minus_beta2 = float(1 - op.beta2),
          .lr = float(lr)};
}

}  // namespace athanor
