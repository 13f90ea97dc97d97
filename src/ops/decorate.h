// Decorators: backends that wrap backends. Decorated<D> implements every op through one template member D::on(op,
// scratch). It forwards scratch sizes and the fusion queries to D::inner(); if that is not a backend, nothing is fused.
// Orthogonalize runs in parts, each through D::on(), unless D::inner() fuses it.
#pragma once
#include <string_view>
#include <type_traits>

#include "ops/ops.h"

namespace athanor {

template <class D>
struct Decorated : Ops {
#define ATHANOR_OP(Op)                                                      \
  void run(const Op& op, void* scratch) override { on_whole(op, scratch); } \
  size_t scratch(const Op& op) const override { return scratch_of_whole(op); }
  ATHANOR_EACH_OP(ATHANOR_OP)
#undef ATHANOR_OP

  bool fuses(const Gemm& op) const override { return asked(op); }
  bool fuses(const AttentionBwd& op) const override { return asked(op); }
  bool fuses(const GroupedGemm& op) const override { return asked(op); }
  bool fuses(const Orthogonalize& op) const override { return asked(op); }
  ScaledGemmPlan plan_scaled_gemm(const ScaledGemm& op) const override {
    const auto& inner = static_cast<const D*>(this)->inner();
    if constexpr (std::is_base_of_v<Ops, std::remove_cvref_t<decltype(inner)>>) return inner.plan_scaled_gemm(op);
    return {};
  }
  bool transposes_quantized() const override {
    const auto& inner = static_cast<const D*>(this)->inner();
    if constexpr (std::is_base_of_v<Ops, std::remove_cvref_t<decltype(inner)>>) return inner.transposes_quantized();
    return false;
  }

 private:
  template <class Op>
  static constexpr bool kMayFuse = requires(const D& d, const Op& op) {
    d.inner().fuses(op);
  };
  template <class Op>
  void on_whole(const Op& op, void* scratch) {
    static_cast<D*>(this)->on(op, scratch);
  }
  void on_whole(const Orthogonalize& op, void* scratch) {
    if constexpr (kMayFuse<Orthogonalize>)
      if (this->fuses(op)) return static_cast<D*>(this)->on(op, scratch);
    for (const Orthogonalize::Matrix& m : op.matrices) run_parts(op, m, scratch, *this);
  }
  template <class Op>
  size_t scratch_of_whole(const Op& op) const {
    return static_cast<const D*>(this)->inner().scratch(op);
  }
  size_t scratch_of_whole(const Orthogonalize& op) const {
    if constexpr (kMayFuse<Orthogonalize>)
      return static_cast<const D*>(this)->inner().scratch(op);  // enough for each part, too
    else
      return scratch_of_parts(op, *this);
  }
  template <class Asked>
  bool asked(const Asked& op) const {
    if constexpr (kMayFuse<Asked>) return static_cast<const D*>(this)->inner().fuses(op);
    return false;
  }
};

// Properties of a launch that are known without running it.
struct Launch {
  const char* op;
  Cost cost;
  Shape shape;        // shape of the first tensor; for GEMMs [M, N]
  int64_t inner = 0;  // K of GEMMs
  Factors factors = Factors::matrices;
  double moved = 0;           // see ScaledGemmPlan
  double epilogue_bytes = 0;  // memory traffic of a GEMM's epilogue
  bool multiplies() const { return inner > 0 || std::string_view(op) == Orthogonalize::kName; }
};

// ops: the backend that runs the op.
template <class Op>
Launch launch_of(const Op& op, const Ops& ops) {
  Op copy = op;
  Launch launch{.op = Op::kName, .cost = op.cost(), .shape = copy.fields()[0].t->shape};
  if constexpr (std::is_same_v<Op, Gemm>) launch.inner = op.k(), launch.epilogue_bytes = op.epilogue_bytes();
  if constexpr (std::is_same_v<Op, ScaledGemm>) {
    const ScaledGemmPlan gemm = ops.plan_scaled_gemm(op);
    launch.inner = op.gemm.k(), launch.factors = gemm.factors, launch.moved = gemm.moved;
    launch.epilogue_bytes = op.gemm.epilogue_bytes();
  }
  return launch;
}

// Backend of a dry run: launches nothing, collects the ops that a backend may autotune and, if requested, every launch.
// Scratch sizes are those of the real backend.
class PlanOps final : public Decorated<PlanOps> {
 public:
  explicit PlanOps(const Ops& real) : real_(real) {}
  template <class Op>
  void on(const Op& op, void*) {
    if (launches) launches->push_back(launch_of(op, real_));
    if constexpr (std::is_same_v<Op, Gemm>) gemms.push_back(op);
    if constexpr (std::is_same_v<Op, ScaledGemm>) of_quantized.push_back(op);
    if constexpr (std::is_same_v<Op, GroupedGemm>) grouped.push_back(op);
    if constexpr (std::is_same_v<Op, AttentionFwd>) attention_forward.push_back(op);
    if constexpr (std::is_same_v<Op, AttentionBwd>) attention_backward.push_back(op);
  }
  const Ops& inner() const { return real_; }
  std::vector<Launch>* launches = nullptr;  // optional list to append launches to
  std::vector<Gemm> gemms;
  std::vector<ScaledGemm> of_quantized;
  std::vector<GroupedGemm> grouped;
  std::vector<AttentionFwd> attention_forward;
  std::vector<AttentionBwd> attention_backward;

 private:
  const Ops& real_;
};

}  // namespace athanor
