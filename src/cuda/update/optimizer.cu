// The end of a step: StepControl in one warp; update rules over all flat buffers in one launch, one block per tile of
// 2048 elements (ranges.h). Every operation of the rules (ops/update.h) is rounded as in torch.optim, without fused
// multiply-add, so the bits are those of the CPU backend. Memory bound, each byte moves once: with all f32 and a 16-bit
// compute copy, 16 bytes of loads and 18 of stores per element; with bf16 weights plus remainders and bf16 moments 12
// and 12. A skipped step writes back what it read. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/ranges.h"
#include "cuda/reduce.h"
#include "cuda/update/adam_rule.h"
#include "cuda/vec8.h"
#include "ops/step_control.h"

namespace athanor::cuda {
namespace {

// ---- arithmetic

// Weight after weight decay and an update by u.
template <class Scalars>
__device__ __forceinline__ float decayed(float w, float u, const Scalars& a) {
  return __fsub_rn(__fmul_rn(w, __fmul_rn(w, u) >= 0.f ? a.decay : a.decay_away), u);
}

struct Moved {
  float w, m, v;
};
__device__ __forceinline__ Moved adamw(float w, float m, float v, float grad, bool decays, const AdamScalars& own) {
  const AdamScalars a = decays ? own : own.undecayed();
  float g = __fmul_rn(grad, a.grad_scale);
  if (a.l2 != 0.f) g = __fadd_rn(g, __fmul_rn(a.l2, w));
  m = __fadd_rn(__fmul_rn(a.beta1, m), __fmul_rn(a.one_minus_beta1, g));
  v = __fadd_rn(__fmul_rn(a.beta2, v), __fmul_rn(__fmul_rn(a.one_minus_beta2, g), g));
  const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), a.root_bias2), a.eps);
  return {decayed(w, __fdiv_rn(__fmul_rn(a.step_size, m), root), a), m, v};
}

__device__ __forceinline__ Moved schedule_free(float w, float m, float v, float grad, bool decays,
                                               const ScheduleFreeScalars& own) {
  const ScheduleFreeScalars a = decays ? own : own.undecayed();
  const float g = __fmul_rn(grad, a.grad_scale);
  v = __fadd_rn(__fmul_rn(a.beta2, v), __fmul_rn(__fmul_rn(a.one_minus_beta2, g), g));
  const float step = __fdiv_rn(g, __fadd_rn(__fdiv_rn(__fsqrt_rn(v), a.root_bias2), a.eps));
  const float u = __fadd_rn(step, __fmul_rn(__fmul_rn(w, step) >= 0.f ? a.decay : a.decay_away, w));
  w = __fsub_rn(__fsub_rn(w, __fmul_rn(a.from_m, m)), __fmul_rn(a.step, u));
  return {w, __fmul_rn(a.keep, __fadd_rn(m, __fmul_rn(a.m_step, u))), v};
}

// Update of one element by rules with at most one state.
struct Descent {
  static __device__ __forceinline__ void step(float& w, float& m, float grad, const SgdScalars& a) {
    const float g = __fadd_rn(__fmul_rn(grad, a.grad_scale), __fmul_rn(a.l2, w));
    m = __fadd_rn(__fmul_rn(a.momentum, m), g);
    const float by = __fadd_rn(__fmul_rn(a.from_gradient, g), __fmul_rn(a.from_average, m));
    w = decayed(w, __fmul_rn(a.lr, by), a);
  }
};
struct Signs {
  static __device__ __forceinline__ void step(float& w, float& m, float grad, const LionScalars& a) {
    const float g = __fmul_rn(grad, a.grad_scale);
    const float c = __fadd_rn(__fmul_rn(a.beta1, m), __fmul_rn(a.one_minus_beta1, g));
    w = decayed(w, c > 0.f ? a.lr : c < 0.f ? -a.lr : c, a);
    m = __fadd_rn(__fmul_rn(a.beta2, m), __fmul_rn(a.one_minus_beta2, g));
  }
};

