// Each rank uses its own GPU, whether the launcher shows it one GPU or all of the machine's; two ranks on one GPU are
// named.
#include "command/rank_gpus.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/expect_error.h"

namespace athanor {
namespace {

template <class Fn>
Error error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return Error("");
}

TEST(RankGpus, LocalRankSelectsTheGpu) {
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(choose_gpu(8, rank, false), rank);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(choose_gpu(1, rank, false), 0) << "each task sees its own";
  EXPECT_EQ(choose_gpu(2, 3, true), 1);
  const Error error = error_of([] { choose_gpu(2, 2, false); });
  EXPECT_EQ(error.code(), Exit::usage);
  expect_parts(std::string(error.what()), {"local rank 2 (counted from 0) has no GPU: its machine has 2 GPUs"});
}

TEST(RankGpus, TwoRanksOnOneGpuAreNamed) {
  std::vector<RankGpu> gpus = {{"a", "H200", "01"}, {"a", "H200", "02"}, {"b", "H200", "03"}};
  require_own_gpus(gpus);
  gpus.push_back({"a", "H200", "02"});
  const Error error = error_of([&] { require_own_gpus(gpus); });
  EXPECT_EQ(error.code(), Exit::usage);
  for (const char* part : {"ranks 1 and 3", "H200 02 of a", "NCCL_MULTI_RANK_GPU_ENABLE=1"})
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
}

TEST(RankGpus, RoundTripAsText) {
  for (const RankGpu& gpu : {RankGpu{"node-a", "NVIDIA H200 NVL", "00ff"}, RankGpu{"", "", ""}})
    EXPECT_EQ(parse_rank_gpu(to_text(gpu)), gpu);
  EXPECT_THROW(parse_rank_gpu(""), Error);
  EXPECT_THROW(parse_rank_gpu("one\nline"), Error);
}

TEST(RankGpus, SummaryGroupsRanksByHostAndGpu) {
  EXPECT_EQ(roll_call({{"a", "H200", "1"}, {"a", "H200", "2"}, {"a", "H100", "3"}, {"b", "H100", "4"}}),
            "4 ranks: 0-1 on a (2 x H200), 2 on a (1 x H100), 3 on b (1 x H100)");
}

}  // namespace
}  // namespace athanor
