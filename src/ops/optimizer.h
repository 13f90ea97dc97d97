// The optimizer step: scalars that live in device memory, their update without host decisions, and fused AdamW.
#pragma once
#include <limits>

#include "ops/op.h"

namespace athanor {

enum class DecayStyle : uint8_t { constant, linear, cosine, wsd };
enum class WsdDecay : uint8_t { linear, cosine, minus_sqrt };

// Learning rate as a function of the number of optimizer steps done.
struct Schedule {
  DecayStyle style = DecayStyle::constant;
  WsdDecay wsd = WsdDecay::linear;
  double lr = 0, min_lr = 0;
  int64_t warmup = 0, decay = 0, wsd_decay = 0;  // steps; decay counts from 0 and includes warm-up
};

// Scalars of the run that kernels read and write; one record in device memory, copied back asynchronously for logs.
struct StepState {
  double loss_sum = 0;         // sum of token losses of the step being accumulated
  double targets = 0;          // tokens predicted in the step being accumulated: those that are not ignored
  double norm_sq = 0;          // sum of squared (scaled) gradients
  int64_t updates = 0;         // optimizer steps done: Adam's count and the schedule's time
  int64_t skipped = 0;         // steps skipped in all
  int64_t skipped_in_row = 0;  // steps skipped since the last good one
  float loss_scale = 1;        // fp16 only; else 1
  int32_t good_steps = 0;      // since the loss scale last changed
  int32_t hysteresis_left = 0;
  // Set by StepControl for the optimizer ops of the same step, and reported:
  int32_t skip = 0;      // 1: leave weights and moments alone
  float grad_scale = 1;  // multiplies gradients: 1 / loss_scale, times the clip factor
  float lr = 0;
  float bias1 = 1, bias2 = 1;  // Adam's 1 - beta^t of this update
  float grad_norm = 0;         // unscaled, before clipping
  double loss = 0;             // loss_sum of the finished step
  double loss_targets = 0;     // its targets
};

struct LossScaling {
  bool dynamic = false;
  int32_t window = 1000;   // good steps before doubling
  int32_t hysteresis = 2;  // bad steps in a row before halving
  float min_scale = 1;
};

// Closes a step by the rule of step_control.h: norm, skip decision, clip factor, learning rate, Adam's bias
// corrections, loss scale; then clears the sums. A skipped step advances neither `updates` nor the schedule.
// [DeepSpeed's DynamicLossScaler for fp16]
struct StepControl {
  Tensor state;  // [sizeof(StepState)] u8
  Schedule schedule;
  LossScaling scaling;
  double clip_grad = 0;  // global norm; 0 = off
  double beta1 = 0, beta2 = 0;
  double divided_by = 0;  // what the gradients were divided by instead of `targets`; 0: they are final
  static constexpr const char* kName = "step_control";
  std::array<Field, 1> fields() { return {{{"state", Io::inout, &state}}}; }
  void check() const { Expect{kName}.is("state", state, DType::u8, {int64_t(sizeof(StepState))}); }
  Cost cost() const { return {100, traffic(*this)}; }
};

// Decoupled weight decay [Loshchilov & Hutter 2019, alg. 2], the order of torch.optim.AdamW:
//   w -= lr wd w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr (m / bias1) / (sqrt(v / bias2) + eps)
// with g = grad * state.grad_scale. The gradient is zeroed for the next step (also when the step is skipped).
// master bf16: stochastic rounding with random_bits(seed, stream, updates * 2^40 + first + i).
struct AdamW {
  Tensor master;  // [n] f32 or bf16
  Tensor param;   // [n] compute copy (bf16/f16), rounded to nearest; absent when it is master itself
  Tensor m, v;    // [n] f32
  Tensor grad;    // [n] f32
  Tensor state;   // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  int64_t decayed = std::numeric_limits<int64_t>::max();  // weights before this element decay, the rest does not
  uint64_t seed = 0, stream = 0, first = 0;
  static constexpr const char* kName = "adamw";
  std::array<Field, 6> fields() {
    return {{{"master", Io::inout, &master},
             {"param", Io::out, &param},
             {"m", Io::inout, &m},
             {"v", Io::inout, &v},
             {"grad", Io::inout, &grad},
             {"state", Io::in, &state}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("master", master)
        .contiguous("master", master)
        .is("m", m, DType::f32, master.shape)
        .is("v", v, DType::f32, master.shape);
    e.is("grad", grad, DType::f32, master.shape).is("state", state, DType::u8, {int64_t(sizeof(StepState))});
    if (param) e.floating("param", param).is("param", param, param.dtype, master.shape);
  }
  Cost cost() const { return {14.0 * double(master.numel()), traffic(*this)}; }
};

}  // namespace athanor
