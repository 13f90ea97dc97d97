// Ranks that do not see the same save folder get an error before step 1.
#include "train/shared_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "comm/threads.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

TEST(SharedFolder, RankThatCannotSeeItIsNamedOnAllRanks) {
  const testing::TempDir one, other;
  int errors = 0;
  std::mutex mutex;
  run_ranks(3, [&](std::unique_ptr<Communicator> ranks) {
    require_shared_folder(*ranks, one.path());
    try {
      require_shared_folder(*ranks, ranks->rank() == 2 ? other.path() : one.path(), 0);
    } catch (const Error& e) {
      const std::string said = e.what();
      EXPECT_EQ(e.code(), Exit::usage);
      for (const std::string& part : {cat("rank 2 (", host_name(), ")"), cat("rank 0 (", host_name(), ")"),
                                      ranks->rank() == 2 ? other.path() : one.path(), std::string("share")})
        EXPECT_NE(said.find(part), std::string::npos) << said;
      const std::lock_guard lock(mutex);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
}

}  // namespace
}  // namespace athanor
