// The optimizer step: scalars that live in device memory, their update without host decisions, and fused AdamW.
#pragma once
#include <limits>
#include <vector>

#include "ops/op.h"
#include "ops/schedule.h"

namespace athanor {

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
  // Of the schedule, for the optimizer ops of this step:
  double momentum_low = 0;  // part of the way from an optimizer's own momentum to low_momentum
  double low_momentum = 0;
  double weight_decay_factor = 1;  // multiplies an optimizer's own
  // Of SpikeRule:
  int64_t spikes = 0;         // steps skipped because they stood out
  int64_t spikes_in_row = 0;  // since the last step that was not
  int32_t spike = 0;          // this step: 0 ordinary, 1 stood out and was skipped, 2 stood out and was taken
  float loss_deviations = 0;  // of this step, standard deviations above the mean of the window; 0: not known
  float norm_deviations = 0;
};

// Loss and gradient norm of the latest steps that were taken; one record in device memory.
struct SpikeWindow {
  static constexpr int64_t kSteps = 128;  // as llm.c's OUTLIER_DETECTOR_WINDOW_SIZE
  float loss[kSteps] = {};                // mean over the targets, nats
  float norm[kSteps] = {};
  int64_t count = 0;  // steps that entered since the start; step n lies at n % kSteps
};

// A step whose loss or gradient norm stands more than `deviations` standard deviations above the mean of the last
// kSteps taken is skipped, at most `most_in_row` times in a row; the next is taken whatever it is. Skipped steps do not
// enter the window.
struct SpikeRule {
  double deviations = 0;
  int64_t most_in_row = 0;
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
  Tensor state;   // [sizeof(StepState)] u8
  Tensor window;  // [sizeof(SpikeWindow)] u8; absent: no step is skipped as a spike
  Schedule schedule;
  LossScaling scaling;
  double clip_grad = 0;  // global norm; 0 = off
  double beta1 = 0, beta2 = 0;
  double divided_by = 0;  // what the gradients were divided by instead of `targets`; 0: they are final
  SpikeRule spikes = {};
  static constexpr const char* kName = "step_control";
  std::array<Field, 2> fields() { return {{{"state", Io::inout, &state}, {"window", Io::inout, &window}}}; }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
    if (window) e.is("window", window, DType::u8, {int64_t(sizeof(SpikeWindow))});
  }
  Cost cost() const { return {100, traffic(*this)}; }
};

// Decoupled weight decay [Loshchilov & Hutter 2019, alg. 2], the order of torch.optim.AdamW:
//   w -= lr wd w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr (m / bias1) / (sqrt(v / bias2) + eps)
// with g = grad * state.grad_scale, in f32. Gradients are zeroed for the next step (also when the step is skipped).
// What is kept of w, m and v is rounded afterwards, as their tensors say:
//   master f32 (with param bf16: settled, see tensor/half.h) or, as the same numbers, i16: the rests of weights in
//   param; bf16: rounded up or down at random, w by the upper 16 of random_bits(seed, stream, updates * 2^40 + first +
//   i), m by the upper and v by the lower 16 of those of moment_stream.
struct AdamW {
  // Neighbours in memory: the trained weights of a unit, or the part of them that a rank updates.
  struct Part {
    Tensor master;  // [n] f32, bf16 or i16
    Tensor param;   // [n] compute copy, bf16 or f16, of masters in f32; bf16 weights with masters in i16; else absent
    Tensor m, v;    // [n] f32 or bf16
    Tensor grad;    // [n] f32
    int64_t decayed = std::numeric_limits<int64_t>::max();  // weights before this element decay, the rest does not
    uint64_t stream = 0, moment_stream = 0, first = 0;
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all of the same dtypes
  Tensor state;                                    // StepState
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  uint64_t seed = 0;
  static constexpr const char* kName = "adamw";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"master", Io::inout, &p.master},
                             {"param", p.master.dtype == DType::i16 ? Io::inout : Io::out, &p.param},
                             {"m", Io::inout, &p.m},
                             {"v", Io::inout, &p.v},
                             {"grad", Io::inout, &p.grad}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    const Part& like = parts.front();
    for (const Part& p : parts) {
      const Shape& n = p.master.shape;
      e.is("master", p.master, like.master.dtype, n).is("grad", p.grad, DType::f32, n);
      e.is("m", p.m, like.m.dtype, n).is("v", p.v, like.v.dtype, n);
      for (DType moment : {p.m.dtype, p.v.dtype})
        e.that(moment == DType::f32 || moment == DType::bf16, "adamw.m and adamw.v of f32 or bf16");
      if (p.param) e.is("param", p.param, like.param.dtype, n);
      e.that(bool(p.param) == bool(like.param), "adamw.param in all parts or in none");
    }
    e.that(dtypes_fit(like), "adamw.master f32, alone or with adamw.param in bf16 or f16; bf16 alone; i16 with bf16");
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Part& p : parts) n += p.master.numel();
    return {14.0 * double(n), traffic(*this)};
  }

 private:
  static bool dtypes_fit(const Part& p) {
    if (p.master.dtype == DType::i16) return p.param && p.param.dtype == DType::bf16;
    if (p.master.dtype == DType::bf16) return !p.param;
    return p.master.dtype == DType::f32 && (!p.param || p.param.dtype == DType::bf16 || p.param.dtype == DType::f16);
  }
};

// What masters in f32 become: their rounding to bf16, and, unless they stay themselves, the rests (tensor/half.h).
struct SplitMaster {
  Tensor param;   // [n] bf16
  Tensor rest;    // [n] i16; may be absent
  Tensor master;  // [n] f32; settled
  static constexpr const char* kName = "split_master";
  std::array<Field, 3> fields() {
    return {{{"param", Io::out, &param}, {"rest", Io::out, &rest}, {"master", Io::inout, &master}}};
  }
  void check() const {
    Expect e{kName};
    e.is("master", master, DType::f32, master.shape).is("param", param, DType::bf16, master.shape);
    if (rest) e.is("rest", rest, DType::i16, master.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

// The masters again.
struct JoinMaster {
  Tensor master;  // [n] f32
  Tensor param;   // [n] bf16
  Tensor rest;    // [n] i16
  static constexpr const char* kName = "join_master";
  std::array<Field, 3> fields() {
    return {{{"master", Io::out, &master}, {"param", Io::in, &param}, {"rest", Io::in, &rest}}};
  }
  void check() const {
    Expect e{kName};
    e.is("param", param, DType::bf16, master.shape).is("rest", rest, DType::i16, master.shape);
    e.is("master", master, DType::f32, master.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

}  // namespace athanor
