// The optimizer step: scalars in device memory, updated without host decisions, and the storage of master weights.
// Update rules are in ops/update.h.
#pragma once
#include "base/host_device.h"
#include "ops/op.h"
#include "ops/schedule.h"

namespace athanor {

constexpr int kMostAverages = 8;  // running averages with different decays in one run
constexpr int kRequestSums = 5;   // see engine/step_requests.h

// How much a step weighs in a running average.
enum class Weighting : uint8_t {
  decaying,      // `decay` times the weight of the next step
  equal,         // the same for all steps after the first `start`
  squared_rate,  // (largest learning rate so far)^2; at most one such average in a run
};

// A running average that starts at 0.
struct Average {
  double decay = 0;
  bool momentum = false;  // decay is a momentum, which the schedule may lower
  Weighting weighting = Weighting::decaying;
  int64_t start = 0;                                  // equal: number of leading updates that do not count
  int64_t end = std::numeric_limits<int64_t>::max();  // decaying: the average is frozen after this many updates
  bool operator==(const Average&) const = default;
};

// Scalars of the run that kernels read and write; one record in device memory, copied back asynchronously for logs.
struct StepState {
  double loss_sum = 0;  // sum of token losses of the step being accumulated
  double targets = 0;   // predicted tokens of the step being accumulated, without ignored ones
  // Requests of a rank to all ranks in this step (engine/step_requests.h); after `targets`, because both are summed in
  // one all-reduce.
  double requests[kRequestSums] = {};
  double norm_sq = 0;          // sum of squared (scaled) gradients
  double micro_norm_sq = 0;    // norm_sq after a step's first micro-batch, summed over data-parallel ranks
  double distill_sum = 0;      // sum of token losses against a teacher
  int64_t updates = 0;         // optimizer steps done; the schedule is a function of it
  int64_t skipped = 0;         // total number of skipped steps
  int64_t skipped_in_row = 0;  // consecutive steps skipped so far
  float loss_scale = 1;        // fp16 only; else 1
  int32_t good_steps = 0;      // good steps since the loss scale last changed
  int32_t hysteresis_left = 0;
  // Outputs of StepControl for the optimizer ops of the same step and for logs:
  int32_t skip = 0;      // 1: weights and moments stay unchanged
  float grad_scale = 1;  // multiplies gradients: 1 / loss_scale, times the clip factor
  float lr = 0;
  // Bias corrections of StepControl's averages: 1 - decay^updates for decaying ones; otherwise (sum of step weights) /
  // (weight of the newest step), at least 1.
  float corrections[kMostAverages] = {};
  float grad_norm = 0;      // unscaled, before clipping
  double loss = 0;          // loss_sum of the finished step
  double loss_targets = 0;  // its targets
  double distill = 0;       // distill_sum of the finished step
  double micro_norm = 0;    // square root of micro_norm_sq, scaled as grad_norm
  // Schedule values for the optimizer ops of this step:
  double momentum_low = 0;  // interpolates from an optimizer's own momentum (0) to low_momentum (1)
  double low_momentum = 0;
  double weight_decay_factor = 1;  // multiplies an optimizer's own weight decay
  // State of an average weighted by the squared learning rate:
  double peak_lr = 0;         // maximum learning rate of all updates so far
  double squared_lr_sum = 0;  // sum of peak_lr^2 over all updates
  // State of SpikeRule:
  int64_t spikes = 0;         // steps skipped as spikes
  int64_t spikes_in_row = 0;  // consecutive steps skipped as spikes
  int32_t spike = 0;          // this step: 0 = no spike, 1 = spike, step skipped, 2 = spike, step taken
  float loss_deviations = 0;  // z-scores of this step's loss and norm against the window; 0 = unknown
  float norm_deviations = 0;
  float max_attention_logit = 0;  // maximum attention logit of the step, if tracked
};

// Momentum to use in this step; own: the optimizer's configured momentum.
ATHANOR_HOST_DEVICE inline double momentum_now(double own, const StepState& s) {
  return own + (s.low_momentum - own) * s.momentum_low;
}

// Loss and gradient norm of the most recent steps that were not skipped; one record in device memory.
struct SpikeWindow {
  static constexpr int64_t kSteps = 128;  // as llm.c's OUTLIER_DETECTOR_WINDOW_SIZE
  float loss[kSteps] = {};                // mean over targets, nats
  float norm[kSteps] = {};
  int64_t count = 0;  // steps entered since the start; step n is stored at n % kSteps
};

// A step is skipped if its loss or gradient norm is more than `deviations` standard deviations above the mean of the
// last kSteps steps taken. At most `most_in_row` consecutive steps are skipped; the next one is taken in any case.
// Skipped steps do not enter the window.
struct SpikeRule {
  double deviations = 0;
  int64_t most_in_row = 0;
};

struct LossScaling {
  bool dynamic = false;
  int32_t window = 1000;   // consecutive good steps before doubling
  int32_t hysteresis = 2;  // bad steps in a row before halving
  float min_scale = 1;
};

// Closes a step by the rule of step_control.h: gradient norm, skip decision, clip factor, learning rate, bias
// corrections, loss scale, maximum attention logit; then zeroes the sums. A skipped step advances neither `updates` nor
// the schedule. [DeepSpeed's DynamicLossScaler for fp16]
struct StepControl {
  Tensor state;   // [sizeof(StepState)] u8
  Tensor window;  // [sizeof(SpikeWindow)] u8; if absent, no step is skipped as a spike
  Tensor scores;  // optional [L, H] f32: maximum attention logit per layer and head in this step
  Schedule schedule;
  LossScaling scaling;
  double clip_grad = 0;  // maximum global gradient norm; 0 = no clipping
  Average averages[kMostAverages] = {};
  double divided_by = 0;  // divisor already applied to the gradients, replaced by `targets`; 0: no rescaling
  SpikeRule spikes = {};
  int64_t workers = 1;  // number of gradients whose squares norm_sq sums; the norm is their root mean square
  static constexpr const char* kName = "step_control";
  auto fields() {
    return fields_of(Field::inout("state", state), Field::inout("window", window), Field::in("scores", scores));
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
    if (window) e.is("window", window, DType::u8, {int64_t(sizeof(SpikeWindow))});
    if (scores) e.matrix("scores", scores).is("scores", scores, DType::f32, scores.shape);
    e.that(workers >= 1, "workers", "at least one");
  }
  Cost cost() const { return {100, traffic(*this)}; }
};

// Splits f32 master weights into bf16 weights and, if `rest` is present, the remainders (tensor/half.h).
struct SplitMaster {
  Tensor param;   // [n] bf16
  Tensor rest;    // [n] i16; may be absent
  Tensor master;  // [n] f32, rounded by settled()
  static constexpr const char* kName = "split_master";
  auto fields() {
    return fields_of(Field::out("param", param), Field::out("rest", rest), Field::inout("master", master));
  }
  void check() const {
    Expect e{kName};
    e.is("master", master, DType::f32, master.shape).is("param", param, DType::bf16, master.shape);
    if (rest) e.is("rest", rest, DType::i16, master.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

// Reassembles f32 master weights from bf16 weights and remainders.
struct JoinMaster {
  Tensor master;  // [n] f32
  Tensor param;   // [n] bf16
  Tensor rest;    // [n] i16
  static constexpr const char* kName = "join_master";
  auto fields() { return fields_of(Field::out("master", master), Field::in("param", param), Field::in("rest", rest)); }
  void check() const {
    Expect e{kName};
    e.is("param", param, DType::bf16, master.shape).is("rest", rest, DType::i16, master.shape);
    e.is("master", master, DType::f32, master.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

}  // namespace athanor
