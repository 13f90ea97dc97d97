// Wraps a backend's ops and overrides whether it asks for transposed quantized operands.
#pragma once
#include "ops/decorate.h"

namespace athanor::testing {

class TurningOps final : public Decorated<TurningOps> {
 public:
  TurningOps(Ops& inner, bool turns) : inner_(inner), turns_(turns) {}
  const Ops& inner() const { return inner_; }
  bool transposes_quantized() const override { return turns_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>) transposed += op.turn || op.transposed;
    inner_.run(op, scratch);
  }
  int64_t transposed = 0;  // launches that wrote transposed quantized values

 private:
  Ops& inner_;
  bool turns_;
};

}  // namespace athanor::testing
