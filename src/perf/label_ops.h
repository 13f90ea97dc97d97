// LabelOps: a decorator that labels each launch with its op for a profiler. Costs nothing when a graph is replayed.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "device/profiler.h"
#include "ops/decorate.h"
#include "perf/roofline.h"

namespace athanor {

class LabelOps final : public Decorated<LabelOps> {
 public:
  LabelOps(Ops& inner, Profiler& profiler, bool by_shape) : inner_(inner), profiler_(profiler), by_shape_(by_shape) {}

  template <class Op>
  void on(const Op& op, void* scratch) {
    const Labelled scope(profiler_, label_of(row_name(launch_of(op, inner_), by_shape_)));
    inner_.run(op, scratch);
  }
  const Ops& inner() const { return inner_; }
  const std::string& row_of(int64_t label) const { return rows_.at(size_t(label) - 1); }

 private:
  struct Labelled {
    Labelled(Profiler& profiler, int64_t label) : profiler_(profiler) { profiler_.begin(label); }
    ~Labelled() { profiler_.end(); }
    Labelled(const Labelled&) = delete;
    Labelled& operator=(const Labelled&) = delete;
    Profiler& profiler_;
  };
  int64_t label_of(const std::string& row) {
    const auto [known, is_new] = labels_.try_emplace(row, int64_t(rows_.size()) + 1);
    if (is_new) rows_.push_back(row);
    return known->second;
  }

  Ops& inner_;
  Profiler& profiler_;
  bool by_shape_;
  std::map<std::string, int64_t> labels_;
  std::vector<std::string> rows_;  // row name of label i + 1
};

}  // namespace athanor
