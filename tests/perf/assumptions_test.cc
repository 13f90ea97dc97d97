// Assumptions of a predicted step: ideal values change nothing, each name sets its own value, and GPUs other than
// Hopper have their own tiles and attention rates.
#include "perf/assumptions.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "perf/described_gpu.h"

namespace athanor {
namespace {

const Network kNetwork{.link_bytes = 4e9, .network_bytes = 2e9};

std::vector<double> rates(const Assumptions& a) {
  const Roofline r = a.of(limits_of(find_gpu("h100"), 64, 2048));
  const Network n = a.of(kNetwork);
  return {r.most.flops,
          r.most.quantized,
          r.attention_forward,
          r.attention_backward,
          r.most.bytes,
          n.link_bytes,
          n.network_bytes,
          r.host_bytes,
          n.start,
          n.hop,
          r.most.floats};
}

TEST(Assumptions, IdealValuesChangeNothing) {
  const Roofline r = limits_of(find_gpu("h100"), 64, 2048);
  EXPECT_EQ(rates({}),
            (std::vector<double>{r.most.flops, r.most.quantized, r.attention_forward, r.attention_backward,
                                 r.most.bytes, 4e9, 2e9, r.host_bytes, kNetwork.start, kNetwork.hop, r.most.floats}));
}

TEST(Assumptions, EachNameSetsOnlyItsValue) {
  EXPECT_EQ(sizeof(Assumptions), all_assumptions().size() * sizeof(double)) << "a row for each member";
  for (const Assumption& row : all_assumptions()) {
    Assumptions a;
    set(a, cat(row.name, "=0.25"));
    for (const Assumption& other : all_assumptions())
      EXPECT_EQ(a.*other.value, &other == &row ? 0.25 : Assumptions{}.*other.value) << row.name << ", " << other.name;
    const bool of_times = std::string(row.name) == "launch" || std::string(row.name) == "interference";
    EXPECT_EQ(rates(a) == rates({}), of_times) << row.name;
  }
}

TEST(Assumptions, RefuseInvalidValues) {
  Assumptions a;
  for (const char* text : {"produkte=1", "gemms", "gemms=", "gemms=fast", "gemms=0", "copies=-1", "links=inf",
                           "launch=-1e-6", "launch=1us", "=1"})
    EXPECT_THROW(set(a, text), Error) << text;
  set(a, "launch=0");
}

TEST(Assumptions, NoGpuIsExpectedToBeFasterThanItsBound) {
  for (const char* gpu : {"h200", "h100", "a100", "b200", "rtx4090"}) {
    const Assumptions a = expected_on(find_gpu(gpu));
    for (double share : {a.gemms, a.quantized, a.attention, a.copies, a.links, a.network, a.host})
      EXPECT_LE(share, 1) << gpu;
    EXPECT_GT(a.launch, 0) << gpu;
  }
}

// Attention FLOP/s relative to GEMM FLOP/s: the table's ratio on Hopper, higher on GPUs with more exponentials per GEMM
// FLOP.
TEST(DescribedGpu, AttentionRateRisesWithExponentialThroughput) {
  const auto share = [](const char* gpu, int64_t head_dim) {
    const Roofline r = limits_of(find_gpu(gpu), head_dim, 8192);
    return r.attention_forward / r.most.flops;
  };
  EXPECT_DOUBLE_EQ(share("h200", 64), 460.0 / 795);
  EXPECT_DOUBLE_EQ(share("h200", 128), 644.0 / 795);
  for (const int64_t head_dim : {64, 128}) {
    EXPECT_GT(share("a100", head_dim), 1.1 * share("h200", head_dim));
    EXPECT_GT(share("rtx4090", head_dim), share("a100", head_dim));
    EXPECT_LT(share("b200", head_dim), share("h200", head_dim));
    EXPECT_LE(share("rtx4090", head_dim), 1);
  }
}

// 4096 x 1536 is 192 tiles of 128 x 256, one wave and a half on 128 multiprocessors, and 384 of 128 x 128, three.
TEST(DescribedGpu, GpusWithoutWgmmaUseSquareTiles) {
  Launch product{.op = "gemm", .shape = {4096, 1536}, .inner = 8192};
  product.cost = {2.0 * 4096 * 1536 * 8192, 1};
  Roofline limits = limits_of(find_gpu("rtx4090"), 64, 1024);
  ASSERT_TRUE(limits.square_tiles);
  EXPECT_EQ(best_tiling(product, limits).cols * best_tiling(product, limits).rows, 128 * 128);
  const double square = least_seconds(product, limits);
  limits.square_tiles = false;
  EXPECT_GT(least_seconds(product, limits), 1.02 * square);
  EXPECT_FALSE(limits_of(find_gpu("h100"), 64, 1024).square_tiles);
}

}  // namespace
}  // namespace athanor