// ---- kernels

// One warp: all threads compute the maximum attention logit, then the first closes the step.
__global__ void step_control(StepState* state, SpikeWindow* window, const float* scores, int64_t count,
                             StepControl op) {
  ptx::wait_for_earlier_kernels();
  float max_attention_logit = scores ? -INFINITY : 0;
  for (int64_t i = threadIdx.x; i < count; i += 32) max_attention_logit = fmaxf(max_attention_logit, scores[i]);
  max_attention_logit = warp_reduce(max_attention_logit, Max{});
  if (threadIdx.x > 0) return;
  StepState s = *state;
  close_step(s, op, window, max_attention_logit);
  *state = s;
}

// UpdatePart as a kernel argument.
struct Part {
  void *master, *param, *m, *v;
  Gradient grad;
  Extent extent;
  int64_t decayed;
  uint64_t stream, moment_stream, first;
};
// Kernel arguments of an update rule; its scalars are computed from these and the state.
struct SgdRule {
  using Step = Descent;
  const StepState* state;
  double momentum, weight_decay, rate;
  uint64_t seed;
  bool nesterov, direction, cautious;
  __device__ __forceinline__ SgdScalars scalars() const { return sgd_scalars(*this, *state); }
};
struct LionRule {
  using Step = Signs;
  const StepState* state;
  double beta1, beta2, weight_decay, rate;
  uint64_t seed;
  bool cautious;
  __device__ __forceinline__ LionScalars scalars() const { return lion_scalars(*this, *state); }
};
struct None {};  // absent optimizer state

// Storage formats of master weights.
template <class P>
struct Copied {};   // f32, and a copy of type P in param; P = float: no copy
struct Rounded {};  // bf16, rounded stochastically
struct Halved {};   // bf16 weights in param, and int16 remainders

template <class Kind>
struct Master {
  template <class O>
  static __device__ __forceinline__ void load(const O& vec8, float (&w)[kElements], const Part& p) {
    if constexpr (std::is_same_v<Kind, Halved>) {
      float rest[kElements];
      vec8.load(w, static_cast<const bf16*>(p.param));
      vec8.load(rest, static_cast<const int16_t*>(p.master));
#pragma unroll
      for (int i = 0; i < kElements; ++i) w[i] = joined(w[i], rest[i]);
    } else if constexpr (std::is_same_v<Kind, Rounded>) {
      vec8.load(w, static_cast<const bf16*>(p.master));
    } else {
      vec8.load(w, static_cast<const float*>(p.master));
    }
  }
  // Rounds a new weight to its storage format.
  static __device__ __forceinline__ float kept(float w, uint32_t random) {
    if constexpr (std::is_same_v<Kind, Rounded>) {
      return round_stochastic(w, random >> 16);
    } else if constexpr (std::is_same_v<Kind, Halved> || std::is_same_v<Kind, Copied<bf16>>) {
      return settled(w);
    } else {
      return w;
    }
  }
  template <class O>
  static __device__ __forceinline__ void store(const O& vec8, const Part& p, const float (&w)[kElements]) {
    if constexpr (std::is_same_v<Kind, Halved>) {
      vec8.store(static_cast<bf16*>(p.param), w);
      vec8.store(static_cast<int16_t*>(p.master), w);
    } else if constexpr (std::is_same_v<Kind, Rounded>) {
      vec8.store(static_cast<bf16*>(p.master), w);
    } else {
      vec8.store(static_cast<float*>(p.master), w);
      if constexpr (std::is_same_v<Kind, Copied<bf16>>) vec8.store(static_cast<bf16*>(p.param), w);
      if constexpr (std::is_same_v<Kind, Copied<fp16>>) vec8.store(static_cast<fp16*>(p.param), w);
    }
  }
};

