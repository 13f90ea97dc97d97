#include "perf/flops.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "metrics/record.h"

namespace athanor {

FlopCount attention_training_flops_per_token(const AttentionSize& m) {
  if (m.seq_length <= 0) return {};
  const double t = double(m.seq_length);
  const double w = m.window > 0 ? std::min(double(m.window), t) : t;
  const double dims = double(m.head_dim + (m.value_dim > 0 ? m.value_dim : m.head_dim));  // of the two matmuls
  const double per_key = 6.0 * double(m.heads) * dims;                                    // 3 passes x 2 operations
  if (m.sparse.group > 0) {
    const double keys = visible_pairs(m.sparse, m.seq_length) / t;
    return {.causal = per_key * keys, .full = per_key * 2 * keys};
  }
  if (!m.causal) return {.causal = per_key * w, .full = per_key * w};
  return {.causal = per_key * (w - w * w / (2 * t)), .full = per_key * w};
}

Utilization utilization(const FlopCount& per_token, const Speed& speed) {
  const double tokens = speed.tokens_per_second / double(std::max<int64_t>(1, speed.devices));
  const double peak = speed.peak_flops > 0 ? speed.peak_flops : kUnknown;
  return {.tflops = per_token.causal * tokens / 1e12,
          .mfu = per_token.causal * tokens / peak,
          .mfu_full = per_token.full * tokens / peak};
}

MfuPeak settled_peak(const MfuPeak& now, const MfuPeak& before, std::string* reason) {
  constexpr double kNoise = 1.01;  // tolerance for noise of the measured clock
  reason->clear();
  if (before.of == now.of && before.flops > 0 && now.flops <= kNoise * before.flops) return before;
  const std::string change = cat("MFU refers to ", format_count(now.flops), "FLOP/s from here on");
  if (before.flops <= 0)
    *reason = cat(change, "; the checkpoint does not say what it referred to before");
  else if (before.of == now.of)
    *reason = cat(change, ", before to ", format_count(before.flops), "FLOP/s: ", now.of, " is faster than was seen");
  else
    *reason =
        cat(change, ", before to ", format_count(before.flops), "FLOP/s: this is ", now.of, ", it was ", before.of);
  return now;
}

}  // namespace athanor
