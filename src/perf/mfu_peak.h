// The rate that MFU is a fraction of: one for a whole run, so that its curve tells of the run and not of the moment at
// which a rate was measured.
#pragma once
#include <string>

namespace athanor {

struct MfuPeak {
  double flops = 0;  // per second and device; 0: not known
  std::string of;    // the device
};

// What a run goes on with that has referred to `before` and finds `now`: on the same device the former, unless the
// device turns out to be faster. told: why it changes; empty: it does not.
MfuPeak settled_peak(const MfuPeak& now, const MfuPeak& before, std::string* told);

}  // namespace athanor
