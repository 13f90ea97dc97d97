// The denominator of MFU: fixed for the whole run, so that noise in measuring the peak rate does not appear in the MFU
// curve.
#pragma once
#include <string>

namespace athanor {

struct MfuPeak {
  double flops = 0;  // per second and device; 0: not known
  std::string of;    // name of the device
};

// Returns the peak for a resumed run that used `before` and now measures `now`: on the same device the old peak, unless
// the new one is higher. *reason: why the peak changes; empty if it does not.
MfuPeak settled_peak(const MfuPeak& now, const MfuPeak& before, std::string* reason);

}  // namespace athanor
