// CollectiveTimes: how long the collectives of a step took and how much of that was exposed (not overlapped), by
// subject, group and kind. With a profiler, times of NCCL's kernels; without one, of calls, if streams run
// synchronously, so that nothing overlaps. Otherwise there are no times.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/observed.h"
#include "device/profiler.h"

namespace athanor {

struct CollectiveKey {
  std::string subject;  // CollectiveSubject: a unit or a weight, or ""
  std::string group, kind;
  friend bool operator<(const CollectiveKey& a, const CollectiveKey& b) {
    return std::tie(a.subject, a.group, a.kind) < std::tie(b.subject, b.group, b.kind);
  }
};

// Summed over steps.
struct CollectiveRow {
  int64_t calls = 0;
  double exposed = 0, seconds = 0;
  CollectiveRow& operator+=(const CollectiveRow& r) {
    calls += r.calls, exposed += r.exposed, seconds += r.seconds;
    return *this;
  }
};

class CollectiveTimes final : public CollectiveObserver {
 public:
  // Registers itself with `watch` during its lifetime. profiler: null if there is none; else it gets negative labels.
  CollectiveTimes(CollectiveWatch& watch, Profiler* profiler, bool synchronous)
      : watch_(watch), profiler_(profiler), synchronous_(synchronous) {
    watch_.observer = this;
  }
  ~CollectiveTimes() override { watch_.observer = nullptr; }
  CollectiveTimes(const CollectiveTimes&) = delete;
  CollectiveTimes& operator=(const CollectiveTimes&) = delete;

  void begins(std::string_view kind, std::string_view group) override;
  void ends() override;
  // Adds kernels with the label of a collective; label 0: unknown which.
  void add(int64_t label, const CollectiveRow& kernels);
  // Counts or discards the calls since the last settle().
  void settle(bool count);
  const std::map<CollectiveKey, CollectiveRow>& rows() const { return rows_; }

 private:
  using Clock = std::chrono::steady_clock;
  CollectiveWatch& watch_;
  Profiler* profiler_;
  bool synchronous_;
  Clock::time_point since_;
  CollectiveKey now_;
  std::map<CollectiveKey, CollectiveRow> rows_, pending_;
  std::map<CollectiveKey, int64_t> labels_;
  std::vector<CollectiveKey> keys_;  // keys_[i] belongs to label -1 - i
};

}  // namespace athanor
