// The ops of a backend that wants codes transposed, or does not, whatever it says itself; likewise that makes codes of
// SwiGLU's gradient and of norms in the launch that computes these.
#pragma once
#include "ops/decorate.h"

namespace athanor::testing {

class TurningOps final : public Decorated<TurningOps> {
 public:
  TurningOps(Ops& inner, bool turns, bool fuses = false) : inner_(inner), turns_(turns), fuses_(fuses) {}
  const Ops& inner() const { return inner_; }
  bool turns_codes() const override { return turns_; }
  bool fuses(const Quantize& op) const override { return fuses_ && op.may_follow(); }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>)
      turned += op.turn || op.turned, of_gradients += bool(op.dy), of_norms += bool(op.norm);
    if constexpr (std::is_same_v<Op, SwigluBwd>) ++gradients;
    if constexpr (std::is_same_v<Op, NormFwd>) statistics_alone += !op.y;
    inner_.run(op, scratch);
  }
  int64_t turned = 0;                          // launches that wrote transposed codes
  int64_t gradients = 0, of_gradients = 0;     // of SwiGLU: stored, or made into codes at once
  int64_t of_norms = 0, statistics_alone = 0;  // norms that are made into codes, and the launches before

 private:
  Ops& inner_;
  bool turns_, fuses_;
};

}  // namespace athanor::testing
