// The denominator of MFU: fixed for the whole run, so that the curve shows the run and not noise in measuring the rate.
#pragma once
#include <string>

namespace athanor {

struct MfuPeak {
  double flops = 0;  // per second and device; 0: not known
  std::string of;    // name of the device
};

// Returns the peak for a resumed run that used `before` and now finds `now`: on the same device the old one, unless the
// device is faster now. *told: why the peak changes; empty if it does not.
MfuPeak settled_peak(const MfuPeak& now, const MfuPeak& before, std::string* told);

}  // namespace athanor
