// What the update rules share: random bits, how masters and states lie in memory, and the pass over all of it at the
// speed of memory. A rule is a struct of scalars and one of what it does to a vector of weights.
#pragma once
#include <algorithm>
#include <cstring>

#include "cpu/chunks.h"
#include "cpu/philox.h"
#include "cpu/thread_pool.h"
#include "cpu/vec.h"
#include "ops/update.h"

namespace athanor::update {

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

// By the upper half of the element's random bits, or by the lower; lanes in order.
template <int L, bool kUpper>
ATHANOR_INLINE Vec<L> round_stochastic(const Vec<L>& x, const uint32_t* random) {
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const Word<L> bits = simd::read<Word<L>>(random + i * L), random16 = kUpper ? bits >> 16 : bits & 0xffffu;
    auto u = (Word<L>)x.part[i];
    round_word(u, random16);
    return (simd::Float<L>)u;
  });
}

// ---- how masters lie in memory: load and store f32 values

template <int L>
ATHANOR_INLINE Vec<L> settled(const Vec<L>& x) {
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    auto u = (Word<L>)x.part[i];
    settle_word(u);
    return (simd::Float<L>)u;
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
void by_master(const UpdatePart& p, const Fn& fn) {
  if (p.master.dtype == DType::i16) return fn(HalvedMaster{flat<bf16>(p.param), flat<int16_t>(p.master)});
  if (p.master.dtype == DType::bf16) return fn(RoundedMaster{flat<bf16>(p.master)});
  float* w = flat<float>(p.master);
  if (!p.param) return fn(WholeMaster{w});
  if (p.param.dtype == DType::f16) return fn(CopiedMaster<f16>{w, flat<f16>(p.param)});
  fn(CopiedMaster<bf16>{w, flat<bf16>(p.param)});
}

// ---- the update

// A weight after a step by u, and its decay.
template <int L, class Scalars>
ATHANOR_INLINE Vec<L> decayed(const Vec<L>& w, const Vec<L>& u, const Scalars& a) {
  const Vec<L> product = w * u;
  const Vec<L> factor = simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const simd::Float<L> zero = {}, decay = zero + a.decay, away = zero + a.decay_away;
    return product.part[i] >= zero ? decay : away;
  });
  return w * factor - u;
}

struct None {};  // a state that a rule does not keep

template <class M, class V>
struct Moments {
  M* m;
  V* v;
  float* grad;
  template <class T>
  static ATHANOR_INLINE T* moved(T* p, int64_t n) {
    if constexpr (std::is_same_v<T, None>)
      return p;
    else
      return p + n;
  }
  Moments from(int64_t begin) const { return {moved(m, begin), moved(v, begin), grad + begin}; }
};

struct Noises {
  Noise master, moments;
};

template <int L, class At, class T>
ATHANOR_INLINE Vec<L> load_moment(const At& at, const T* p) {
  if constexpr (std::is_same_v<T, None>)
    return simd::broadcast<L>(0);
  else
    return at.load(p);
}
template <int L, bool kUpper, class At, class T>
ATHANOR_INLINE void store_moment(const At& at, T* p, const Vec<L>& x, const Random& random) {
  if constexpr (std::is_same_v<T, bf16>)
    at.store(p, round_stochastic<L, kUpper>(x, random.bits + random.skip + at.at));
  else if constexpr (std::is_same_v<T, float>)
    at.store(p, x);
}

// Rule::step<L>(w, g, m, v, scalars) moves weights and states by a gradient; the gradient is zeroed.
template <class Rule>
struct Kernel {
  template <int L, class Master, class M, class V, class Scalars>
  static ATHANOR_INLINE void run(const Master& master, const Moments<M, V>& p, int64_t n, const Scalars& a,
                                 const Noises& noise) {
    constexpr bool kMoments = std::is_same_v<M, bf16> || std::is_same_v<V, bf16>;
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
        Vec<L> w = here.template load<L>(at), m = load_moment<L>(at, q.m), v = load_moment<L>(at, q.v);
        Rule::template step<L>(w, at.load(q.grad), m, v, a);
        store_moment<L, true>(at, q.m, m, moments);
        store_moment<L, false>(at, q.v, v, moments);
        at.store(q.grad, simd::broadcast<L>(0));
        here.template store<L>(at, w, weights);
      });
    }
  }
};

// The compute copy is an output like any other: it is written on every path.
struct CopyMaster {
  template <int L, class P>
  static ATHANOR_INLINE void run(P* param, const float* master, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(param, at.load(master)); });
  }
};

inline void skip_part(ThreadPool& pool, const UpdatePart& p) {
  float* grad = flat<float>(p.grad);
  pool.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    std::memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
    if (p.param && p.master.dtype == DType::f32)
      by_float(p.param.dtype, [&]<class P>() {
        simd::dispatch<CopyMaster>(p.param.as<P>() + begin, p.master.as<float>() + begin, end - begin);
      });
  });
}

// fn(pointer to a state): of None where the rule keeps none, or the part has none.
template <Kept kKept, class Fn>
void by_state(const Tensor& t, const Fn& fn) {
  if constexpr (kKept != Kept::required)
    if (!t) return fn(static_cast<None*>(nullptr));
  if constexpr (kKept != Kept::none) t.dtype == DType::f32 ? fn(flat<float>(t)) : fn(flat<bf16>(t));
}

// A step of an op: Rule with these scalars where weights decay, elsewhere with scalars.undecayed().
template <class Rule, class Op, class Scalars>
void run(ThreadPool& pool, const Op& op, const StepState& state, const Scalars& scalars) {
  const Scalars others = scalars.undecayed();
  for (const UpdatePart& p : op.parts) {
    if (state.skip) {
      skip_part(pool, p);
      continue;
    }
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    const auto pass = [&](const auto& master, const auto& moments) {
      const auto range = [&](int64_t begin, int64_t end, const Scalars& a) {
        const Noises noise{{op.seed, p.stream, first + uint64_t(begin)},
                           {op.seed, p.moment_stream, first + uint64_t(begin)}};
        simd::dispatch<Kernel<Rule>>(master.from(begin), moments.from(begin), end - begin, a, noise);
      };
      pool.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        const int64_t cut = std::clamp(p.decayed, begin, end);
        range(begin, cut, scalars);
        range(cut, end, others);
      });
    };
    by_master(p, [&](const auto& master) {
      by_state<Op::kStates.m>(p.m, [&]<class M>(M* m) {
        by_state<Op::kStates.v>(p.v, [&]<class V>(V* v) { pass(master, Moments<M, V>{m, v, flat<float>(p.grad)}); });
      });
    });
  }
}

inline const StepState& state_of(const Tensor& t) { return *reinterpret_cast<const StepState*>(t.as<uint8_t>()); }

}  // namespace athanor::update
