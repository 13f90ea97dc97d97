// The optimizer step: scalars that live in device memory and their update without host decisions; how masters are kept.
// Update rules are in ops/update.h.
#pragma once
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

constexpr int kMostAverages = 8;  // running averages with different decays in one run

// Scalars of the run that kernels read and write; one record in device memory, copied back asynchronously for logs.
struct StepState {
  double loss_sum = 0;         // sum of token losses of the step being accumulated
  double targets = 0;          // tokens predicted in the step being accumulated: those that are not ignored
  double norm_sq = 0;          // sum of squared (scaled) gradients
  int64_t updates = 0;         // optimizer steps done: the schedule's time
  int64_t skipped = 0;         // steps skipped in all
  int64_t skipped_in_row = 0;  // steps skipped since the last good one
  float loss_scale = 1;        // fp16 only; else 1
  int32_t good_steps = 0;      // since the loss scale last changed
  int32_t hysteresis_left = 0;
  // Set by StepControl for the optimizer ops of the same step, and reported:
  int32_t skip = 0;      // 1: leave weights and moments alone
  float grad_scale = 1;  // multiplies gradients: 1 / loss_scale, times the clip factor
  float lr = 0;
  float corrections[kMostAverages] = {};  // 1 - decay^updates, of each of StepControl's averages
  float grad_norm = 0;                    // unscaled, before clipping
  double loss = 0;                        // loss_sum of the finished step
  double loss_targets = 0;                // its targets
};

struct LossScaling {
  bool dynamic = false;
  int32_t window = 1000;   // good steps before doubling
  int32_t hysteresis = 2;  // bad steps in a row before halving
  float min_scale = 1;
};

// Closes a step by the rule of step_control.h: norm, skip decision, clip factor, learning rate, corrections
// of running averages, loss scale; then clears the sums. A skipped step advances neither `updates` nor the schedule.
// [DeepSpeed's DynamicLossScaler for fp16]
struct StepControl {
  Tensor state;  // [sizeof(StepState)] u8
  Schedule schedule;
  LossScaling scaling;
  double clip_grad = 0;                 // global norm; 0 = off
  double averages[kMostAverages] = {};  // the decay of each running average that starts at 0; else 0
  double divided_by = 0;                // what the gradients were divided by instead of `targets`; 0: they are final
  static constexpr const char* kName = "step_control";
  std::array<Field, 1> fields() { return {{{"state", Io::inout, &state}}}; }
  void check() const { Expect{kName}.is("state", state, DType::u8, {int64_t(sizeof(StepState))}); }
  Cost cost() const { return {100, traffic(*this)}; }
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
