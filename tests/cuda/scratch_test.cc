// For every op, the plan for a described GPU has the scratch memory that the CUDA backend requests.
#include <gtest/gtest.h>

#include <set>

#include "cuda/cuda_ops.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "perf/described_gpu.h"
#include "tests/ops/cases.h"
#include "tests/ops/host_device.h"

namespace athanor {
namespace {

struct BothSizes {
  BothSizes()
      : described(describe(find_gpu("h200"))),
        real(nullptr, std::make_unique<cuda::GemmRunner>(open_cublaslt(search_places(library_specs())).call)) {
    described.tuning->allow_scratch(0);  // disables cuDNN, whose sizes are only estimated
  }
  template <class Op>
  size_t scratch(const Op& op) const {
    const size_t bytes = real.scratch(op);
    EXPECT_EQ(described.ops->scratch(op), bytes) << Op::kName;
    compared.insert(Op::kName);
    return bytes;
  }
  DescribedBackend described;
  cuda::CudaOps real;
  mutable std::set<std::string> compared;
};

// Computes nothing and reports so, which ends an examination early; some cases run the other ops outside of an
// examination.
class Compared final : public Decorated<Compared> {
 public:
  template <class Op>
  void on(const Op&, void*) {
    if constexpr (!requires(Op o) { o.amax; } &&
                  !cuda::kIsOneOf<Op, AttentionBwd, NormApply, Quantize, AmaxOfPart, QuantizePart, RandomNormal, Rope>)
      throw Error("only sizes are compared");
  }
  const BothSizes& inner() const { return sizes; }
  BothSizes sizes;
};

class Silent final : public Decorated<Silent> {
 public:
  template <class Op>
  void on(const Op&, void*) {}
  struct Sizes {
    template <class Op>
    size_t scratch(const Op&) const {
      return 0;
    }
  };
  Sizes inner() const { return {}; }
};

#define ATHANOR_ONE(Op) +1
constexpr size_t kOps = 0 ATHANOR_EACH_OP(ATHANOR_ONE);
#undef ATHANOR_ONE

TEST(Scratch, DescribedGpuPredictsTheScratchOfTheBackend) {
  auto ops = std::make_shared<Compared>();
  Examiner examine(
      [&](int) {
        return TestBackend{std::make_shared<HostDevice>(), ops};
      },
      {.threads = {1}, .every = 20, .reference = std::make_shared<Silent>()});
  for (const Family& family : kFamilies) family.run(examine);
  EXPECT_EQ(ops->sizes.compared.size(), kOps - 1);  // Orthogonalize runs in its parts
}

}  // namespace
}  // namespace athanor
