// The ops on a GPU: each is launched on one stream, in order; calls return at once.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/attention/runner.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "ops/decorate.h"
#include "ops/tuning.h"
namespace athanor::cuda {

class CudaOps final : public Decorated<CudaOps>, public Tuning {
 public:
  CudaOps(cudaStream_t stream, std::unique_ptr<GemmRunner> gemm, AttentionRunner attention = {})
      : stream_(stream), sizes_{std::move(gemm), std::move(attention)} {}
  GemmRunner& gemm() const { return *sizes_.gemm; }

  std::string search(const Tunable& ops, double seconds) override;
  std::string export_choices() const override;
  std::string import_choices(const std::string& text) override;
  GemmTime time(const Gemm& op, bool recompute) override { return gemm().time(op, recompute, stream_); }
  GemmTime time(const ScaledGemm& op) override { return gemm().time(op, stream_); }
  size_t wanted_scratch(const Tunable& ops) override { return sizes_.attention.wanted_scratch(ops); }
  size_t allow_scratch(size_t bytes) override { return sizes_.attention.allow_scratch(bytes); }
  std::string describe_attention(const Tunable& ops) override { return sizes_.attention.describe(ops); }
  std::string describe_quantized(const Tunable& ops) override {
    const auto native = [&](const ScaledGemm& op) { return gemm().native(op).possible; };
    return cuda::describe_quantized(ops.of_quantized, std::ranges::count_if(ops.of_quantized, native),
                                    gemm().capability());
  }
  ScaledGemmPlan plan_scaled_gemm(const ScaledGemm& op) const override {
    return cuda::plan_scaled_gemm(op, gemm().native(op));
  }
  bool transposes_quantized() const override { return cuda::transposes_quantized(gemm().capability()); }
  std::string key() const override;

  struct Sizes {
    std::unique_ptr<GemmRunner> gemm;
    AttentionRunner attention;

    template <class Op>
    size_t scratch(const Op& op) const {
      if constexpr (kIsGemm<Op>) {
        return gemm->scratch(op);
      } else if constexpr (kIsAttention<Op>) {
        return attention.scratch(op);
      } else {
        return cuda::scratch(op);
      }
    }
    bool fuses(const Gemm& op) const { return gemm->fuses(op); }
    bool fuses(const AttentionBwd& op) const { return attention.fuses(op); }
    bool fuses(const GroupedGemm& op) const { return gemm->fuses(op); }
  };
  const Sizes& inner() const { return sizes_; }

  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (kIsGemm<Op>) {
      gemm().run(op, scratch, stream_);
    } else if constexpr (kIsAttention<Op>) {
      sizes_.attention.run(op, scratch, stream_);
    } else {
      cuda::run(op, scratch, stream_);
    }
  }

 private:
  template <class Op>
  static constexpr bool kIsGemm = std::is_same_v<Op, Gemm> || std::is_same_v<Op, ScaledGemm>;
  template <class Op>
  static constexpr bool kIsAttention = std::is_same_v<Op, AttentionFwd> || std::is_same_v<Op, AttentionBwd>;
  cudaStream_t stream_;
  Sizes sizes_;
};
}  // namespace athanor::cuda
