// GEMMs of quantized operands. If the GPU has such GEMMs and cuBLASLt supports the scales (native()), cuBLASLt computes
// them: it needs K contiguous in both operands, so other operands are transposed first, byte by byte, and FP4 values
// are packed two per byte. Otherwise the operands are dequantized to f32 and multiplied, which is slow, but shows what
// a recipe does to a loss curve.
#include "base/log.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/quantize/scaled_gemm.h"
namespace athanor::cuda {
namespace {

char* place(void* scratch, size_t offset) { return static_cast<char*>(scratch) + offset; }

}  // namespace

bool GemmRunner::offers(const GemmProblem& p) const {
  try {
    return !answers(p, describe(p), 1).first.empty();
  } catch (const Error&) {
    return false;  // an older library does not support such scales at all
  }
}

// The manual's tables have gaps, and libraries differ, so the library is queried once for each problem: without an
// epilogue, which can run as a separate kernel, and for aligned addresses, as those of the arena are.
NativeGemm GemmRunner::native(const ScaledGemm& op) {
  NativeGemm native(op, capability_);
  if (!native.possible || op.gemm.d.numel() == 0 || op.gemm.k() == 0) return native;
  GemmProblem p = problem_of(native_gemm(op, native, nullptr));
  p.epilogue = Epilogue::none;
  p.align_d = p.align_a = p.align_b = kMostAlign;
  auto [known, is_new] = offered_.try_emplace(p, false);
  if (is_new) known->second = offers(p);
  native.possible = known->second;
  if (native.possible) return native;
  GemmProblem kind = p;
  kind.m = kind.n = kind.k = kind.stride_d = kind.stride_a = kind.stride_b = 0;
  if (told_.insert(cat(kind)).second)
    log::warn("cuBLASLt ", key_.cublaslt, " has no algorithm for the GEMM ", p,
              ": such GEMMs are computed in fp32 on dequantized operands, which is slower");
  return native;
}

// scratch is null in a search, which has its own operands and scales.
LibraryGemm GemmRunner::native_gemm(const ScaledGemm& op, const NativeGemm& native, void* scratch) const {
  const ScaledScratch at(op, native, options_.workspace_bytes);
  LibraryGemm gemm(op.gemm);
  Gemm& g = gemm.op;
  const int64_t k = g.k();
  const bool packed = op.four_bits();
  if (g.ta || packed) g.a = {place(scratch, at.a), g.a.dtype, {g.m(), k}};
  if (!g.tb || packed) g.b = {place(scratch, at.b), g.b.dtype, {g.n(), k}};
  g.ta = false, g.tb = true;
  gemm.a_layout = native.a, gemm.b_layout = native.b;
  const auto in_place = [](ScaleLayout layout) { return layout == ScaleLayout::matrix; };
  gemm.a_scales = in_place(native.a) ? op.a_scales.data : place(scratch, at.a_scales);
  gemm.b_scales = in_place(native.b) ? op.b_scales.data : place(scratch, at.b_scales);
  if (packed) {
    gemm.scalars = reinterpret_cast<GemmScalars*>(place(scratch, at.scalars));
    gemm.a_global = op.a_global.as<float>(), gemm.b_global = op.b_global.as<float>();
  }
  gemm.fast = op.fast;
  return gemm;
}

void GemmRunner::run(const ScaledGemm& op, void* scratch, cudaStream_t stream) {
  const Gemm& g = op.gemm;
  if (g.d.numel() == 0 || g.k() == 0) return run(g, scratch, stream);
  const NativeGemm native = this->native(op);
  if (native.possible) {
    const LibraryGemm gemm = native_gemm(op, native, scratch);
    const auto arrange_quantized = [&](const Tensor& out, const Tensor& quantized, bool transposes) {
      if (op.four_bits())
        pack_quantized(out.data, quantized, transposes, stream);
      else if (transposes)
        transpose_quantized(out.data, quantized, stream);
    };
    arrange_quantized(gemm.op.a, g.a, g.ta);
    arrange_quantized(gemm.op.b, g.b, !g.tb);
    const auto arrange = [&](ScaleLayout layout, const void* out, const Tensor& scales, const Blocks& blocks,
                             const Tensor& quantized, int terms) {
      if (out == scales.data) return;
      arrange_scales({const_cast<void*>(out), layout, scales, blocks, quantized.shape, terms}, stream);
    };
    arrange(native.a, gemm.a_scales, op.a_scales, op.a_blocks, g.a, g.ta ? 0 : 1);
    arrange(native.b, gemm.b_scales, op.b_scales, op.b_blocks, g.b, g.tb ? 1 : 0);
    return run(gemm, scratch, stream);
  }
  Gemm decoded = decoded_gemm(op, native, scratch);
  decode({decoded.a.as<float>(), g.a, op.a_scales, op.a_global, op.a_blocks}, stream);
  decode({decoded.b.as<float>(), g.b, op.b_scales, op.b_global, op.b_blocks}, stream);
  run(decoded, scratch, stream);
  if (decoded.d.data != g.d.data && g.accumulate)
    cuda::run(Add{.y = g.d, .a = g.d, .b = decoded.d}, nullptr, stream);
  else if (decoded.d.data != g.d.data)
    round_gemm(g.d, decoded.d.as<float>(), g.bias, stream);
  if (g.epilogue == Epilogue::add) cuda::run(Add{.y = g.d, .a = g.d, .b = g.aux}, nullptr, stream);
}

Gemm GemmRunner::decoded_gemm(const ScaledGemm& op, const NativeGemm& native, void* scratch) const {
  const ScaledScratch at(op, native, options_.workspace_bytes);
  const Gemm& g = op.gemm;
  Gemm gemm = g;
  gemm.a = {place(scratch, at.a), DType::f32, g.a.shape};
  gemm.b = {place(scratch, at.b), DType::f32, g.b.shape};
  gemm.epilogue = Epilogue::none;
  gemm.aux = {};
  if (g.d.dtype != DType::f32) {
    gemm.accumulate = false;
    gemm.d = {place(scratch, at.d), DType::f32, g.d.shape};
    gemm.bias = {};
  }
  return gemm;
}

}  // namespace athanor::cuda
