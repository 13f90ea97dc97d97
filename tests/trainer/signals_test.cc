// Which signals stop a run, and how often they may be sent.
#include "train/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "base/error.h"

namespace athanor {
namespace {

// The shell that starts the tests may ignore SIGHUP (nohup), which StopSignals respects.
class StopSignalsTest : public ::testing::Test {
 protected:
  void SetUp() override { before_ = std::signal(SIGHUP, SIG_DFL); }
  void TearDown() override { std::signal(SIGHUP, before_); }

 private:
  void (*before_)(int) = SIG_DFL;
};

TEST_F(StopSignalsTest, EverySignalStopsTheRun) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGXCPU}) {
    const StopSignals signals;
    EXPECT_FALSE(signals.received());
    std::raise(signal);
    ASSERT_TRUE(signals.received()) << signal;
    EXPECT_EQ(signals.received()->signal, signal);
  }
}

// A closed terminal sends SIGHUP, and its shell sends it again; the kernel repeats SIGXCPU every second.
TEST_F(StopSignalsTest, TwoHangupsStillLeaveTimeForACheckpoint) {
  for (const int signal : {SIGHUP, SIGXCPU}) {
    const StopSignals signals;
    std::raise(signal);
    std::raise(signal);
    EXPECT_EQ(signals.received()->signal, signal);
  }
}

TEST_F(StopSignalsTest, SecondRequestExitsAtOnce) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGHUP);
        std::this_thread::sleep_for(kOneRequest + std::chrono::milliseconds(10));
        std::raise(SIGTERM);
        _exit(0);
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

// `timeout` signals the process and its group, Slurm the step and the batch script's group.
TEST_F(StopSignalsTest, RepeatedSignalIsOneRequest) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    const StopSignals signals;
    std::raise(signal);
    std::raise(SIGTERM);
    std::raise(signal);
    ASSERT_TRUE(signals.received());
    EXPECT_EQ(signals.received()->signal, signal) << "the first one counts";
  }
}

TEST_F(StopSignalsTest, NohupIsRespected) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_FALSE(signals.received());
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

TEST(StopAtStart, EndsTheProcessDuringStartup) {
  const auto start = [] {
    const StopSignals signals;
    const StopAtStart quick(signals, [](int signal) { std::fprintf(stderr, "last words of %d", signal); });
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(300));
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(85), cat("last words of ", SIGTERM));
}

}  // namespace
}  // namespace athanor
