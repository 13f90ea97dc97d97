// TraceOps: a decorator that writes a span per op to a Chrome trace.
#pragma once
#include "device/device.h"
#include "metrics/trace.h"
#include "ops/decorate.h"

namespace athanor {

class TraceOps final : public Decorated<TraceOps> {
 public:
  TraceOps(Ops& inner, Device& device, TraceWriter& trace) : inner_(inner), device_(device), trace_(trace) {}
  template <class Op>
  void on(const Op& op, void* scratch) {
    const TraceScope scope(&trace_, Op::kName);
    inner_.run(op, scratch);
    device_.sync();  // a traced run waits for every op, so that spans are its own time
  }
  const Ops& inner() const { return inner_; }

 private:
  Ops& inner_;
  Device& device_;
  TraceWriter& trace_;
};

}  // namespace athanor
