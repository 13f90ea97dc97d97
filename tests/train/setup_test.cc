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

}  // namespace
}  // namespace athanor
