// CollectiveTimes: time of the collectives of a step and its exposed (not overlapped) portion, by subject, group and
// kind. With a profiler these are times of NCCL's kernels. Without one they are times of calls, available only if
// streams run synchronously, in which case nothing overlaps.
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

// Sums over steps.
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
  // Registers itself with `watch` during its lifetime. profiler: null if there is none; collectives get negative labels
  // in it.
  CollectiveTimes(CollectiveWatch& watch, Profiler* profiler, bool synchronous)
      : watch_(watch), profiler_(profiler), synchronous_(synchronous) {
    watch_.observer = this;
  }
  ~CollectiveTimes() override { watch_.observer = nullptr; }
  CollectiveTimes(const CollectiveTimes&) = delete;
  CollectiveTimes& operator=(const CollectiveTimes&) = delete;

  void begins(std::string_view kind, std::string_view group) override;
  void ends() override;
  // Adds kernels with the label of a collective; label 0: the collective is unknown.
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
