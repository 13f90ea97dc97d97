// QK-clip [Kimi Team 2025, "Kimi K2: Open Agentic Intelligence", alg. 1]: after an update, the weights of queries and
// keys whose attention scores were too large in the step's forward passes become smaller.
#pragma once
#include <cmath>
#include <vector>

#include "ops/output_scaling.h"
#include "ops/update.h"

namespace athanor {

// Let s be the maximum attention score scale q·k of a query head in this step, and gamma = threshold / s if s >
// threshold, else 1. The output rows of the head's query and key weights are multiplied by sqrt(gamma) each. If several
// query heads share a key head, the keys are unchanged, since all these heads read them, and the queries are multiplied
// by gamma: the paper's rule for the shared part of keys. Weights are rounded as in UpdatePart; unscaled weights keep
// their bits. A skipped step changes nothing.
struct QkClip {
  struct Part {
    Tensor master, param;  // [n] as in UpdatePart: part of a weight [outputs, inputs], of its transpose, or of a bias
    Tensor also;           // optional [n] f32, multiplied by the same factors
    Tensor top;            // [H] f32: s of each query head
    OutputRange range;     // outputs in the order H D queries, K D keys, then values
    uint64_t stream = 0, first = 0;
    UpdatePart weights() const { return {.master = master, .param = param, .stream = stream, .first = first}; }
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double threshold = 100;
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  uint64_t seed = 0;
  static constexpr const char* kName = "qk_clip";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"master", Io::inout, &p.master},
                             {"param", Io::inout, &p.param},
                             {"also", Io::inout, &p.also},
                             {"top", Io::in, &p.top}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    e.that(kv_heads > 0 && heads % kv_heads == 0, "heads to be a multiple of kv_heads");
    e.that(threshold > 0, "threshold", "above 0");
    check_masters(e, parts);
    for (const Part& p : parts) {
      e.is("top", p.top, DType::f32, {heads});
      if (p.also) e.is("also", p.also, DType::f32, p.master.shape);
      e.that(p.range.first >= 0 && p.range.cols > 0, "range", "a first column of at least 0, and columns");
    }
  }
  Cost cost() const { return {double(elements(parts, &Part::master)), traffic(*this)}; }
};

// Returns the factor for the weights of an output, computed in double and rounded once. Op: the op or the kernel
// argument made from it.
template <class Op>
ATHANOR_HOST_DEVICE float clip_factor(const Op& op, const float* top, int64_t output) {
  const bool shared = op.kv_heads < op.heads;
  int64_t head = output / op.head_dim;
  if (head >= op.heads) {
    head -= op.heads;
    if (shared || head >= op.kv_heads) return 1;
  }
  const auto score = double(top[head]);
  if (!(score > op.threshold)) return 1;
  const double gamma = op.threshold / score;
  return float(shared ? gamma : std::sqrt(gamma));
}

}  // namespace athanor
