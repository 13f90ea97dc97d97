// The end of a step and fused AdamW: one pass over weights, moments and gradient, at the speed of memory.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/philox.h"
#include "cpu/vec.h"
#include "ops/step_control.h"

namespace athanor {
namespace {

using simd::Vec;
using simd::Word;

// ---- random bits

constexpr int kBlocks = 80;
constexpr int64_t kPiece = 9 * simd::kWidth;  // elements that share one call, wherever in a block they start
static_assert(kPiece + 3 <= 4 * kBlocks);

// Of each of kPiece elements: 32 random bits.
struct Random {
  uint32_t bits[4 * kBlocks];
  int64_t skip;  // elements of the first block that come before

  ATHANOR_INLINE void fill(const Noise& noise) {
    PhiloxBlocks<kBlocks> random;
    random.fill(noise.seed, noise.stream, noise.first / 4);
#pragma omp simd
    for (int j = 0; j < kBlocks; ++j) {
      bits[4 * j] = random.word[0][j];
      bits[4 * j + 1] = random.word[1][j];
      bits[4 * j + 2] = random.word[2][j];
      bits[4 * j + 3] = random.word[3][j];
    }
    skip = int64_t(noise.first % 4);
  }
};

// round_stochastic() of tensor/half.h by the upper half of the element's random bits, or by the lower; lanes in order.
template <int L, bool kUpper>
ATHANOR_INLINE Vec<L> round_stochastic(const Vec<L>& x, const uint32_t* random) {
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const Word<L> bits = simd::read<Word<L>>(random + i * L), u = (Word<L>)x.part[i];
    const Word<L> noisy = (u + (kUpper ? bits >> 16 : bits & 0xffffu)) & 0xffff0000u;
    return (u & 0x7f800000u) != 0x7f800000u ? (simd::Float<L>)noisy : x.part[i];
  });
}

// ---- how masters lie in memory: load and store f32 values

// settled() of tensor/half.h.
template <int L>
ATHANOR_INLINE Vec<L> settled(const Vec<L>& x) {
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const Word<L> u = (Word<L>)x.part[i];
    return (simd::Float<L>)(u + (Word<L>)((u & 0x1ffffu) == 0x8000u));  // a true lane is -1
  });
}

struct WholeMaster {
  static constexpr bool kRandom = false;
  float* w;
  template <int L, class At>
  ATHANOR_INLINE Vec<L> load(const At& at) const {
    return at.load(w);
  }
  template <int L, class At>
  ATHANOR_INLINE void store(const At& at, const Vec<L>& x, const Random&) const {
    at.store(w, x);
  }
  WholeMaster from(int64_t begin) const { return {w + begin}; }
};

template <class P>
struct CopiedMaster {
  static constexpr bool kRandom = false;
  float* w;
  P* copy;
  template <int L, class At>
  ATHANOR_INLINE Vec<L> load(const At& at) const {
    return at.load(w);
  }
  template <int L, class At>
  ATHANOR_INLINE void store(const At& at, const Vec<L>& x, const Random&) const {
    const Vec<L> kept = std::is_same_v<P, bf16> ? settled<L>(x) : x;
    at.store(w, kept);
    at.store(copy, kept);
  }
  CopiedMaster from(int64_t begin) const { return {w + begin, copy + begin}; }
};

struct RoundedMaster {
  static constexpr bool kRandom = true;
  bf16* w;
  template <int L, class At>
  ATHANOR_INLINE Vec<L> load(const At& at) const {
    return at.load(w);
  }
  template <int L, class At>
  ATHANOR_INLINE void store(const At& at, const Vec<L>& x, const Random& random) const {
    at.store(w, round_stochastic<L, true>(x, random.bits + random.skip + at.at));
  }
  RoundedMaster from(int64_t begin) const { return {w + begin}; }
};

struct HalvedMaster {
  static constexpr bool kRandom = false;
  bf16* w;
  int16_t* rest;
  template <int L, class At>
  ATHANOR_INLINE Vec<L> load(const At& at) const {
    const Vec<L> upper = at.load(w), lower = at.load(rest);
    return simd::each_part<L>(
        [&](int i) ATHANOR_INLINE_LAMBDA { return (simd::Float<L>)((Word<L>)upper.part[i] + (Word<L>)lower.part[i]); });
  }
  template <int L, class At>
  ATHANOR_INLINE void store(const At& at, const Vec<L>& x, const Random&) const {
    const Vec<L> kept = settled<L>(x);
    at.store(w, kept);
    at.store(rest, kept);
  }
  HalvedMaster from(int64_t begin) const { return {w + begin, rest + begin}; }
};

// fn(masters of the part, as one of these structs).
template <class Fn>
void by_master(const AdamW::Part& p, const Fn& fn) {
  if (p.master.dtype == DType::i16) return fn(HalvedMaster{flat<bf16>(p.param), flat<int16_t>(p.master)});
  if (p.master.dtype == DType::bf16) return fn(RoundedMaster{flat<bf16>(p.master)});
  float* w = flat<float>(p.master);
  if (!p.param) return fn(WholeMaster{w});
  if (p.param.dtype == DType::f16) return fn(CopiedMaster<f16>{w, flat<f16>(p.param)});
  fn(CopiedMaster<bf16>{w, flat<bf16>(p.param)});
}

// ---- the update

template <class M, class V>
struct Moments {
  M* m;
  V* v;
  float* grad;
  Moments from(int64_t begin) const { return {m + begin, v + begin, grad + begin}; }
};

struct Noises {
  Noise master, moments;
};

