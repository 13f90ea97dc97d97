// Why a product is slow: each cause yields its words and its share, and nothing is said that the numbers do not hold.
#include "perf/product_reason.h"

#include <gmock/gmock.h>

namespace athanor {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Roofline kGpu{.most = {.flops = 800e12, .bytes = 4e12}, .multiprocessors = 132};

// Of bf16, at a share of the rate.
ProductFacts facts(double m, double n, double k, double share, Tiling tiling = {.rows = 128, .cols = 256}) {
  const Cost cost{2 * m * n * k, 2 * (m * n + m * k + n * k)};
  return {.m = m, .n = n, .k = k, .cost = cost, .seconds = cost.flops / (share * 800e12), .tiling = tiling};
}

TEST(ProductReason, NothingIsSaidOfWhatTheNumbersDoNotHold) {
  EXPECT_EQ(why_slow(facts(132 * 1280, 2560, 8192, 0.95), kGpu), "");
}

TEST(ProductReason, FewTiles) {
  const std::string why = why_slow(facts(768, 768, 65536, 0.13), kGpu);
  EXPECT_EQ(why, "18 tiles of 128x256 for 132 multiprocessors (14 %)");
}

TEST(ProductReason, TheLastWave) {
  const std::string why = why_slow(facts(144 * 128, 256, 8192, 0.5), kGpu);
  EXPECT_EQ(why, "1.09 waves of 128x256 tiles: the last one is not full (55 %)");
}

TEST(ProductReason, TilesOverTheEdges) {
  const std::string why = why_slow(facts(132 * 128 * 4, 320, 8192, 0.6), kGpu);
  EXPECT_EQ(why, "tiles of 128x256 reach over the edges (63 %)");
}

TEST(ProductReason, ShortK) {
  const std::string why = why_slow(facts(132 * 1280, 2560, 512, 0.72), kGpu);
  EXPECT_EQ(why, "K of 512 is short for a tile's pipeline (74 %)");
  EXPECT_THAT(why_slow(facts(132 * 128, 256, 4096, 0.7, {.rows = 128, .cols = 256, .cuts = 8}), kGpu),
              HasSubstr("K of 512 is short"))
      << "of a cut";
}

TEST(ProductReason, CutsOfK) {
  const std::string why = why_slow(facts(2048, 2112, 8192, 0.6, {.rows = 128, .cols = 256, .cuts = 8}), kGpu);
  EXPECT_THAT(why, HasSubstr("8 cuts of K are added up in memory ("));
  EXPECT_THAT(why_slow(facts(2048, 2112, 8192, 0.6), kGpu), Not(HasSubstr("cuts")));
}

TEST(ProductReason, Memory) {
  const std::string why = why_slow(facts(65536, 65536, 64, 0.3), Roofline{.most = kGpu.most});
  EXPECT_EQ(why, "bound by memory: 63.9 FLOP per byte, 200 are needed (32 %)");
}

TEST(ProductReason, WhatTheEpilogueMoves) {
  ProductFacts f = facts(132 * 1280, 2560, 768, 0.7);
  f.epilogue_bytes = 2 * f.m * f.n;
  EXPECT_THAT(why_slow(f, kGpu), HasSubstr("; the epilogue reads or writes 2 more bytes for each result (94 %)"));
  f.k = 8192;
  EXPECT_THAT(why_slow(f, kGpu), Not(HasSubstr("epilogue")));
}

TEST(ProductReason, TheEpilogue) {
  ProductFacts f = facts(132 * 1280, 2560, 8192, 0.75);
  f.epilogue_seconds = 0.2 * f.seconds;
  EXPECT_EQ(why_slow(f, kGpu), "the epilogue is a kernel of its own (80 %)");
}

TEST(ProductReason, LargestLossComesFirst) {
  const std::string why = why_slow(facts(144 * 128, 200, 512, 0.3), kGpu);
  EXPECT_THAT(why, StartsWith("1.09 waves"));
  EXPECT_LT(why.find("K of 512"), why.find("reach over the edges"));
}

TEST(ProductReason, WhatIsNotExplainedIsSaid) {
  EXPECT_EQ(why_slow(facts(132 * 1280, 2560, 8192, 0.5), kGpu), "not explained by its sizes");
  EXPECT_EQ(why_slow(facts(768, 768, 65536, 0.05), kGpu),
            "18 tiles of 128x256 for 132 multiprocessors (14 %); these leave 14 %, the rest is not explained");
}

TEST(ProductReason, NoWordOfTilesWhereTheyAreNotKnown) {
  for (const bool gpu : {false, true}) {
    ProductFacts f = facts(768, 768, 65536, 0.13);
    if (gpu) f.tiling = {};
    EXPECT_EQ(why_slow(f, gpu ? kGpu : Roofline{.most = kGpu.most}), "not explained by its sizes");
  }
}

TEST(ProductReason, AShortLaunchIsMostlyItsStart) {
  ProductFacts f = facts(128, 256, 256, 0.01);
  f.seconds = 4e-6;
  EXPECT_THAT(why_slow(f, kGpu), HasSubstr("it lasts 4.0 us, so that starting it counts"));
}

}  // namespace
}  // namespace athanor