template <class Kind, class M, class V>
__global__ void __launch_bounds__(kTileThreads, 3)
    adamw_tiles(const __grid_constant__ Ranges<Part> parts, const AdamRule op) {
  ptx::wait_for_earlier_kernels();
  constexpr bool kRandomMaster = std::is_same_v<Kind, Rounded>, kRandomM = sizeof(M) == 2, kRandomV = sizeof(V) == 2;
  const int number = parts.find(blockIdx.x);
  const Part& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float w[kElements], m[kElements], v[kElements], g[kElements];
    Master<Kind>::load(vec8, w, p);
    vec8.load(m, static_cast<const M*>(p.m));
    vec8.load(v, static_cast<const V*>(p.v));
    p.grad.load(vec8, g);
    const AdamScalars scalars = adam_scalars(op, *op.state);
    const bool skip = op.state->skip;  // no branch: it would delay the loads until the state is loaded
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t master_bits[4] = {}, moment_bits[4] = {};
      if constexpr (kRandomMaster) random_words(master_bits, op.seed, p.stream, index + four);
      if constexpr (kRandomM || kRandomV) random_words(moment_bits, op.seed, p.moment_stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        Moved moved = adamw(w[i], m[i], v[i], g[i], vec8.first + i < p.decayed, scalars);
        if constexpr (kRandomM) moved.m = round_stochastic(moved.m, moment_bits[k] >> 16);
        if constexpr (kRandomV) moved.v = round_stochastic(moved.v, moment_bits[k] & 0xffffu);
        w[i] = skip ? w[i] : Master<Kind>::kept(moved.w, master_bits[k]);
        m[i] = skip ? m[i] : moved.m;
        v[i] = skip ? v[i] : moved.v;
      }
    }
    Master<Kind>::store(vec8, p, w);
    vec8.store(static_cast<M*>(p.m), m);
    vec8.store(static_cast<V*>(p.v), v);
    p.grad.clear(vec8);
  });
}

template <class Kind, class V>
__global__ void __launch_bounds__(kTileThreads, 3)
    schedule_free_tiles(const __grid_constant__ Ranges<Part> parts, const AdamRule op) {
  ptx::wait_for_earlier_kernels();
  constexpr bool kRandomMaster = std::is_same_v<Kind, Rounded>, kRandomV = sizeof(V) == 2;
  const int number = parts.find(blockIdx.x);
  const Part& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float w[kElements], m[kElements], v[kElements], g[kElements];
    Master<Kind>::load(vec8, w, p);
    vec8.load(m, static_cast<const float*>(p.m));
    vec8.load(v, static_cast<const V*>(p.v));
    p.grad.load(vec8, g);
    const ScheduleFreeScalars scalars = schedule_free_scalars(op, *op.state);
    const bool skip = op.state->skip;
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t master_bits[4] = {}, moment_bits[4] = {};
      if constexpr (kRandomMaster) random_words(master_bits, op.seed, p.stream, index + four);
      if constexpr (kRandomV) random_words(moment_bits, op.seed, p.moment_stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        Moved moved = schedule_free(w[i], m[i], v[i], g[i], vec8.first + i < p.decayed, scalars);
        if constexpr (kRandomV) moved.v = round_stochastic(moved.v, moment_bits[k] & 0xffffu);
        w[i] = skip ? w[i] : Master<Kind>::kept(moved.w, master_bits[k]);
        m[i] = skip ? m[i] : moved.m;
        v[i] = skip ? v[i] : moved.v;
      }
    }
    Master<Kind>::store(vec8, p, w);
    vec8.store(static_cast<float*>(p.m), m);
    vec8.store(static_cast<V*>(p.v), v);
    p.grad.clear(vec8);
  });
}

// ---- 8-bit moments: a warp has one block of them, a thread eight

static_assert(kMomentBlock == 32 * kElements);
__device__ const DynamicMap code_maps[2] = {kSignedMap, kUnsignedMap};

