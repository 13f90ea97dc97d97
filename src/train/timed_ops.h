// TimedOps: a decorator that takes every op's time on the device, without waiting between them, and adds up time,
// operations and traffic by op, or by op and shape. The sums are there after settle().
#pragma once
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/decorate.h"
#include "train/limit.h"

namespace athanor {

class TimedOps final : public Decorated<TimedOps> {
 public:
  TimedOps(Ops& inner, Device& device, const Limits& limits, bool by_shape)
      : inner_(inner), device_(device), limits_(limits), by_shape_(by_shape) {}

  template <class Op>
  void on(const Op& op, void* scratch) {
    auto begin = device_.record(Lane::compute);
    inner_.run(op, scratch);
    pending_.push_back({launch_of(op), std::move(begin), device_.record(Lane::compute)});
  }
  const Ops& inner() const { return inner_; }

  // Waits for the device and adds the launches since the last call to the rows.
  void settle() {
    device_.sync();
    for (const Pending& p : pending_) {
      OpRow& row = rows_[row_name(p.launch, by_shape_)];
      row.add(p.launch, limits_);
      row.seconds += device_.seconds(*p.begin, *p.end);
    }
    pending_.clear();
  }
  void forget() {
    pending_.clear();
    rows_.clear();
  }
  const std::map<std::string, OpRow>& rows() const { return rows_; }

 private:
  struct Pending {
    Launch launch;
    std::unique_ptr<Event> begin, end;
  };
  Ops& inner_;
  Device& device_;
  Limits limits_;
  bool by_shape_;
  std::vector<Pending> pending_;
  std::map<std::string, OpRow> rows_;
};

}  // namespace athanor
