// Marks of processes in temporary names: only this host's ended processes count as ended.
#include "base/process_mark.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

namespace athanor {
namespace {

TEST(ProcessMark, OnlyEndedProcessesOfThisHostHaveEnded) {
  const pid_t dead = ::fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string mine = process_mark(), host = mine.substr(mine.find('-'));
  EXPECT_EQ(mine, cat(getpid(), host));
  EXPECT_FALSE(is_of_ended_process(mine));
  EXPECT_TRUE(is_of_ended_process(cat(dead, host)));
  const std::string other = cat(dead, host == "-00000000" ? "-00000001" : "-00000000");
  EXPECT_FALSE(is_of_ended_process(other)) << "the process of another host may run";
  for (const std::string& text : {std::string(), std::string("tmp"), cat(dead), cat(dead, "-"), cat(dead, "-0000"),
                                  cat("0", host), cat("-", dead, host), cat(dead, "-host.org"), cat(dead, "x", host)})
    EXPECT_FALSE(is_of_ended_process(text)) << text;
}

}  // namespace
}  // namespace athanor