struct QuantizedPart {
  Part part;  // m, v: 8-bit values
  float *m_scale, *v_scale;
};
struct QuantizedTensor {
  uint8_t code[kElements];
  __device__ __forceinline__ void load(const void* quantized, int64_t first, bool vectors) {
    const uint8_t* p = static_cast<const uint8_t*>(quantized) + first;
    if (vectors) {
      const uint2 raw = ld8(p);
      memcpy(static_cast<void*>(code), &raw, sizeof raw);
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) code[i] = p[i];
  }
  __device__ __forceinline__ void store(void* quantized, int64_t first, bool vectors) const {
    uint8_t* p = static_cast<uint8_t*>(quantized) + first;
    if (vectors) {
      uint2 raw;
      memcpy(&raw, code, sizeof raw);
      st8(p, raw);
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) p[i] = code[i];
  }
};
// Amax of the warp's block.
__device__ __forceinline__ float scale_of(const float (&x)[kElements]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kElements; ++i) most = fmaxf(most, fabsf(x[i]));
  return warp_reduce(most, Max{});
}

template <class Kind>
__global__ void __launch_bounds__(kTileThreads)
    adamw_8bit_tiles(const __grid_constant__ Ranges<QuantizedPart> parts, const AdamRule op) {
  ptx::wait_for_earlier_kernels();
  constexpr bool kRandomMaster = std::is_same_v<Kind, Rounded>;
  SHARED(DynamicMap, maps, [2]);
  constexpr int kNumbers = 2 * sizeof(DynamicMap) / sizeof(float);
  const auto* from = reinterpret_cast<const float*>(code_maps);
  for (int i = static_cast<int>(threadIdx.x); i < kNumbers; i += kTileThreads)
    reinterpret_cast<float*>(maps)[i] = from[i];
  __syncthreads();
  const DynamicMap &m_map = maps[0], &v_map = maps[1];
  const int number = parts.find(blockIdx.x);
  const QuantizedPart& quantized = parts.range[number];
  const Part& p = quantized.part;
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    if (vec8.count <= 0) return;  // the whole warp returns, since parts consist of whole blocks
    const int64_t block = vec8.first / kMomentBlock;
    float w[kElements], m[kElements], v[kElements], g[kElements];
    QuantizedTensor m_quantized, v_quantized;
    Master<Kind>::load(vec8, w, p);
    m_quantized.load(p.m, vec8.first, p.extent.vectors);
    v_quantized.load(p.v, vec8.first, p.extent.vectors);
    p.grad.load(vec8, g);
    float m_scale = quantized.m_scale[block], v_scale = quantized.v_scale[block];
    const AdamScalars scalars = adam_scalars(op, *op.state);
    const bool skip = op.state->skip;
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t bits[4] = {};
      if constexpr (kRandomMaster) random_words(bits, op.seed, p.stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        const float before_m = __fmul_rn(m_map.value[m_quantized.code[i]], m_scale);
        const float before_v = __fmul_rn(v_map.value[v_quantized.code[i]], v_scale);
        const Moved moved = adamw(w[i], before_m, before_v, g[i], vec8.first + i < p.decayed, scalars);
        w[i] = skip ? w[i] : Master<Kind>::kept(moved.w, bits[k]);
        m[i] = moved.m;
        v[i] = moved.v;
      }
    }
    Master<Kind>::store(vec8, p, w);
    p.grad.clear(vec8);
    if (skip) return;
    m_scale = scale_of(m);
    v_scale = scale_of(v);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      m_quantized.code[i] = code_of_m(m_map.bound, m[i], m_scale);
      v_quantized.code[i] = code_of_v(v_map.bound, v[i], v_scale);
    }
    m_quantized.store(p.m, vec8.first, p.extent.vectors);
    v_quantized.store(p.v, vec8.first, p.extent.vectors);
    __syncwarp();  // all lanes have read the scales
    if (threadIdx.x % 32 == 0) {
      quantized.m_scale[block] = m_scale;
      quantized.v_scale[block] = v_scale;
    }
  });
}

