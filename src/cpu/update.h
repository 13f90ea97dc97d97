// Shared by the update rules: master weights and optimizer states as f32, random bits for stochastic rounding, and the
// pass over all parts. A rule is a struct of scalars plus a struct with its step for one vector of weights, in f32
// only: tensors stored as f32 are updated in place, others are converted piece by piece in the L1 cache. A rule is
// therefore compiled once for all storage dtypes.
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
constexpr int64_t kDrawn = 9 * simd::kWidth;  // elements per fill() of random bits, at any offset in a Philox block
static_assert(kDrawn + 3 <= 4 * kBlocks);

// 32 random bits for each of kDrawn elements.
struct Random {
  uint32_t bits[4 * kBlocks];
  int64_t skip;  // elements of the first Philox block before the first element

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

// ---- master weights and states as f32

constexpr int64_t kPiece = 4 * kDrawn;  // elements
using Workspace = float[kPiece];

// settle() rounds values to what bf16 halves can hold (settled() of tensor/half.h) and stores their bf16 rounding and,
// if `lower` is given, the remainder. join() restores the values.
void settle(float* values, bf16* upper, int16_t* lower, int64_t n);
void join(float* values, const bf16* upper, const int16_t* lower, int64_t n);

// Returns elements [begin, begin + n) of a state or master weight as f32: in place if it is stored as f32, else
// converted into `workspace` (n <= kPiece). After changes call close_*() to store them. States: f32; bf16, rounded
// stochastically with one half of an element's random bits; or absent, which reads as zeros.
enum class Bits { lower, upper };
float* open_state(const Tensor& t, int64_t begin, int64_t n, Workspace& workspace);
void close_state(const Tensor& t, int64_t begin, int64_t n, const float* values, const Noise& noise, Bits bits);
inline bool in_place(const Tensor& t) { return t && t.dtype == DType::f32; }

// Master weights of a part: f32, alone or with a 16-bit compute copy; bf16, rounded stochastically; or i16 remainders
// of bf16 weights.
float* open_master(const UpdatePart& p, int64_t begin, int64_t n, Workspace& workspace);
void close_master(const UpdatePart& p, int64_t begin, int64_t n, float* values, const Noise& noise);
inline bool in_place(const UpdatePart& p) { return in_place(p.master) && !p.param; }

// Executes a skipped step: weights keep their values, the gradient is zeroed, and the compute copy is written as in any
// step.
void skip_part(ThreadPool& pool, const UpdatePart& p);

// Returns a gradient as f32, like open_state(). close_gradient() zeroes it, unless it was opened in place, where the
// update kernel zeroes it.
float* open_gradient(const Tensor& grad, int64_t begin, int64_t n, Workspace& workspace);
void close_gradient(const Tensor& grad, int64_t begin, int64_t n);
// Replaces close_gradient(): stores values in place of the gradient, rounded to nearest.
void replace_gradient(const Tensor& grad, int64_t begin, int64_t n, const float* values);

// ---- the update

// Decay factor of a weight: `decay`, or `decay_away` if the step u moves it away from zero.
template <int L, class Scalars>
ATHANOR_INLINE Vec<L> decay_of(const Vec<L>& w, const Vec<L>& u, const Scalars& a) {
  const Vec<L> product = w * u;
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const simd::Float<L> zero = {}, decay = zero + a.decay, away = zero + a.decay_away;
    return product.part[i] >= zero ? decay : away;
  });
}
// Applies weight decay and the step u to a weight.
template <int L, class Scalars>
ATHANOR_INLINE Vec<L> decayed(const Vec<L>& w, const Vec<L>& u, const Scalars& a) {
  return w * decay_of<L>(w, u, a) - u;
}

// Rule::step<L>(w, g, m, v, scalars) updates weights and states from a gradient; run() then zeroes the gradient. A
// state that the rule does not have is null.
template <class Rule, bool kHasM, bool kHasV>
struct Kernel {
  template <int L, class Scalars>
  static ATHANOR_INLINE void run(float* w, float* grad, float* m, float* v, int64_t n, const Scalars& a) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      Vec<L> x = at.load(w), first = simd::broadcast<L>(0), second = first;
      if constexpr (kHasM) first = at.load(m);
      if constexpr (kHasV) second = at.load(v);
      Rule::template step<L>(x, at.load(grad), first, second, a);
      if constexpr (kHasM) at.store(m, first);
      if constexpr (kHasV) at.store(v, second);
      at.store(grad, simd::broadcast<L>(0));
      at.store(w, x);
    });
  }
};

// Calls fn(begin, n, scalars) over [begin, end) in pieces of at most `piece`: elements below index `decayed` get
// `scalars`, the others scalars.undecayed().
template <class Scalars, class Fn>
void for_pieces(int64_t begin, int64_t end, int64_t piece, int64_t decayed, const Scalars& scalars, const Fn& fn) {
  const Scalars others = scalars.undecayed();
  const int64_t cut = std::clamp(decayed, begin, end);
  for (int64_t i = begin; i < cut; i += piece) fn(i, std::min(piece, cut - i), scalars);
  for (int64_t i = cut; i < end; i += piece) fn(i, std::min(piece, end - i), others);
}

// Runs one step of an update op.
template <class Rule, class Op, class Scalars>
void run(ThreadPool& pool, const Op& op, const StepState& state, const Scalars& scalars) {
  constexpr bool kHasM = Op::kStates.m != Kept::none, kHasV = Op::kStates.v != Kept::none;
  for (const UpdatePart& p : op.parts) {
    if (state.skip) {
      skip_part(pool, p);
      continue;
    }
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    const bool whole = in_place(p) && in_place(p.grad) && (!kHasM || in_place(p.m)) && (!kHasV || in_place(p.v));
    pool.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t from, int64_t to) {
      const auto step = [&](int64_t begin, int64_t n, const Scalars& a) {
        Workspace w_workspace, m_workspace, v_workspace, g_workspace;
        float* grad = open_gradient(p.grad, begin, n, g_workspace);
        float* w = open_master(p, begin, n, w_workspace);
        float* m = kHasM ? open_state(p.m, begin, n, m_workspace) : nullptr;
        float* v = kHasV ? open_state(p.v, begin, n, v_workspace) : nullptr;
        simd::dispatch<Kernel<Rule, kHasM, kHasV>>(w, grad, m, v, n, a);
        close_gradient(p.grad, begin, n);
        const Noise noise{op.seed, p.moment_stream, first + uint64_t(begin)};
        if (kHasM) close_state(p.m, begin, n, m, noise, Bits::upper);
        if (kHasV) close_state(p.v, begin, n, v, noise, Bits::lower);
        close_master(p, begin, n, w, {op.seed, p.stream, first + uint64_t(begin)});
      };
      for_pieces(from, to, whole ? to - from : kPiece, p.decayed, scalars, step);
    });
  }
}

inline const StepState& state_of(const Tensor& t) { return *reinterpret_cast<const StepState*>(t.as<uint8_t>()); }

}  // namespace athanor::update
