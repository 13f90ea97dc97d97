#include "cuda/gemm/own_product.h"

#include "cuda/gemm/wgmma_codes.h"
#include "cuda/gemm/wgmma_product.h"
namespace athanor::cuda {

bool own_takes(const GemmProblem& p, int capability) {
  return p.scales_a == ScaleLayout::none ? wgmma_takes(p, capability) : wgmma_takes_codes(p, capability);
}

void run_own(const LibraryProduct& product, cudaStream_t stream) {
  if (!product.codes()) return run_by_wgmma(product.op, stream);
  multiply_codes_by_wgmma({.op = product.op,
                           .a_layout = product.a_layout,
                           .b_layout = product.b_layout,
                           .a_scales = static_cast<const float*>(product.a_scales),
                           .b_scales = static_cast<const float*>(product.b_scales),
                           .fast = product.fast,
                           .amax = product.amax},
                          stream);
}

ProductMethod own_method(const GemmProblem& p) {
  return p.scales_a == ScaleLayout::none ? wgmma_method() : wgmma_codes_method();
}

}  // namespace athanor::cuda
