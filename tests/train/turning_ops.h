// The ops of a backend that wants codes transposed, or does not, whatever it says itself; likewise that makes codes of
// SwiGLU's gradient in the launch that computes it.
#pragma once
#include "ops/decorate.h"

namespace athanor::testing {

class TurningOps final : public Decorated<TurningOps> {
 public:
  TurningOps(Ops& inner, bool turns, bool fuses_gradient = false)
      : inner_(inner), turns_(turns), fuses_gradient_(fuses_gradient) {}
  const Ops& inner() const { return inner_; }
  bool turns_codes() const override { return turns_; }
  bool fuses(const Quantize& op) const override { return fuses_gradient_ && op.takes_dy(); }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>) turned += op.turn || op.turned, of_gradients += bool(op.dy);
    if constexpr (std::is_same_v<Op, SwigluBwd>) ++gradients;
    inner_.run(op, scratch);
  }
  int64_t turned = 0;                       // launches that wrote transposed codes
  int64_t gradients = 0, of_gradients = 0;  // of SwiGLU: stored, or made into codes at once

 private:
  Ops& inner_;
  bool turns_, fuses_gradient_;
};

}  // namespace athanor::testing