// The update kernel for rules with at most one state.
template <class Kind, class M, class Rule>
__global__ void __launch_bounds__(kTileThreads, 3)
    update_tiles(const __grid_constant__ Ranges<Part> parts, const Rule op) {
  ptx::wait_for_earlier_kernels();
  constexpr bool kRandomMaster = std::is_same_v<Kind, Rounded>, kKept = !std::is_same_v<M, None>,
                 kRandomM = kKept && sizeof(M) == 2;
  const int number = parts.find(blockIdx.x);
  const Part& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float w[kElements], m[kElements] = {}, g[kElements];
    Master<Kind>::load(vec8, w, p);
    if constexpr (kKept) vec8.load(m, static_cast<const M*>(p.m));
    p.grad.load(vec8, g);
    const auto scalars = op.scalars(), others = scalars.undecayed();
    const bool skip = op.state->skip;
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t master_bits[4] = {}, moment_bits[4] = {};
      if constexpr (kRandomMaster) random_words(master_bits, op.seed, p.stream, index + four);
      if constexpr (kRandomM) random_words(moment_bits, op.seed, p.moment_stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        float moved = w[i], state = m[i];
        Rule::Step::step(moved, state, g[i], vec8.first + i < p.decayed ? scalars : others);
        if constexpr (kRandomM) state = round_stochastic(state, moment_bits[k] >> 16);
        w[i] = skip ? w[i] : Master<Kind>::kept(moved, master_bits[k]);
        m[i] = skip ? m[i] : state;
      }
    }
    Master<Kind>::store(vec8, p, w);
    if constexpr (kKept) vec8.store(static_cast<M*>(p.m), m);
    p.grad.clear(vec8);
  });
}

struct EmaPart {
  float* average;
  Part masters;  // only master, param and extent are set
};
struct EmaRule {
  const StepState* state;
  double decay;
  int average;
};

template <class Kind>
__global__ void __launch_bounds__(kTileThreads)
    ema_tiles(const __grid_constant__ Ranges<EmaPart> parts, const EmaRule op) {
  ptx::wait_for_earlier_kernels();
  const int number = parts.find(blockIdx.x);
  const EmaPart& p = parts.range[number];
  on_vec8(p.masters.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float w[kElements], average[kElements];
    Master<Kind>::load(vec8, w, p.masters);
    vec8.load(average, p.average);
    const bool skip = op.state->skip;
    const float rate = ema_rate(op.decay, op.average, *op.state);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float moved = __fadd_rn(average[i], __fmul_rn(rate, __fsub_rn(w[i], average[i])));
      average[i] = skip ? average[i] : moved;
    }
    vec8.store(p.average, average);
  });
}

struct MomentumPart {
  void* m;
  Gradient grad;
  Extent extent;
  uint64_t moment_stream, first;
};
struct MomentumRule {
  const StepState* state;
  double beta;
  bool nesterov;
  uint64_t seed;
};

