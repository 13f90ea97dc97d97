#include "perf/mfu_peak.h"

#include "base/error.h"
#include "base/format.h"

namespace athanor {

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
