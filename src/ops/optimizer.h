// The optimizer step: scalars in device memory, updated without host decisions; storage of masters. Update rules are in
// ops/update.h.
#pragma once
#include "base/host_device.h"
#include "ops/op.h"
#include "ops/schedule.h"

namespace athanor {

constexpr int kMostAverages = 8;  // running averages with different decays in one run
constexpr int kRequestSums = 5;   // see engine/step_requests.h

// How much a step counts in a running average.
enum class Weighting : uint8_t {
  decaying,      // `decay` times the step after it
  equal,         // as much as all others after the first `start`
  squared_rate,  // the square of the largest learning rate so far; at most one such average in a run
};

// A running average that starts at 0.
struct Average {
  double decay = 0;
  bool momentum = false;  // the schedule may lower its decay
  Weighting weighting = Weighting::decaying;
  int64_t start = 0;                                  // with equal weights: updates before the first that counts
  int64_t end = std::numeric_limits<int64_t>::max();  // decaying: it stands still after so many updates
  bool operator==(const Average&) const = default;
};

// Scalars of the run that kernels read and write; one record in device memory, copied back asynchronously for logs.
struct StepState {
  double loss_sum = 0;  // sum of token losses of the step being accumulated
  double targets = 0;   // predicted tokens of the step being accumulated, without ignored ones
  // What ranks ask of all in this step (engine/step_requests.h); after `targets`, with which it is added up over the
  // ranks.
  double requests[kRequestSums] = {};
  double norm_sq = 0;          // sum of squared (scaled) gradients
  double micro_norm_sq = 0;    // norm_sq after a step's first micro-batch; summed over ranks that differ
  double distill_sum = 0;      // sum of the tokens' losses against a teacher
  int64_t updates = 0;         // optimizer steps done: the schedule's time
  int64_t skipped = 0;         // steps skipped in all
  int64_t skipped_in_row = 0;  // consecutive steps skipped so far
  float loss_scale = 1;        // fp16 only; else 1
  int32_t good_steps = 0;      // since the loss scale last changed
  int32_t hysteresis_left = 0;
  // Set by StepControl for the optimizer ops of the same step, and reported:
  int32_t skip = 0;      // 1: weights and moments stay unchanged
  float grad_scale = 1;  // multiplies gradients: 1 / loss_scale, times the clip factor
  float lr = 0;
  // Bias corrections of StepControl's averages: 1 - decay^updates; without decay the sum of the step weights over that
  // of the newest, at least 1: one over the share of the newest.
  float corrections[kMostAverages] = {};
  float grad_norm = 0;      // unscaled, before clipping
  double loss = 0;          // loss_sum of the finished step
  double loss_targets = 0;  // its targets
  double distill = 0;       // distill_sum of the finished step
  double micro_norm = 0;    // square root of micro_norm_sq, scaled as grad_norm
  // Schedule values for the optimizer ops of this step:
  double momentum_low = 0;  // interpolates from an optimizer's own momentum (0) to low_momentum (1)
  double low_momentum = 0;
  double weight_decay_factor = 1;  // multiplies an optimizer's own
  // State of an average weighted by the squared learning rate:
  double peak_lr = 0;         // the largest of all updates
  double squared_lr_sum = 0;  // sum of peak_lr^2 over all updates
  // State of SpikeRule:
  int64_t spikes = 0;         // steps skipped as spikes
  int64_t spikes_in_row = 0;  // since the last step that was not
  int32_t spike = 0;          // this step: 0 no spike, 1 spike, skipped, 2 spike, taken
  float loss_deviations = 0;  // z-scores of this step against the window; 0: unknown
  float norm_deviations = 0;
  float max_attention_logit = 0;  // the largest attention score of the step, where it is wanted
};

// Momentum in this step of an update rule whose configured momentum is `own`.
ATHANOR_HOST_DEVICE inline double momentum_now(double own, const StepState& s) {
  return own + (s.low_momentum - own) * s.momentum_low;
}

// Loss and gradient norm of the last steps taken: one record in device memory.
struct SpikeWindow {
  static constexpr int64_t kSteps = 128;  // as llm.c's OUTLIER_DETECTOR_WINDOW_SIZE
  float loss[kSteps] = {};                // mean over the targets, nats
  float norm[kSteps] = {};
  int64_t count = 0;  // steps that entered since the start; step n lies at n % kSteps
};

// A step whose loss or gradient norm is more than `deviations` standard deviations above the mean of the last kSteps
// taken is skipped, at most `most_in_row` times in a row; the next one is taken in any case. Skipped steps do not enter
// the window.
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

// Closes a step by the rule of step_control.h: norm, skip decision, clip factor, learning rate, corrections of running
// averages, loss scale, the largest of the scores; then clears the sums. A skipped step advances neither `updates` nor
// the schedule. [DeepSpeed's DynamicLossScaler for fp16]
struct StepControl {
  Tensor state;   // [sizeof(StepState)] u8
  Tensor window;  // [sizeof(SpikeWindow)] u8; absent: no step is skipped as a spike
  Tensor scores;  // [L, H] f32: the step's largest attention scores; absent: not wanted
  Schedule schedule;
  LossScaling scaling;
  double clip_grad = 0;  // global norm; 0 = off
  Average averages[kMostAverages] = {};
  double divided_by = 0;  // divisor already applied to the gradients in place of `targets`; 0: they are final
  SpikeRule spikes = {};
  int64_t workers = 1;  // norm_sq is a sum over so many gradients: their root mean square counts
  static constexpr const char* kName = "step_control";
  std::array<Field, 3> fields() {
    return {{{"state", Io::inout, &state}, {"window", Io::inout, &window}, {"scores", Io::in, &scores}}};
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

// Splits f32 masters: rounded to bf16, and, unless the masters are kept, the remainders (tensor/half.h).
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

// Reassembles the masters.
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
