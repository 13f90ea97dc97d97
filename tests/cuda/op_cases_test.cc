// Kernels run the cases of their ops: parity with the reference in double, gradients, guards around every tensor, the
// same bits in every run. Ops of kOwnFamilies and kOwnTests run their cases elsewhere. This file is the same on a GPU
// and on the emulated one.
#include <set>

#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

const std::set<std::string> kOwnFamilies = {"quantize", "fp4", "quantize_part"};
const std::set<std::string> kOwnTests = {Gemm::kName, AttentionFwd::kName, AttentionBwd::kName};
const std::set<std::string> kRefused = {Int8Gemm::kName};

struct OpOfFamily {
  Family family;
  std::string op;
};
void PrintTo(const OpOfFamily& p, std::ostream* out) { *out << p.op; }

std::vector<OpOfFamily> ops_of_families() {
  std::vector<OpOfFamily> found;
  for (const Family& family : kFamilies) {
    if (kOwnFamilies.contains(family.name)) continue;
    Examiner listing(make_cuda_backend, {.threads = {}});
    family.run(listing);
    for (const auto& [op, cases] : listing.seen())
      if (!kOwnTests.contains(op) && !kRefused.contains(op)) found.push_back({family, op});
  }
  return found;
}

class OpCases : public KernelTest, public testing::WithParamInterface<OpOfFamily> {};

TEST_P(OpCases, MatchReference) {
  const auto& [family, op] = GetParam();
  agrees_with_the_reference(op, family.run, op == GroupedGemm::kName ? 4 : family.run == top_logits_cases ? 5 : 1);
}
INSTANTIATE_TEST_SUITE_P(Cuda, OpCases, testing::ValuesIn(ops_of_families()),
                         [](const auto& p) { return cat(p.param.family.name, "_", p.param.op); });

}  // namespace
}  // namespace athanor
