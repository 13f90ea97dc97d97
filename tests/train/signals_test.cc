// Which signals stop a run, and how often they may come.
#include "train/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace athanor {
namespace {

TEST(StopSignals, EachOfThemStops) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGXCPU}) {
    const StopSignals signals;
    EXPECT_FALSE(signals.received());
    std::raise(signal);
    ASSERT_TRUE(signals.received()) << signal;
    EXPECT_EQ(signals.received()->signal, signal);
  }
}

// A closed terminal hangs up, and its shell says so again; the kernel repeats SIGXCPU every second.
TEST(StopSignals, HangingUpTwiceStillLeavesTimeForACheckpoint) {
  for (const int signal : {SIGHUP, SIGXCPU}) {
    const StopSignals signals;
    std::raise(signal);
    std::raise(signal);
    EXPECT_EQ(signals.received()->signal, signal);
  }
}

TEST(StopSignals, ASecondRequestExitsAtOnce) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGHUP);
        std::raise(SIGTERM);
        _exit(0);
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(StopSignals, NohupStaysInForce) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_FALSE(signals.received());
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

}  // namespace
}  // namespace athanor
