// The kernels of cuda/latent_heads.cu run the op cases.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class LatentHeadsKernels : public KernelTest {};

TEST_F(LatentHeadsKernels, ForwardMatchesReference) { agrees_with_the_reference(LatentHeads::kName, latent_cases, 20); }
TEST_F(LatentHeadsKernels, BackwardMatchesReference) {
  agrees_with_the_reference(LatentHeadsBwd::kName, latent_cases, 20);
}

}  // namespace
}  // namespace athanor
