// Adam and AdamW: one pass over weights, moments and gradient. 8-bit moments are converted to f32 block by block.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

// In the order of operations of torch.optim.Adam if the decay is coupled, else of torch.optim.AdamW.
template <bool kCoupled>
struct Moments {
  template <int L>
  static ATHANOR_INLINE void step(Vec<L>& w, const Vec<L>& grad, Vec<L>& m, Vec<L>& v, const AdamScalars& a) {
    Vec<L> g = grad * a.grad_scale;
    if constexpr (kCoupled) g = g + a.l2 * w;
    m = a.beta1 * m + a.one_minus_beta1 * g;
    v = a.beta2 * v + a.one_minus_beta2 * g * g;
    const Vec<L> u = a.step_size * m / (simd::sqrt(v) / a.root_bias2 + a.eps);
    if constexpr (kCoupled)
      w = w - u;
    else
      w = update::decayed<L>(w, u, a);
  }
};

template <bool kCoupled>
using Kernel = update::Kernel<Moments<kCoupled>, true, true>;

// Dequantize and quantize a block of 8-bit moments.
void load_quantized(float* x, const float* shares, const uint8_t* quantized, float scale) {
  for (int64_t i = 0; i < kMomentBlock; ++i) x[i] = shares[quantized[i]] * scale;
}
template <class CodeOf>
void store_quantized(uint8_t* quantized, float& scale, const DynamicMap& map, const float* x, const CodeOf& code_of) {
  scale = 0;
  for (int64_t i = 0; i < kMomentBlock; ++i) scale = std::max(scale, std::abs(x[i]));
  for (int64_t i = 0; i < kMomentBlock; ++i) quantized[i] = code_of(map.bound, x[i], scale);
}

}  // namespace

void CpuOps::run(const AdamW8bit& op, void*) {
  const StepState& state = update::state_of(op.state);
  const AdamScalars scalars = adam_scalars(op, state);
  for (const AdamW8bit::Part& p : op.parts) {
    const UpdatePart weights = p.weights();
    if (state.skip) {
      update::skip_part(pool_, weights);
      continue;
    }
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    const auto block_of = [&](int64_t begin) {
      uint8_t *m_quantized = static_cast<uint8_t*>(p.m.data) + begin,
              *v_quantized = static_cast<uint8_t*>(p.v.data) + begin;
      float& m_scale = flat<float>(p.m_scale)[begin / kMomentBlock];
      float& v_scale = flat<float>(p.v_scale)[begin / kMomentBlock];
      float m[kMomentBlock], v[kMomentBlock];
      update::Workspace g_workspace;
      float* grad = update::open_gradient(p.grad, begin, kMomentBlock, g_workspace);
      load_quantized(m, kSignedMap.value, m_quantized, m_scale);
      load_quantized(v, kUnsignedMap.value, v_quantized, v_scale);
      update::for_pieces(0, kMomentBlock, kMomentBlock, p.decayed - begin, scalars,
                         [&](int64_t from, int64_t n, const AdamScalars& a) {
                           update::Workspace workspace;
                           float* w = update::open_master(weights, begin + from, n, workspace);
                           simd::dispatch<Kernel<false>>(w, grad + from, m + from, v + from, n, a);
                           const uint64_t place = first + uint64_t(begin + from);
                           update::close_master(weights, begin + from, n, w, {op.seed, p.stream, place});
                         });
      update::close_gradient(p.grad, begin, kMomentBlock);
      store_quantized(m_quantized, m_scale, kSignedMap, m, code_of_m);
      store_quantized(v_quantized, v_scale, kUnsignedMap, v, code_of_v);
    };
    pool_.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; block += kMomentBlock) block_of(block);
    });
  }
}

void CpuOps::run(const AdamW& op, void*) {
  const StepState& state = update::state_of(op.state);
  const AdamScalars scalars = adam_scalars(op, state);
  if (op.coupled)
    update::run<Moments<true>>(pool_, op, state, scalars);
  else
    update::run<Moments<false>>(pool_, op, state, scalars);
}

}  // namespace athanor
