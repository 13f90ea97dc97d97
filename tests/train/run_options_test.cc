// Options of a run: which ones a resumed run may change, and which ones have no effect.
#include <gtest/gtest.h>

#include "tests/train/trainer_rig.h"

namespace athanor {
namespace {

class RunOptions : public TrainerTest {
 protected:
  // Standard error of a run that ends well.
  std::string said(const Config& c) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run(c), Exit::done);
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(RunOptions, QuantizedGradientsOfOneRankAreSaidToHaveNoEffect) {
  const std::string text = said(config("", {"train_iters=2", "zero_quantized_gradients=true"}));
  EXPECT_NE(text.find("zero_quantized_gradients has no effect: "), std::string::npos) << text;
}

}  // namespace
}  // namespace athanor
