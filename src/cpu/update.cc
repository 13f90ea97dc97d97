// Conversion of master weights and states of any dtype to f32 and back.
#include "cpu/update.h"

namespace athanor::update {
namespace {

struct Widen {
  template <int L>
  static ATHANOR_INLINE void run(float* to, const bf16* from, int64_t n) {
    simd::for_columns<L, bf16>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(to, at.load(from)); });
  }
};

struct JoinHalves {
  template <int L>
  static ATHANOR_INLINE void run(float* to, const bf16* upper, const int16_t* lower, int64_t n) {
    simd::for_columns<L, bf16>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> high = at.load(upper), low = at.load(lower);
      at.store(to, simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
                 return (simd::Float<L>)((Word<L>)high.part[i] + (Word<L>)low.part[i]);
               }));
    });
  }
};

struct Settle {
  template <int L>
  static ATHANOR_INLINE void run(float* values, bf16* upper, int16_t* lower, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> x = at.load(values);
      const Vec<L> kept = simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
        auto u = (Word<L>)x.part[i];
        settle_word(u);
        return (simd::Float<L>)u;
      });
      at.store(values, kept);
      at.store(upper, kept);
      if (lower) at.store(lower, kept);
    });
  }
};

struct Narrow {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* to, const float* from, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(to, at.load(from)); });
  }
};

// Rounds stochastically with the upper or the lower half of each element's random bits.
struct RoundAtRandom {
  template <int L>
  static ATHANOR_INLINE void run(bf16* to, const float* from, int64_t n, const Noise& noise, bool upper) {
    Random random;
    for (int64_t begin = 0; begin < n; begin += kDrawn) {
      random.fill({noise.seed, noise.stream, noise.first + uint64_t(begin)});
      simd::for_columns<L, float>(std::min(kDrawn, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const uint32_t* bits = random.bits + random.skip + at.at;
        const Vec<L> x = at.load(from + begin);
        at.store(to + begin, simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
                   const Word<L> drawn = simd::read<Word<L>>(bits + i * L);
                   auto u = (Word<L>)x.part[i];
                   round_word(u, upper ? drawn >> 16 : drawn & 0xffffu);
                   return (simd::Float<L>)u;
                 }));
      });
    }
  }
};

void check_piece(int64_t n) { CHECK(n <= kPiece, "a piece of ", n, " elements, expected up to ", kPiece); }

}  // namespace

void settle(float* values, bf16* upper, int16_t* lower, int64_t n) { simd::dispatch<Settle>(values, upper, lower, n); }

void join(float* values, const bf16* upper, const int16_t* lower, int64_t n) {
  simd::dispatch<JoinHalves>(values, upper, lower, n);
}

float* open_state(const Tensor& t, int64_t begin, int64_t n, Workspace& workspace) {
  if (in_place(t)) return flat<float>(t) + begin;
  check_piece(n);
  if (t)
    simd::dispatch<Widen>(&workspace[0], flat<bf16>(t) + begin, n);
  else
    std::fill_n(workspace, n, 0.0f);
  return workspace;
}

void close_state(const Tensor& t, int64_t begin, int64_t n, const float* values, const Noise& noise, Bits bits) {
  if (t && !in_place(t)) simd::dispatch<RoundAtRandom>(flat<bf16>(t) + begin, values, n, noise, bits == Bits::upper);
}

float* open_master(const UpdatePart& p, int64_t begin, int64_t n, Workspace& workspace) {
  if (in_place(p.master)) return flat<float>(p.master) + begin;
  check_piece(n);
  if (p.master.dtype == DType::i16)
    join(workspace, flat<bf16>(p.param) + begin, flat<int16_t>(p.master) + begin, n);
  else
    simd::dispatch<Widen>(&workspace[0], flat<bf16>(p.master) + begin, n);
  return workspace;
}

void close_master(const UpdatePart& p, int64_t begin, int64_t n, float* values, const Noise& noise) {
  if (p.master.dtype == DType::i16)
    return settle(values, flat<bf16>(p.param) + begin, flat<int16_t>(p.master) + begin, n);
  if (p.master.dtype == DType::bf16)
    return simd::dispatch<RoundAtRandom>(flat<bf16>(p.master) + begin, values, n, noise, true);
  if (!p.param) return;
  if (p.param.dtype == DType::f16)
    simd::dispatch<Narrow>(flat<f16>(p.param) + begin, values, n);
  else
    settle(values, flat<bf16>(p.param) + begin, nullptr, n);
}

float* open_gradient(const Tensor& grad, int64_t begin, int64_t n, Workspace& workspace) {
  return open_state(grad, begin, n, workspace);
}

void close_gradient(const Tensor& grad, int64_t begin, int64_t n) {
  if (!in_place(grad)) std::memset(grad.at(begin), 0, size_t(n) * size_of(grad.dtype));
}

void replace_gradient(const Tensor& grad, int64_t begin, int64_t n, const float* values) {
  if (!in_place(grad)) simd::dispatch<Narrow>(flat<bf16>(grad) + begin, values, n);
}

void skip_part(ThreadPool& pool, const UpdatePart& p) {
  pool.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    std::memset(p.grad.at(begin), 0, size_t(end - begin) * size_of(p.grad.dtype));
    if (p.param && p.master.dtype == DType::f32)
      by_float(p.param.dtype, [&]<class P>() {
        simd::dispatch<Narrow>(flat<P>(p.param) + begin, static_cast<const float*>(flat<float>(p.master) + begin),
                               end - begin);
      });
  });
}

}  // namespace athanor::update
