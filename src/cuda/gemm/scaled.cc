// GEMMs of quantized operands. On a GPU that has them, cuBLASLt computes them if it supports their scales (native()):
// it needs K contiguous in both operands, so others are transposed first, byte by byte, and FP4 values are packed two
// per byte. Otherwise the operands are dequantized to f32 and multiplied, which is slow, but shows what a recipe does
// to a loss curve.
#include "base/log.h"
#include "cuda/basic.h"
#include "cuda/gemm/gemm.h"
#include "cuda/mlp.h"
#include "cuda/quantize/scaled_gemm.h"
namespace athanor::cuda {
namespace {

char* place(void* scratch, size_t offset) { return static_cast<char*>(scratch) + offset; }

}  // namespace

bool GemmRunner::offers(const GemmProblem& p) const {
  try {
    return !answers(p, describe(p), 1).first.empty();
  } catch (const Error&) {
    return false;  // an older library does not know the scales at all
  }
}

// The manual's tables have gaps, and libraries differ, so the library is asked, once for each problem: without an
// epilogue, which can run as a separate kernel, and for aligned addresses, as those of the arena are.
NativeProduct GemmRunner::native(const ScaledGemm& op) {
  NativeProduct native(op, capability_);
  if (!native.possible || op.product.d.numel() == 0 || op.product.k() == 0) return native;
  GemmProblem p = problem_of(native_product(op, native, nullptr));
  p.epilogue = Epilogue::none;
  p.align_d = p.align_a = p.align_b = kMostAlign;
  auto [known, is_new] = offered_.try_emplace(p, false);
  if (is_new) known->second = offers(p);
  native.possible = known->second;
  if (native.possible) return native;
  GemmProblem kind = p;
  kind.m = kind.n = kind.k = kind.stride_d = kind.stride_a = kind.stride_b = 0;
  if (told_.insert(cat(kind)).second)
    log::warn("cuBLASLt ", key_.cublaslt, " has no algorithm for the product ", p,
              ": such products are computed in fp32 from decoded operands, which is slower");
  return native;
}

// scratch is null in a search, which has operands and scales of its own.
LibraryProduct GemmRunner::native_product(const ScaledGemm& op, const NativeProduct& native, void* scratch) const {
  const ScaledScratch at(op, native, options_.workspace_bytes);
  LibraryProduct product(op.product);
  Gemm& g = product.op;
  const int64_t k = g.k();
  const bool packed = op.four_bits();
  if (g.ta || packed) g.a = {place(scratch, at.a), g.a.dtype, {g.m(), k}};
  if (!g.tb || packed) g.b = {place(scratch, at.b), g.b.dtype, {g.n(), k}};
  g.ta = false, g.tb = true;
  product.a_layout = native.a, product.b_layout = native.b;
  const auto in_place = [](ScaleLayout layout) { return layout == ScaleLayout::matrix; };
  product.a_scales = in_place(native.a) ? op.a_scales.data : place(scratch, at.a_scales);
  product.b_scales = in_place(native.b) ? op.b_scales.data : place(scratch, at.b_scales);
  if (packed) {
    product.scalars = reinterpret_cast<ProductScalars*>(place(scratch, at.scalars));
    product.a_global = op.a_global.as<float>(), product.b_global = op.b_global.as<float>();
  }
  product.fast = op.fast;
  return product;
}

void GemmRunner::run(const ScaledGemm& op, void* scratch, cudaStream_t stream) {
  const Gemm& g = op.product;
  if (g.d.numel() == 0 || g.k() == 0) return run(g, scratch, stream);
  const NativeProduct native = this->native(op);
  if (native.possible) {
    const LibraryProduct product = native_product(op, native, scratch);
    const auto arrange_quantized = [&](const Tensor& out, const Tensor& quantized, bool turn) {
      if (op.four_bits())
        pack_quantized(out.data, quantized, turn, stream);
      else if (turn)
        transpose_quantized(out.data, quantized, stream);
    };
    arrange_quantized(product.op.a, g.a, g.ta);
    arrange_quantized(product.op.b, g.b, !g.tb);
    const auto arrange = [&](ScaleLayout layout, const void* out, const Tensor& scales, const Blocks& blocks,
                             const Tensor& quantized, int terms) {
      if (out == scales.data) return;
      arrange_scales({const_cast<void*>(out), layout, scales, blocks, quantized.shape, terms}, stream);
    };
    arrange(native.a, product.a_scales, op.a_scales, op.a_blocks, g.a, g.ta ? 0 : 1);
    arrange(native.b, product.b_scales, op.b_scales, op.b_blocks, g.b, g.tb ? 1 : 0);
    return run(product, scratch, stream);
  }
  Gemm decoded = decoded_product(op, native, scratch);
  decode({decoded.a.as<float>(), g.a, op.a_scales, op.a_global, op.a_blocks}, stream);
  decode({decoded.b.as<float>(), g.b, op.b_scales, op.b_global, op.b_blocks}, stream);
  run(decoded, scratch, stream);
  if (decoded.d.data != g.d.data && g.accumulate)
    cuda::run(Add{.y = g.d, .a = g.d, .b = decoded.d}, nullptr, stream);
  else if (decoded.d.data != g.d.data)
    round_product(g.d, decoded.d.as<float>(), g.bias, stream);
  if (g.epilogue == Epilogue::add) cuda::run(Add{.y = g.d, .a = g.d, .b = g.aux}, nullptr, stream);
}

Gemm GemmRunner::decoded_product(const ScaledGemm& op, const NativeProduct& native, void* scratch) const {
  const ScaledScratch at(op, native, options_.workspace_bytes);
  const Gemm& g = op.product;
  Gemm product = g;
  product.a = {place(scratch, at.a), DType::f32, g.a.shape};
  product.b = {place(scratch, at.b), DType::f32, g.b.shape};
  product.epilogue = Epilogue::none;
  product.aux = {};
  if (g.d.dtype != DType::f32) {
    product.accumulate = false;
    product.d = {place(scratch, at.d), DType::f32, g.d.shape};
    product.bias = {};
  }
  return product;
}

}  // namespace athanor::cuda
