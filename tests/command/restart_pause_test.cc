#include "command/restart_pause.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(RestartPause, GrowsWhileRunsFailEarly) {
  RestartPause pause;
  for (const double expected : {1, 2, 4, 8, 16, 30, 30}) EXPECT_EQ(pause.after(0.1), expected);
  EXPECT_EQ(pause.after(61), 0) << "a long run";
  EXPECT_EQ(pause.after(61), 0);
  EXPECT_EQ(pause.after(60), 1) << "anew";
  EXPECT_EQ(pause.after(0), 2);
}

}  // namespace
}  // namespace athanor