template <class M>
__global__ void __launch_bounds__(kTileThreads)
    momentum_tiles(const __grid_constant__ Ranges<MomentumPart> parts, const MomentumRule op) {
  ptx::wait_for_earlier_kernels();
  const int number = parts.find(blockIdx.x);
  const MomentumPart& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float m[kElements], g[kElements];
    vec8.load(m, static_cast<const M*>(p.m));
    p.grad.load(vec8, g);
    const bool skip = op.state->skip;
    const float scale = op.state->grad_scale;
    const double decay = momentum_now(op.beta, *op.state);
    const auto beta = static_cast<float>(decay), one_minus_beta = static_cast<float>(1 - decay);
    // Replaces the gradient by this combination of itself and m.
    const float from_gradient = op.nesterov ? one_minus_beta : 0.f, from_average = op.nesterov ? beta : 1.f;
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t bits[4] = {};
      if constexpr (sizeof(M) == 2) random_words(bits, op.seed, p.moment_stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        const float scaled = __fmul_rn(g[i], scale);
        float next = __fadd_rn(__fmul_rn(beta, m[i]), __fmul_rn(one_minus_beta, scaled));
        const float by = __fadd_rn(__fmul_rn(from_gradient, scaled), __fmul_rn(from_average, next));
        if constexpr (sizeof(M) == 2) next = round_stochastic(next, bits[k] >> 16);
        g[i] = skip ? 0.f : by;
        m[i] = skip ? m[i] : next;
      }
    }
    vec8.store(static_cast<M*>(p.m), m);
    p.grad.store(vec8, g);
  });
}

// ---- QK-clip: a warp whose heads are not scaled reads only their logits

struct ClipPart {
  Part part;
  float* also;  // also multiplied; may be null
  const float* top;
  OutputRange range;
};
struct ClipRule {
  const StepState* state;
  double threshold;
  int64_t heads, kv_heads, head_dim;
  uint64_t seed;
};

template <class Kind>
__global__ void __launch_bounds__(kTileThreads)
    clip_tiles(const __grid_constant__ Ranges<ClipPart> parts, const ClipRule op) {
  ptx::wait_for_earlier_kernels();
  const int number = parts.find(blockIdx.x);
  const ClipPart& clip = parts.range[number];
  const Part& p = clip.part;
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    const int64_t at = clip.range.first + vec8.first, cols = clip.range.cols;
    // begin and end: range of outputs of the current head.
    int64_t row = at / cols, column = at - row * cols, begin = 0, end = 0;
    float factor[kElements], now = 1.f;
    bool scales = false;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int64_t output = clip.range.columns ? column : row;
      if (i < vec8.count && (output < begin || output >= end)) {
        begin = output / op.head_dim * op.head_dim;
        end = begin + op.head_dim;
        now = clip_factor(op, clip.top, output);
      }
      factor[i] = i < vec8.count ? now : 1.f;
      scales = scales || factor[i] != 1.f;
      if (++column == cols) {
        column = 0;
        ++row;
      }
    }
    // The whole warp takes the same branch, because loads exchange values between neighbouring threads.
    if (op.state->skip || !__any_sync(~0u, scales)) return;
    float w[kElements];
    Master<Kind>::load(vec8, w, p);
    const uint64_t index = (static_cast<uint64_t>(op.state->updates) << 40) + p.first + vec8.first;
#pragma unroll
    for (int four = 0; four < kElements; four += 4) {
      [[maybe_unused]] uint32_t bits[4] = {};
      if constexpr (std::is_same_v<Kind, Rounded>) random_words(bits, op.seed, p.stream, index + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = four + k;
        if (factor[i] != 1.f) w[i] = Master<Kind>::kept(__fmul_rn(w[i], factor[i]), bits[k]);
      }
    }
    Master<Kind>::store(vec8, p, w);
    if (!clip.also) return;
    float x[kElements];
    vec8.load(x, clip.also);
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = __fmul_rn(x[i], factor[i]);
    vec8.store(clip.also, x);
  });
}

// ---- launchers

Part part_of(const UpdatePart& p) {
  const Extent whole = extent(p.master.numel(), data<char>(p.master), data<char>(p.param), data<char>(p.m),
                              data<char>(p.v), data<char>(p.grad));
  return {p.master.data, p.param.data, p.m.data, p.v.data,        gradient_of(p.grad),
          whole,         p.decayed,    p.stream, p.moment_stream, p.first};
}
void add(Ranges<Part>& table, const UpdatePart& p) {
  if (p.master.numel() > 0) table.add(part_of(p), tiles_of(p.master.numel()));
}

