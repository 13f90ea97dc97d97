// The kernels of cuda/quantize.cu and cuda/codes.cu run the op cases of codes of 8 bits: codes and scales have the
// reference's bits. Products of codes: by the library in every layout of scales it has, else emulated.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class QuantizeKernels : public KernelTest {};

TEST_F(QuantizeKernels, CodesAndScales) { agrees_with_the_reference(Quantize::kName, quantize_cases, 400); }
TEST_F(QuantizeKernels, DelayedScales) { agrees_with_the_reference(DelayedScales::kName, quantize_cases, 50); }
TEST_F(QuantizeKernels, Products) { agrees_with_the_reference(ScaledGemm::kName, quantize_cases, 200); }

TEST_F(QuantizeKernels, AnyAlignment) { needs_no_alignment(Quantize::kName, quantize_cases, 37); }
}  // namespace
}  // namespace athanor
