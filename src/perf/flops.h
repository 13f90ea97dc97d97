// Number of floating-point operations that training requires by definition, and the MFU computed from it. Pure
// functions. Recomputed activations do not count (that would be HFU).
//
// Forward costs per token 2 operations per matmul parameter (one multiply, one add), and per layer 4 * H * D for each
// key that the token attends to (scores and weighted sum). Backward costs twice the forward [Kaplan et al. 2020, sec.
// 2.1; Narayanan et al. 2021, appendix], hence 6 * N + 12 * L * H * D * keys; where value
// heads have another width, D is the mean of the two widths. The two counts differ in `keys`:
//   full: T, every key [PaLM, Chowdhery et al. 2022, appendix B]; comparable with torchtitan, nanoGPT, nanotron, NeMo.
//   causal: T / 2, what a causal model needs; comparable with llm.c and Megatron-LM since 2025-03.
// With a sliding window of W <= T keys: full W [OLMo-core], causal W - W^2 / (2 T), which is T / 2 at W = T.
// With a sparse pattern: causal the visible pairs / T, full twice that.
#pragma once
#include <cstdint>
#include <string>

#include "base/sparse_pattern.h"

namespace athanor {

struct AttentionSize {
  int64_t heads = 0;          // H: query heads
  int64_t head_dim = 0;       // D
  int64_t value_dim = 0;      // of value heads; 0: D
  int64_t seq_length = 0;     // T
  int64_t window = 0;         // W: keys that a query attends to, 0 for all
  SparsePattern sparse = {};  // excludes a window
  bool causal = true;         // false: both counts are of all keys
};

struct FlopCount {
  double causal = 0, full = 0;
};

// FLOPs of the attention of one layer; flops_per_token() of train/setup.h adds the layers and the matmuls.
FlopCount attention_training_flops_per_token(const AttentionSize&);

struct Speed {
  double tokens_per_second = 0;  // summed over all devices
  int64_t devices = 1;
  double peak_flops = 0;  // peak of one device, per second; 0: unknown
};

struct Utilization {
  double tflops = 0;  // per device, by the causal count
  double mfu = 0;     // by the causal count; NaN if the peak is unknown
  double mfu_full = 0;
};

Utilization utilization(const FlopCount& per_token, const Speed&);

// The denominator of MFU: fixed for the whole run, so that noise in measuring the peak rate does not appear in the MFU
// curve.
struct MfuPeak {
  double flops = 0;  // per second and device; 0: not known
  std::string of;    // name of the device
};

// Returns the peak for a resumed run that used `before` and now measures `now`: on the same device the old peak, unless
// the new one is higher. *reason: why the peak changes; empty if it does not.
MfuPeak settled_peak(const MfuPeak& now, const MfuPeak& before, std::string* reason);

}  // namespace athanor
