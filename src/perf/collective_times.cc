#include "perf/collective_times.h"

#include <utility>

namespace athanor {

void CollectiveTimes::begins(std::string_view kind, std::string_view group) {
  now_ = {CollectiveSubject::name(), std::string(group), std::string(kind)};
  if (!profiler_) {
    since_ = Clock::now();
    return;
  }
  const auto [label, is_new] = labels_.try_emplace(now_, -1 - int64_t(keys_.size()));
  if (is_new) keys_.push_back(now_);
  profiler_->begin(label->second);
}

void CollectiveTimes::ends() {
  if (profiler_) return profiler_->end();
  if (!synchronous_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
  pending_[now_] += {.calls = 1, .exposed = seconds, .seconds = seconds};
}

void CollectiveTimes::add(int64_t label, const CollectiveRow& kernels) {
  rows_[label < 0 ? keys_.at(size_t(-1 - label)) : CollectiveKey{}] += kernels;
}

void CollectiveTimes::settle(bool count) {
  for (const auto& [key, row] : std::exchange(pending_, {}))
    if (count) rows_[key] += row;
}

}  // namespace athanor
