// Ops that check that no operand is in host memory of the plan, as on a GPU: offloaded tensors must be copied to the
// device first.
#pragma once
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "device/memory_plan.h"
#include "ops/decorate.h"

namespace athanor::testing {

class DeviceMemoryOps final : public Decorated<DeviceMemoryOps> {
 public:
  DeviceMemoryOps(Ops& inner, const MemoryPlan& plan) : inner_(inner) {
    for (const MemoryPlan::Line& line : plan.lines())
      if (line.where != Mem::device) {
        const auto* begin = static_cast<const char*>(line.target->data);
        host_.emplace_back(begin, begin + line.bytes);
      }
  }
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    Op copy = op;
    for (const Field& f : copy.fields())
      for (const auto& [begin, end] : host_)
        EXPECT_FALSE(*f.t && f.t->data >= begin && f.t->data < end)
            << Op::kName << "." << f.name << " is in host memory";
    inner_.run(op, scratch);
  }

 private:
  Ops& inner_;
  std::vector<std::pair<const char*, const char*>> host_;
};

}  // namespace athanor::testing
