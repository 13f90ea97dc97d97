// TimedOps: a decorator that waits for every op and adds up its time on the device, operations and traffic by op name.
#pragma once
#include <map>
#include <string>

#include "device/device.h"
#include "ops/decorate.h"

namespace athanor {

class TimedOps final : public Decorated<TimedOps> {
 public:
  struct Total {
    int64_t launches = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };
  TimedOps(Ops& inner, Device& device) : inner_(inner), device_(device) {}

  template <class Op>
  void on(const Op& op, void* scratch) {
    const auto begin = device_.record(Lane::compute);
    inner_.run(op, scratch);
    const auto end = device_.record(Lane::compute);
    device_.wait(*end);
    const Cost cost = op.cost();
    Total& t = totals[Op::kName];
    ++t.launches;
    t.seconds += device_.seconds(*begin, *end);
    t.flops += cost.flops;
    t.bytes += cost.bytes;
  }
  const Ops& inner() const { return inner_; }
  std::map<std::string, Total> totals;

 private:
  Ops& inner_;
  Device& device_;
};

}  // namespace athanor
