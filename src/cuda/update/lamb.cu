// LAMB's elementwise kernels: Adam directions with decay, which replace the gradients, and their scaling by trust
// ratios. One launch over all parts, one block per tile of 2048 elements (ranges.h), rounded as on the CPU. Memory
// bound: with f32 moments 16 bytes of loads and 12 of stores per element, then 4 and 4. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/ranges.h"
#include "cuda/update/adam_rule.h"
#include "cuda/vec8.h"

namespace athanor::cuda {
namespace {

struct DirectionPart {
  const float* w;  // null: no decay
  void *m, *v;
  float* grad;
  Extent extent;
  int64_t decayed;
  uint64_t moment_stream, first;
};

template <class M, class V>
__global__ void __launch_bounds__(kTileThreads)
    adam_directions(const __grid_constant__ Ranges<DirectionPart> parts, const AdamRule op) {
  ptx::wait_for_earlier_kernels();
  constexpr bool kRandomM = sizeof(M) == 2, kRandomV = sizeof(V) == 2;
  const int number = parts.find(blockIdx.x);
  const DirectionPart& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float w[kElements] = {}, m[kElements], v[kElements], g[kElements];
    if (p.w != nullptr) vec8.load(w, p.w);
    vec8.load(m, static_cast<const M*>(p.m));
    vec8.load(v, static_cast<const V*>(p.v));
    vec8.load(g, p.grad);
    const LambScalars a = lamb_scalars(op, *op.state);
    const bool skip = op.state->skip;
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t bits[4] = {};
      if constexpr (kRandomM || kRandomV) random_words(bits, op.seed, p.moment_stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        const bool decays = vec8.first + i < p.decayed;
        const float scaled = __fmul_rn(g[i], a.grad_scale);
        float first = __fadd_rn(__fmul_rn(a.beta1, m[i]), __fmul_rn(a.one_minus_beta1, scaled));
        float second = __fadd_rn(__fmul_rn(a.beta2, v[i]), __fmul_rn(__fmul_rn(a.one_minus_beta2, scaled), scaled));
        const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(second), a.root_bias2), a.eps);
        const float u = __fdiv_rn(__fmul_rn(a.inverse_bias1, first), root);
        const float decay = !decays ? 0.f : __fmul_rn(w[i], u) >= 0.f ? a.decay : a.decay_away;
        if constexpr (kRandomM) first = round_stochastic(first, bits[k] >> 16);
        if constexpr (kRandomV) second = round_stochastic(second, bits[k] & 0xffffu);
        g[i] = skip ? 0.f : __fadd_rn(u, __fmul_rn(decay, w[i]));
        m[i] = skip ? m[i] : first;
        v[i] = skip ? v[i] : second;
      }
    }
    vec8.store(static_cast<M*>(p.m), m);
    vec8.store(static_cast<V*>(p.v), v);
    vec8.store(p.grad, g);
  });
}

struct ScaledPart {
  float* grad;
  const double* sums;
  int64_t count;
  Extent extent;
};

__global__ void __launch_bounds__(kTileThreads) scale_by_trust_ratio(const __grid_constant__ Ranges<ScaledPart> parts) {
  ptx::wait_for_earlier_kernels();
  const int number = parts.find(blockIdx.x);
  const ScaledPart& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float g[kElements];
    vec8.load(g, p.grad);
    const float ratio = trust_ratio(p.sums, p.count);
#pragma unroll
    for (int i = 0; i < kElements; ++i) g[i] = __fmul_rn(g[i], ratio);
    vec8.store(p.grad, g);
  });
}

// Trust ratios of 1-bit LAMB (this kernel and the next): one warp per tensor; its first thread does all the work.
struct AveragedPart {
  const double* sums;
  int64_t count;
  float* trust;
};

__global__ void __launch_bounds__(32)
    average_trust_ratio(const __grid_constant__ Ranges<AveragedPart> parts, const StepState* state) {
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x != 0 || state->skip) return;
  const AveragedPart& p = parts.range[parts.find(blockIdx.x)];
  p.trust[0] = next_average(p.trust[0], trust_ratio(p.sums, p.count));
}

struct FrozenPart {
  const float* max;
  float* trust;
  double* sums;
};

__global__ void __launch_bounds__(32)
    frozen_trust_ratio(const __grid_constant__ Ranges<FrozenPart> parts, const StepState* state) {
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x != 0) return;
  const FrozenPart& p = parts.range[parts.find(blockIdx.x)];
  p.sums[1] = 1;
  if (state->skip) {
    p.sums[0] = 1;
    return;
  }
  const float factor = next_factor(p.trust[1], *p.max);
  const double ratio = static_cast<double>(p.trust[0]) * static_cast<double>(factor);
  p.trust[1] = factor;
  p.sums[0] = ratio * ratio;
}

}  // namespace

void run(const AdamDirection& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<DirectionPart>& table, const AdamDirection::Part& p) {
    if (p.grad.numel() == 0) return;
    const Extent whole = extent(p.grad.numel(), data<char>(p.w), data<char>(p.m), data<char>(p.v), data<char>(p.grad));
    table.add({data<float>(p.w), p.m.data, p.v.data, data<float>(p.grad), whole, p.decayed, p.moment_stream, p.first},
              tiles_of(whole.n));
  };
  const AdamDirection::Part& like = op.parts.front();
  const bool short_m = like.m.dtype == DType::bf16, short_v = like.v.dtype == DType::bf16;
  const auto kernel = short_m   ? short_v ? adam_directions<bf16, bf16> : adam_directions<bf16, float>
                        : short_v ? adam_directions<float, bf16>
                                : adam_directions<float, float>;
  launch_tables(kernel, op.parts, add_part, stream, adam_rule(op));
}

void run(const ScaleByTrustRatio& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<ScaledPart>& table, const ScaleByTrustRatio::Part& p) {
    if (p.grad.numel() == 0) return;
    const Extent whole = extent(p.grad.numel(), data<char>(p.grad));
    table.add({data<float>(p.grad), data<double>(p.sums), p.sums.cols(), whole}, tiles_of(whole.n));
  };
  launch_tables(scale_by_trust_ratio, op.parts, add_part, stream);
}

void run(const AverageTrustRatio& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<AveragedPart>& table, const AverageTrustRatio::Part& p) {
    table.add({data<double>(p.sums), p.sums.cols(), data<float>(p.trust)}, 1);
  };
  in_tables<AveragedPart>(op.parts, add_part, [&](const Ranges<AveragedPart>& table) {
    const LaunchConfig config{dim3(table.blocks()), dim3(32), 0, stream};
    CUDA_CHECK(launch(average_trust_ratio, config, table, data<StepState>(op.state)));
  });
}

void run(const FrozenTrustRatio& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<FrozenPart>& table, const FrozenTrustRatio::Part& p) {
    table.add({data<float>(p.max), data<float>(p.trust), data<double>(p.sums)}, 1);
  };
  in_tables<FrozenPart>(op.parts, add_part, [&](const Ranges<FrozenPart>& table) {
    const LaunchConfig config{dim3(table.blocks()), dim3(32), 0, stream};
    CUDA_CHECK(launch(frozen_trust_ratio, config, table, data<StepState>(op.state)));
  });
}
}  // namespace athanor::cuda