template <int L, bool kUpper, class At, class T>
ATHANOR_INLINE void store_moment(const At& at, T* p, const Vec<L>& x, const Random& random) {
  if constexpr (std::is_same_v<T, bf16>)
    at.store(p, round_stochastic<L, kUpper>(x, random.bits + random.skip + at.at));
  else
    at.store(p, x);
}

// In the order of torch.optim.AdamW; the gradient is zeroed.
struct Update {
  template <int L, class Master, class M, class V>
  static ATHANOR_INLINE void run(const Master& master, const Moments<M, V>& p, int64_t n, const AdamScalars& a,
                                 const Noises& noise) {
    constexpr bool kMoments = !std::is_same_v<M, float> || !std::is_same_v<V, float>;
    Random weights, moments;
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      const auto after = [begin](const Noise& from) {
        return Noise{from.seed, from.stream, from.first + uint64_t(begin)};
      };
      if constexpr (Master::kRandom) weights.fill(after(noise.master));
      if constexpr (kMoments) moments.fill(after(noise.moments));
      const Master here = master.from(begin);
      const Moments<M, V> q = p.from(begin);
      simd::for_columns<L, float>(std::min(kPiece, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> w = here.template load<L>(at), g = at.load(q.grad) * a.grad_scale;
        const Vec<L> m = a.beta1 * at.load(q.m) + a.one_minus_beta1 * g;
        const Vec<L> v = a.beta2 * at.load(q.v) + a.one_minus_beta2 * g * g;
        const Vec<L> moved = w * a.decay - a.step_size * m / (simd::sqrt(v) / a.root_bias2 + a.eps);
        store_moment<L, true>(at, q.m, m, moments);
        store_moment<L, false>(at, q.v, v, moments);
        at.store(q.grad, simd::broadcast<L>(0));
        here.template store<L>(at, moved, weights);
      });
    }
  }
};

template <class Fn>
void by_moments(const AdamW::Part& p, const Fn& fn) {
  const auto with_v = [&]<class M>() {
    if (p.v.dtype == DType::f32)
      fn(Moments<M, float>{flat<M>(p.m), flat<float>(p.v), flat<float>(p.grad)});
    else
      fn(Moments<M, bf16>{flat<M>(p.m), flat<bf16>(p.v), flat<float>(p.grad)});
  };
  p.m.dtype == DType::f32 ? with_v.template operator()<float>() : with_v.template operator()<bf16>();
}

void update(ThreadPool& pool, const AdamW& op, const AdamW::Part& p, const StepState& state) {
  const AdamScalars decayed = adam_scalars(op, state);
  AdamScalars others = decayed;
  others.decay = 1;
  const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
  by_master(p, [&](const auto& master) {
    by_moments(p, [&](const auto& moments) {
      const auto range = [&](int64_t begin, int64_t end, const AdamScalars& a) {
        const Noises noise{{op.seed, p.stream, first + uint64_t(begin)},
                           {op.seed, p.moment_stream, first + uint64_t(begin)}};
        simd::dispatch<Update>(master.from(begin), moments.from(begin), end - begin, a, noise);
      };
      pool.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        const int64_t cut = std::clamp(p.decayed, begin, end);
        range(begin, cut, decayed);
        range(cut, end, others);
      });
    });
  });
}

// The compute copy is an output like any other: it is written on every path.
struct CopyMaster {
  template <int L, class P>
  static ATHANOR_INLINE void run(P* param, const float* master, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(param, at.load(master)); });
  }
};

void skip_step(ThreadPool& pool, const AdamW::Part& p) {
  float* grad = flat<float>(p.grad);
  pool.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    std::memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
    if (p.param && p.master.dtype == DType::f32)
      by_float(p.param.dtype, [&]<class P>() {
        simd::dispatch<CopyMaster>(p.param.as<P>() + begin, p.master.as<float>() + begin, end - begin);
      });
  });
}

struct Split {
  template <int L>
  static ATHANOR_INLINE void run(float* master, bf16* param, int16_t* rest, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> w = settled<L>(at.load(master));
      at.store(master, w);
      at.store(param, w);
      if (rest) at.store(rest, w);
    });
  }
};

struct Join {
  template <int L>
  static ATHANOR_INLINE void run(float* master, const HalvedMaster& halves, int64_t n) {
    simd::for_columns<L, float>(n,
                                [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(master, halves.template load<L>(at)); });
  }
};

}  // namespace

void CpuOps::run(const StepControl& op, void*) {
  close_step(*static_cast<StepState*>(op.state.data), op, static_cast<SpikeWindow*>(op.window.data));
}

void CpuOps::run(const AdamW& op, void*) {
  const auto& state = *reinterpret_cast<const StepState*>(op.state.as<uint8_t>());
  for (const AdamW::Part& p : op.parts) state.skip ? skip_step(pool_, p) : update(pool_, op, p, state);
}

void CpuOps::run(const SplitMaster& op, void*) {
  float* master = flat<float>(op.master);
  bf16* param = flat<bf16>(op.param);
  int16_t* rest = op.rest ? flat<int16_t>(op.rest) : nullptr;
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    simd::dispatch<Split>(master + begin, param + begin, rest ? rest + begin : nullptr, end - begin);
  });
}

void CpuOps::run(const JoinMaster& op, void*) {
  float* master = flat<float>(op.master);
  const HalvedMaster halves{flat<bf16>(op.param), flat<int16_t>(op.rest)};
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    simd::dispatch<Join>(master + begin, halves.from(begin), end - begin);
  });
}

}  // namespace athanor
