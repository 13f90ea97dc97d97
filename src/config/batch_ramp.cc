// The batch size of each step: constant, or a ramp in equal increments over the first sequences of a run, as with
// Megatron-LM's --rampup-batch-size.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/int.h"
#include "config/config.h"

namespace athanor {
namespace {

// Consecutive steps of the same batch size.
struct Stretch {
  int64_t batch, steps;
};

// Calls fn for every stretch in order until it returns false; the last stretch has no end.
template <class Fn>
void for_each_stretch(const Config& c, const Fn& fn) {
  const BatchRamp& ramp = c.rampup_batch_size;
  if (ramp.start > 0) {
    const int64_t increments = (c.global_batch_size - ramp.start) / ramp.increment;
    int64_t consumed = 0;
    for (int64_t i = 0; i < increments; ++i) {
      const int64_t batch = ramp.start + i * ramp.increment;
      const auto end = int64_t(double(i + 1) * double(ramp.samples) / double(increments));
      const int64_t steps = end > consumed ? div_ceil(end - consumed, batch) : 0;
      if (!fn(Stretch{batch, steps})) return;
      consumed += steps * batch;
    }
  }
  fn(Stretch{c.global_batch_size, std::numeric_limits<int64_t>::max()});
}

}  // namespace

int64_t batch_size_at(const Config& c, int64_t consumed) {
  int64_t size = 0;
  for_each_stretch(c, [&](const Stretch& s) {
    size = s.batch;
    const bool beyond = consumed / s.batch >= s.steps;
    consumed -= beyond ? s.steps * s.batch : 0;
    return beyond;
  });
  return size;
}

int64_t samples_after(const Config& c, int64_t steps) {
  int64_t samples = 0;
  for_each_stretch(c, [&](const Stretch& s) {
    const int64_t now = std::min(steps, s.steps);
    samples += now * s.batch;
    steps -= now;
    return steps > 0;
  });
  return samples;
}

int64_t steps_for(const Config& c, int64_t samples) {
  int64_t steps = 0;
  for_each_stretch(c, [&](const Stretch& s) {
    const int64_t now = std::min(div_ceil(samples, s.batch), s.steps);
    steps += now;
    samples -= now * s.batch;
    return samples > 0;
  });
  return steps;
}

int64_t common_batch_size(const Config& c) {
  const BatchRamp& ramp = c.rampup_batch_size;
  return ramp.start > 0 ? std::gcd(ramp.start, ramp.increment) : c.global_batch_size;
}

}  // namespace athanor
