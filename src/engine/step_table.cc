#include "engine/step_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {"data",      "forward",    "backward", "communication",
                                                               "optimizer", "checkpoint", "eval",     "other"};

// Distributes `whole` units in proportion to `parts`, as integers that sum to `whole` (largest remainder method).
std::array<int64_t, kPhases> apportion(const std::array<int64_t, kPhases>& parts, int64_t whole) {
  const double sum = double(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
  std::array<int64_t, kPhases> shares{};
  if (sum <= 0) return shares;
  std::array<double, kPhases> remainders{};
  for (size_t i = 0; i < kPhases; ++i) {
    const double exact = double(whole) * (double(parts[i]) / sum);
    shares[i] = int64_t(exact);
    remainders[i] = exact - double(shares[i]);
  }
  int64_t left = whole - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (; left > 0; --left) {
    const size_t i = size_t(std::max_element(remainders.begin(), remainders.end()) - remainders.begin());
    ++shares[i];
    remainders[i] = -1;
  }
  return shares;
}

std::string row(std::string_view name, int64_t hundredths_of_ms, int64_t tenths_of_percent) {
  return format_text("%-13.*s %11.2f %8.1f\n", int(name.size()), name.data(), double(hundredths_of_ms) * 1e-2,
                     double(tenths_of_percent) * 1e-1);
}

}  // namespace

std::string_view to_string(Phase phase) { return kPhaseNames.at(size_t(phase)); }

int64_t PhaseTimes::total() const { return std::accumulate(ns.begin(), ns.end(), int64_t{0}); }

void PhaseClock::settle() {
  const auto now = now_();
  times_[phase_] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
  since_ = now;
}

Phase PhaseClock::enter(Phase phase) {
  settle();
  return std::exchange(phase_, phase);
}

PhaseTimes PhaseClock::lap() {
  settle();
  return std::exchange(times_, PhaseTimes{});
}

void StepTable::add(const PhaseTimes& times, int64_t steps) {
  for (size_t i = 0; i < kPhases; ++i) times_.ns[i] += times.ns[i];
  steps_ += steps;
}

std::string StepTable::report() const {
  if (steps_ == 0) return "";
  const int64_t total = times_.total();
  const int64_t per_step = std::llround(double(total) / double(steps_) * 1e-4);  // units of 0.01 ms
  const auto ms = apportion(times_.ns, per_step), percent = apportion(times_.ns, 1000);
  std::string out = cat("Time per step over ", steps_, " steps (", format_duration(double(total) * 1e-9), ")\n");
  out += "phase             ms/step        %\n";
  for (size_t i = 0; i < kPhases; ++i) out += row(kPhaseNames[i], ms[i], percent[i]);
  return out + row("step", per_step, total > 0 ? 1000 : 0);
}

}  // namespace athanor
