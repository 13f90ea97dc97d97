// From a configuration to the options of an engine: what no curve of a short run would show.
#include "train/setup.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(EngineOptions, LossScaleIsDynamicUnlessGiven) {
  Config config;
  config.precision = Precision::fp16;
  EXPECT_TRUE(engine_options(config, true).scaling.dynamic);
  EXPECT_EQ(engine_options(config, true).loss_scale, config.initial_loss_scale);
  config.loss_scale = 128;
  EXPECT_FALSE(engine_options(config, true).scaling.dynamic);
  EXPECT_EQ(engine_options(config, true).loss_scale, 128);
}

TEST(MeshSizes, RanksDivideAsConfigured) {
  using Sizes = std::array<int, kAxes>;
  Config config;
  EXPECT_EQ(mesh_sizes(config, 1), (Sizes{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(mesh_sizes(config, 6), (Sizes{1, 1, 6, 1, 1, 1}));
  config.data_parallel_replicate_size = 2;
  EXPECT_EQ(mesh_sizes(config, 6), (Sizes{1, 2, 3, 1, 1, 1}));
  config.data_parallel_shard_size = 4;
  EXPECT_EQ(mesh_sizes(config, 8), (Sizes{1, 2, 4, 1, 1, 1}));
  try {
    mesh_sizes(config, 6);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("do not make the 6 ranks"), std::string::npos) << e.what();
  }
  config.zero_stage = 0;  // every rank is a copy
  EXPECT_EQ(mesh_sizes(config, 6), (Sizes{1, 6, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace athanor