template <class Kind>
void launch_update(const AdamW8bit& op, const Ranges<QuantizedPart>& table, cudaStream_t stream) {
  launch_table(adamw_8bit_tiles<Kind>, table, stream, adam_rule(op));
}
void add(Ranges<QuantizedPart>& table, const AdamW8bit::Part& p) {
  if (p.master.numel() == 0) return;
  UpdatePart part = p.weights();
  part.m = p.m;
  part.v = p.v;
  table.add({part_of(part), data<float>(p.m_scale), data<float>(p.v_scale)}, tiles_of(p.master.numel()));
}

template <class Kind>
void launch_update(const AdamW& op, const Ranges<Part>& table, cudaStream_t stream) {
  const AdamW::Part& like = op.parts.front();
  const bool short_m = like.m.dtype == DType::bf16, short_v = like.v.dtype == DType::bf16;
  const auto kernel = short_m   ? short_v ? adamw_tiles<Kind, bf16, bf16> : adamw_tiles<Kind, bf16, float>
                        : short_v ? adamw_tiles<Kind, float, bf16>
                                : adamw_tiles<Kind, float, float>;
  launch_table(kernel, table, stream, adam_rule(op));
}

template <class Kind>
void launch_update(const ScheduleFreeAdamW& op, const Ranges<Part>& table, cudaStream_t stream) {
  const auto kernel =
      op.parts.front().v.dtype == DType::bf16 ? schedule_free_tiles<Kind, bf16> : schedule_free_tiles<Kind, float>;
  launch_table(kernel, table, stream, adam_rule(op));
}

template <class Kind, class Rule>
void launch_rule(const UpdatePart& like, const Ranges<Part>& table, const Rule& rule, cudaStream_t stream) {
  const auto kernel = !like.m                       ? update_tiles<Kind, None, Rule>
                      : like.m.dtype == DType::bf16 ? update_tiles<Kind, bf16, Rule>
                                                    : update_tiles<Kind, float, Rule>;
  launch_table(kernel, table, stream, rule);
}
template <class Kind>
void launch_update(const Sgd& op, const Ranges<Part>& table, cudaStream_t stream) {
  const SgdRule rule{.state = data<StepState>(op.state),
                     .momentum = op.momentum,
                     .weight_decay = op.weight_decay,
                     .rate = op.rate,
                     .seed = op.seed,
                     .nesterov = op.nesterov,
                     .direction = op.direction,
                     .cautious = op.cautious};
  launch_rule<Kind>(op.parts.front(), table, rule, stream);
}
template <class Kind>
void launch_update(const Lion& op, const Ranges<Part>& table, cudaStream_t stream) {
  const LionRule rule{.state = data<StepState>(op.state),
                      .beta1 = op.beta1,
                      .beta2 = op.beta2,
                      .weight_decay = op.weight_decay,
                      .rate = op.rate,
                      .seed = op.seed,
                      .cautious = op.cautious};
  launch_rule<Kind>(op.parts.front(), table, rule, stream);
}

// One launch over all parts (or several, see ranges.h); the format of the master weights selects the kernel.
template <class Range, class Op>
void run_update(const Op& op, cudaStream_t stream) {
  const DType master = op.parts.front().master.dtype;
  const Tensor& param = op.parts.front().param;
  const auto add_part = [](Ranges<Range>& table, const typename Op::Part& p) { add(table, p); };
  in_tables<Range>(op.parts, add_part, [&](const Ranges<Range>& table) {
    if (master == DType::i16) return launch_update<Halved>(op, table, stream);
    if (master == DType::bf16) return launch_update<Rounded>(op, table, stream);
    if (!param) return launch_update<Copied<float>>(op, table, stream);
    if (param.dtype == DType::bf16) return launch_update<Copied<bf16>>(op, table, stream);
    launch_update<Copied<fp16>>(op, table, stream);
  });
}
}  // namespace

