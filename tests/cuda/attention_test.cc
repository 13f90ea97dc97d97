// The kernels of cuda/attention_*.cu run the op cases of attention, and more around their tiles.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class Attention : public KernelTest {};

TEST_F(Attention, Forward) { agrees_with_the_reference(AttentionFwd::kName, attention_cases, 10); }
TEST_F(Attention, Backward) { agrees_with_the_reference(AttentionBwd::kName, attention_cases, 10); }
}  // namespace
}  // namespace athanor
