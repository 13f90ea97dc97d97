// A supervised program gets the stop signals of its supervisor, which under nohup ignores that a terminal closes.
#include "command/child.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/temp_dir.h"

namespace athanor {
namespace {

ChildEnd run_script(const std::string& script) {
  const testing::TempDir folder;
  return run_child({"/bin/sh", "-c", script}, folder / "log");
}

TEST(Child, ReceivesStopSignals) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const auto before = std::signal(signal, SIG_DFL);
    const ChildEnd end = run_script(cat("kill -", signal, " $PPID; exec sleep 60"));
    std::signal(signal, before);
    EXPECT_TRUE(end.stopped) << signal;
    EXPECT_EQ(end.code, 128 + signal);
  }
}

TEST(Child, IsNotStoppedByAHangupUnderNohup) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const ChildEnd end = run_script("kill -HUP $PPID; exit 3");
  std::signal(SIGHUP, before);
  EXPECT_FALSE(end.stopped);
  EXPECT_EQ(end.code, 3);
}

}  // namespace
}  // namespace athanor