void run(const StepControl& op, void*, cudaStream_t stream) {
  CUDA_CHECK(launch(step_control, {dim3(1), dim3(32), 0, stream}, data<StepState>(op.state),
                    data<SpikeWindow>(op.window), data<float>(op.scores), op.scores ? op.scores.numel() : 0, op));
}

void run(const AdamW& op, void*, cudaStream_t stream) { run_update<Part>(op, stream); }
void run(const AdamW8bit& op, void*, cudaStream_t stream) { run_update<QuantizedPart>(op, stream); }
void run(const ScheduleFreeAdamW& op, void*, cudaStream_t stream) { run_update<Part>(op, stream); }
void run(const Sgd& op, void*, cudaStream_t stream) { run_update<Part>(op, stream); }
void run(const Lion& op, void*, cudaStream_t stream) { run_update<Part>(op, stream); }

void run(const Ema& op, void*, cudaStream_t stream) {
  const EmaRule rule{.state = data<StepState>(op.state), .decay = op.decay, .average = op.average};
  const auto add_part = [](Ranges<EmaPart>& table, const Ema::Part& p) {
    if (p.master.numel() == 0) return;
    const Extent whole = extent(p.master.numel(), data<char>(p.average), data<char>(p.master), data<char>(p.param));
    table.add({data<float>(p.average), {.master = p.master.data, .param = p.param.data, .extent = whole}},
              tiles_of(whole.n));
  };
  const DType master = op.parts.front().master.dtype;
  const auto kernel = master == DType::i16    ? ema_tiles<Halved>
                      : master == DType::bf16 ? ema_tiles<Rounded>
                                              : ema_tiles<Copied<float>>;
  launch_tables(kernel, op.parts, add_part, stream, rule);
}

void run(const QkClip& op, void*, cudaStream_t stream) {
  const ClipRule rule{.state = data<StepState>(op.state),
                      .threshold = op.threshold,
                      .heads = op.heads,
                      .kv_heads = op.kv_heads,
                      .head_dim = op.head_dim,
                      .seed = op.seed};
  const auto add_part = [](Ranges<ClipPart>& table, const QkClip::Part& p) {
    if (p.master.numel() == 0) return;
    const Extent whole = extent(p.master.numel(), data<char>(p.master), data<char>(p.param), data<char>(p.also));
    table.add({{.master = p.master.data, .param = p.param.data, .extent = whole, .stream = p.stream, .first = p.first},
               data<float>(p.also),
               data<float>(p.top),
               p.range},
              tiles_of(whole.n));
  };
  const DType master = op.parts.front().master.dtype;
  const Tensor& param = op.parts.front().param;
  const auto kernel = master == DType::i16         ? clip_tiles<Halved>
                      : master == DType::bf16      ? clip_tiles<Rounded>
                      : !param                     ? clip_tiles<Copied<float>>
                      : param.dtype == DType::bf16 ? clip_tiles<Copied<bf16>>
                                                   : clip_tiles<Copied<fp16>>;
  launch_tables(kernel, op.parts, add_part, stream, rule);
}

void run(const Momentum& op, void*, cudaStream_t stream) {
  const MomentumRule rule{
      .state = data<StepState>(op.state), .beta = op.beta, .nesterov = op.nesterov, .seed = op.seed};
  const auto add_part = [](Ranges<MomentumPart>& table, const Momentum::Part& p) {
    if (p.m.numel() == 0) return;
    const Extent whole = extent(p.m.numel(), data<char>(p.m), data<char>(p.grad));
    table.add({p.m.data, gradient_of(p.grad), whole, p.moment_stream, p.first}, tiles_of(whole.n));
  };
  const auto kernel = op.parts.front().m.dtype == DType::bf16 ? momentum_tiles<bf16> : momentum_tiles<float>;
  launch_tables(kernel, op.parts, add_part, stream, rule);
}
}  // namespace athanor::cuda
