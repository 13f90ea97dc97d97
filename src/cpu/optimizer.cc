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

struct Moments {
  float *m, *v, *grad;
};

// The new weights of 32 elements, in the order of torch.optim.AdamW; moves the moments and zeroes the gradient.
template <int L, class At>
ATHANOR_INLINE Vec<L> adamw(const At& at, const Vec<L>& w, const Moments& p, const AdamScalars& a) {
  const Vec<L> g = at.load(p.grad) * a.grad_scale;
  const Vec<L> m = a.beta1 * at.load(p.m) + a.one_minus_beta1 * g;
  const Vec<L> v = a.beta2 * at.load(p.v) + a.one_minus_beta2 * g * g;
  at.store(p.m, m);
  at.store(p.v, v);
  at.store(p.grad, simd::broadcast<L>(0));
  return w * a.decay - a.step_size * m / (simd::sqrt(v) / a.root_bias2 + a.eps);
}

struct UpdateF32 {
  template <int L, class P>
  static ATHANOR_INLINE void run(float* master, P* param, const Moments& p, int64_t n, const AdamScalars& a) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> w = adamw<L>(at, at.load(master), p, a);
      at.store(master, w);
      if (param) at.store(param, w);
    });
  }
};

constexpr int kBlocks = 80;
constexpr int64_t kPiece = 9 * simd::kWidth;  // elements that share one call, wherever in a block they start
static_assert(kPiece + 3 <= 4 * kBlocks);

// bits[i] = random_bits(seed, stream, first + i), first a multiple of 4.
ATHANOR_INLINE void random_words(uint32_t* bits, const Noise& noise) {
  PhiloxBlocks<kBlocks> random;
  random.fill(noise.seed, noise.stream, noise.first / 4);
#pragma omp simd
  for (int j = 0; j < kBlocks; ++j) {
    bits[4 * j] = random.word[0][j];
    bits[4 * j + 1] = random.word[1][j];
    bits[4 * j + 2] = random.word[2][j];
    bits[4 * j + 3] = random.word[3][j];
  }
}

// round_stochastic() of tensor/half.h; lanes in order.
template <int L>
ATHANOR_INLINE Vec<L> round_stochastic(const Vec<L>& x, const uint32_t* random) {
  using Word = simd::Word<L>;
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const Word u = (Word)x.part[i], noisy = (u + (simd::read<Word>(random + i * L) >> 16)) & 0xffff0000u;
    return (u & 0x7f800000u) != 0x7f800000u ? (simd::Float<L>)noisy : x.part[i];
  });
}

struct UpdateBf16 {
  template <int L, class P>
  static ATHANOR_INLINE void run(bf16* master, P* param, const Moments& p, int64_t n, const AdamScalars& a,
                                 const Noise& noise) {
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      uint32_t bits[4 * kBlocks];
      const uint64_t first = noise.first + uint64_t(begin);
      random_words(bits, {noise.seed, noise.stream, first / 4 * 4});
      const Moments piece{p.m + begin, p.v + begin, p.grad + begin};
      bf16* w = master + begin;
      simd::for_columns<L, float>(std::min(kPiece, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> rounded = round_stochastic(adamw<L>(at, at.load(w), piece, a), bits + first % 4 + at.at);
        at.store(w, rounded);
        if (param) at.store(param + begin, rounded);
      });
    }
  }
};

// The compute copy is an output like any other: it is written on every path.
struct CopyMaster {
  template <int L, class P, class M>
  static ATHANOR_INLINE void run(P* param, const M* master, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(param, at.load(master)); });
  }
};

template <class P>
void copy_master(P* param, const Tensor& master, int64_t begin, int64_t end) {
  if (master.dtype == DType::f32)
    simd::dispatch<CopyMaster>(param + begin, master.as<float>() + begin, end - begin);
  else
    simd::dispatch<CopyMaster>(param + begin, master.as<bf16>() + begin, end - begin);
}

void skip_step(ThreadPool& pool, const AdamW& op) {
  float* grad = flat<float>(op.grad);
  pool.parallel_ranges(op.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    std::memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
    if (op.param) by_float(op.param.dtype, [&]<class P>() { copy_master(op.param.as<P>(), op.master, begin, end); });
  });
}

}  // namespace

void CpuOps::run(const StepControl& op, void*) {
  close_step(*reinterpret_cast<StepState*>(op.state.as<uint8_t>()), op);
}

void CpuOps::run(const AdamW& op, void*) {
  const auto& state = *reinterpret_cast<const StepState*>(op.state.as<uint8_t>());
  const int64_t n = op.master.numel();
  float *m = flat<float>(op.m), *v = flat<float>(op.v), *grad = flat<float>(op.grad);
  if (state.skip) return skip_step(pool_, op);
  const AdamScalars decayed = adam_scalars(op, state);
  AdamScalars others = decayed;
  others.decay = 1;
  const uint64_t first = (uint64_t(state.updates) << 40) + op.first;
  by_float(op.param ? op.param.dtype : op.master.dtype, [&]<class P>() {
    P* param = op.param ? flat<P>(op.param) : nullptr;
    const auto update = [&](int64_t begin, int64_t end, const AdamScalars& a) {
      const Moments moments{m + begin, v + begin, grad + begin};
      P* out = param ? param + begin : nullptr;
      if (op.master.dtype == DType::f32)
        simd::dispatch<UpdateF32>(op.master.as<float>() + begin, out, moments, end - begin, a);
      else
        simd::dispatch<UpdateBf16>(op.master.as<bf16>() + begin, out, moments, end - begin, a,
                                   Noise{op.seed, op.stream, first + uint64_t(begin)});
    };
    pool_.parallel_ranges(n, kChunkElements, [&](int64_t begin, int64_t end) {
      const int64_t cut = std::clamp(op.decayed, begin, end);
      update(begin, cut, decayed);
      update(cut, end, others);
    });
  });
}

}  // namespace athanor
