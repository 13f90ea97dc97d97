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

// The rate before is that of all options as they were: pruning.end alone would lie behind the earlier train_iters.
TEST_F(RunOptions, LongerRunMayPruneLonger) {
  const std::vector<std::string> prunes = {"pruning.sparsity=0.5", "pruning.start=1"};
  const auto with = [&](int64_t steps) {
    std::vector<std::string> set = prunes;
    set.insert(set.end(), {cat("train_iters=", steps), cat("pruning.end=", steps)});
    return config("r", set);
  };
  ASSERT_EQ(run(with(4)), Exit::done);
  const std::string text = said(with(6));
  EXPECT_NE(text.find("the learning rate of step 5 rises from 0.001 to "), std::string::npos) << text;
}

}  // namespace
}  // namespace athanor
