// Wall-clock time per phase: a clock that is always in exactly one phase, and a table over the run. Times are integer
// nanoseconds, so the phases sum exactly to the total.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

enum class Phase { data, forward, backward, communication, optimizer, checkpoint, eval, other };
inline constexpr size_t kPhases = 8;
std::string_view to_string(Phase);

struct PhaseTimes {
  std::array<int64_t, kPhases> ns{};

  int64_t& operator[](Phase p) { return ns[size_t(p)]; }
  int64_t operator[](Phase p) const { return ns[size_t(p)]; }
  int64_t total() const;
};

// Host wall-clock. For asynchronous device work a phase measures only the launches; synchronize the device before
// leaving the phase where that matters.
class PhaseClock {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();

  explicit PhaseClock(Now now = &Clock::now) : now_(now), since_(now()) {}  // starts in Phase::other

  // Switches to another phase and returns the previous one, so that the caller can return to it.
  Phase enter(Phase);
  // The times since the last lap (or the start). The next lap begins at this instant, in the same phase.
  PhaseTimes lap();

 private:
  void settle();

  Now now_;
  Clock::time_point since_;
  Phase phase_ = Phase::other;
  PhaseTimes times_;
};

// Enters `phase` and returns to the previous phase at the end of the scope.
class PhaseScope {
 public:
  PhaseScope(PhaseClock& clock, Phase phase) : clock_(clock), before_(clock.enter(phase)) {}
  ~PhaseScope() { clock_.enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseClock& clock_;
  Phase before_;
};

class StepTable {
 public:
  // Adds a lap: `steps` is 1 for a step, 0 for time between steps.
  void add(const PhaseTimes&, int64_t steps = 1);
  int64_t steps() const { return steps_; }
  const PhaseTimes& times() const { return times_; }

  // Milliseconds per step and percent by phase. The printed values sum to the printed total (rounded by the largest
  // remainder method). Empty if there was no step.
  std::string report() const;

 private:
  PhaseTimes times_;
  int64_t steps_ = 0;
};

}  // namespace athanor
