#include "train/step_requests.h"

#include <algorithm>
#include <iterator>

namespace athanor {
namespace {

constexpr bool StepRequests::*kFlags[] = {&StepRequests::save, &StepRequests::end, &StepRequests::writing,
                                          &StepRequests::failed};
static_assert(kStopSignals.size() + std::size(kFlags) <= kRequests);

constexpr RequestBits bit_of_signal(size_t i) { return RequestBits{1} << i; }
constexpr RequestBits bit_of_flag(size_t i) { return RequestBits{1} << (kStopSignals.size() + i); }

}  // namespace

RequestBits to_bits(const StepRequests& requests) {
  RequestBits bits = 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i)
    if (requests.stop_signal == kStopSignals[i]) bits |= bit_of_signal(i);
  CHECK(requests.stop_signal == 0 || bits != 0, "signal ", requests.stop_signal, " is none that stops a run");
  for (size_t i = 0; i < std::size(kFlags); ++i)
    if (requests.*kFlags[i]) bits |= bit_of_flag(i);
  return bits;
}

StepRequests to_requests(RequestBits bits) {
  StepRequests requests;
  for (size_t i = 0; i < kStopSignals.size(); ++i)
    if (bits & bit_of_signal(i)) requests.stop_signal = std::max(requests.stop_signal, kStopSignals[i]);
  for (size_t i = 0; i < std::size(kFlags); ++i) requests.*kFlags[i] = (bits & bit_of_flag(i)) != 0;
  return requests;
}

}  // namespace athanor
