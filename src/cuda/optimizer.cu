// The end of a step: StepControl in one thread, and AdamW over flat buffers, a block per tile (flat.h).
// The rules are those of ops/step_control.h. AdamW rounds after each operation, in the order of torch.optim.AdamW; no
// product fuses with a sum, so its bits are those of the CPU backend.
// Memory bound: with f32 masters 16 bytes of loads per element and 16 to 18 of stores, each byte once; eight
// loads of 16 bytes are on their way before the first is used; a skipped step writes back what it read. Not timed on a
// GPU yet.
#include "cuda/optimizer.h"

#include "base/rng.h"
#include "cuda/flat.h"
#include "ops/step_control.h"

namespace athanor::cuda {
namespace {

constexpr int kElements = kVector<float>, kChunks = 2;

// ---- device helpers

struct Moved {
  float w, m, v;
};
__device__ __forceinline__ Moved adamw(float w, float m, float v, float grad, float decay, const AdamScalars& a) {
  const float g = __fmul_rn(grad, a.grad_scale);
  m = __fadd_rn(__fmul_rn(a.beta1, m), __fmul_rn(a.one_minus_beta1, g));
  v = __fadd_rn(__fmul_rn(a.beta2, v), __fmul_rn(__fmul_rn(a.one_minus_beta2, g), g));
  const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), a.root_bias2), a.eps);
  return {__fsub_rn(__fmul_rn(w, decay), __fdiv_rn(__fmul_rn(a.step_size, m), root)), m, v};
}

// bits[k] = random_bits(seed, stream, index + k), from one Philox block or two.
__device__ __forceinline__ void random_words(uint32_t (&bits)[4], const AdamW& op, uint64_t index) {
  const PhiloxBlock block = philox(op.seed, op.stream, index / 4);
#pragma unroll
  for (int k = 0; k < 4; ++k) bits[k] = block.word[k];
  const int skip = static_cast<int>(index % 4);
  if (skip == 0) return;
  const PhiloxBlock next = philox(op.seed, op.stream, index / 4 + 1);
#pragma unroll
  for (int turn = 0; turn < 3; ++turn) {
    if (turn >= skip) continue;
    bits[0] = bits[1];
    bits[1] = bits[2];
    bits[2] = bits[3];
    bits[3] = next.word[turn];
  }
}

// round_stochastic() of tensor/half.h; the value stays an f32.
__device__ __forceinline__ float round_stochastic(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + (random >> 16)) & 0xffff0000u);
}

// ---- kernels

__global__ void step_control(StepState* state, StepControl op) {
  StepState s = *state;
  close_step(s, op);
  *state = s;
}

template <class M, class P>
__global__ void __launch_bounds__(kTileThreads, 3) adamw_tiles(AdamW op, Flat flat) {
  constexpr bool kRound = std::is_same_v<M, bf16>;
  on_tile<kElements, kChunks>(flat, blockIdx.x, [&](auto tile) {
    float w[kChunks][kElements], m[kChunks][kElements], v[kChunks][kElements], g[kChunks][kElements];
    tile.load(w, static_cast<const M*>(op.master.data));
    tile.load(m, static_cast<const float*>(op.m.data));
    tile.load(v, static_cast<const float*>(op.v.data));
    tile.load(g, static_cast<const float*>(op.grad.data));
    const auto& state = *static_cast<const StepState*>(op.state.data);
    const AdamScalars scalars = adam_scalars(op, state);
    const bool skip = state.skip;  // no branch, which would delay the loads until the state is known
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t bits[kElements];
      if constexpr (kRound)
        random_words(bits, op, (static_cast<uint64_t>(state.updates) << 40) + op.first + tile.at(c));
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float decay = tile.at(c) + i < op.decayed ? scalars.decay : 1.f;
        const Moved moved = adamw(w[c][i], m[c][i], v[c][i], g[c][i], decay, scalars);
        const float rounded = kRound ? round_stochastic(moved.w, bits[i]) : moved.w;
        w[c][i] = skip ? w[c][i] : rounded;
        m[c][i] = skip ? m[c][i] : moved.m;
        v[c][i] = skip ? v[c][i] : moved.v;
      }
    }
    tile.store(static_cast<M*>(op.master.data), w);
    tile.store(static_cast<float*>(op.m.data), m);
    tile.store(static_cast<float*>(op.v.data), v);
    if (op.param.data) tile.store(static_cast<P*>(op.param.data), w);
    const float zeros[kChunks][kElements] = {};
    tile.store(static_cast<float*>(op.grad.data), zeros);
  });
}
}  // namespace

// ---- launchers

void run(const StepControl& op, void*, cudaStream_t stream) {
  CUDA_CHECK(launch(step_control, {dim3(1), dim3(1), 0, stream}, data<StepState>(op.state), op));
}

void run(const AdamW& op, void*, cudaStream_t stream) {
  if (op.master.numel() == 0) return;
  CHECK(op.master.dtype != DType::f16, "adamw.master is f16, expected f32 or bf16");
  const Flat shape = flat(op.master, data<char>(op.master), data<char>(op.m), data<char>(op.v), data<char>(op.grad),
                          data<char>(op.param));
  by_type(op.param ? op.param.dtype : op.master.dtype, [&]<class P>() {
    const auto kernel = op.master.dtype == DType::f32 ? adamw_tiles<float, P> : adamw_tiles<bf16, P>;
    CUDA_CHECK(launch(kernel, tiles<kElements, kChunks>(shape, stream), op, shape));
  });
}
}  // namespace athanor::cuda
