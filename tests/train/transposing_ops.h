// Wraps a backend's ops and overrides whether it asks for transposed quantized operands.
#pragma once
#include "ops/decorate.h"

namespace athanor::testing {

class TransposingOps final : public Decorated<TransposingOps> {
 public:
  TransposingOps(Ops& inner, bool transposes) : inner_(inner), transposes_(transposes) {}
  const Ops& inner() const { return inner_; }
  bool transposes_quantized() const override { return transposes_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>) transposed += op.transpose_only || op.transposed;
    inner_.run(op, scratch);
  }
  int64_t transposed = 0;  // launches that wrote transposed quantized values

 private:
  Ops& inner_;
  bool transposes_;
};

}  // namespace athanor::testing
