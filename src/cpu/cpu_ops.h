// The CPU backend: every op on host memory, with one thread pool. One .cc per family of ops, named as in ops/.
#pragma once
#include "cpu/thread_pool.h"
#include "ops/ops.h"

namespace athanor {

class CpuOps final : public Ops {
 public:
  // pool must outlive the ops.
  explicit CpuOps(ThreadPool& pool) : pool_(pool) {}
  using Ops::fuses;
  using Ops::scratch;

#define ATHANOR_OP(Op) void run(const Op&, void* scratch) override;
  ATHANOR_EACH_OP(ATHANOR_OP)
#undef ATHANOR_OP
  void run_transposed(const Quantize&, void* scratch);

  size_t scratch(const Gemm&) const override;
  size_t scratch(const ColumnSum&) const override;
  size_t scratch(const AttentionFwd&) const override;
  size_t scratch(const AttentionBwd&) const override;
  size_t scratch(const NormFwd&) const override;
  size_t scratch(const NormApply&) const override;
  size_t scratch(const NormBwd&) const override;
  size_t scratch(const QkNormFwd&) const override;
  size_t scratch(const QkNormBwd&) const override;
  size_t scratch(const QkNormSums&) const override;
  size_t scratch(const ScaledSumBwd&) const override;
  size_t scratch(const GatedSumBwd&) const override;
  size_t scratch(const EmbeddingBwd&) const override;
  size_t scratch(const ReduceSum&) const override;
  size_t scratch(const SquaredNorm&) const override;
  size_t scratch(const NormalizeMatrix&) const override;
  size_t scratch(const Orthogonalize&) const override;
  size_t scratch(const NormalizeNeurons&) const override;
  size_t scratch(const Quantize&) const override;
  size_t scratch(const ScaledGemm&) const override;
  size_t scratch(const Int8Gemm&) const override;
  size_t scratch(const ScaleByMagnitudeBwd&) const override;
  size_t scratch(const RouteBwd&) const override;
  size_t scratch(const GroupedGemm&) const override;

  bool fuses(const Orthogonalize&) const override { return true; }

 private:
  CpuOps single() const { return CpuOps(alone_); }
  ThreadPool& pool_;
  mutable ThreadPool alone_{1};  // for ops that one thread of pool_ runs alone
};

}  // namespace athanor
