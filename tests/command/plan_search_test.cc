// The search for the fastest way to run on many GPUs: what it tries, and that what it writes is what it predicted.
#include "command/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "plan/search.h"
#include "tests/temp_dir.h"
#include "train/setup.h"

namespace athanor {
namespace {

Config small(const std::vector<std::string>& more = {}) {
  std::vector<std::string> set{"model.num_hidden_layers=2", "micro_batch_size=auto"};
  set.insert(set.end(), more.begin(), more.end());
  return load_config("configs/gpt2-124m.json", set);
}

Cluster gpus(int ranks) { return ManyRanks{}.cluster(find_gpu("h200"), ranks); }

TEST(PlanSearch, CandidatesDivideRanksAndBatch) {
  for (const auto& [ranks, batch] : {std::pair{8, 64}, {64, 512}, {64, 16}, {1024, 512}}) {
    const Config c = small({cat("global_batch_size=", batch)});
    const Cluster on = gpus(ranks);
    std::set<std::tuple<int, int, int, int, int>> seen;
    for (const Candidate& w : search_candidates(c, on)) {
      EXPECT_TRUE(seen.insert({w.stage, w.copies, w.context, w.tensor, w.pipeline}).second) << "twice";
      EXPECT_EQ(ranks % (w.copies * w.context * w.tensor * w.pipeline), 0);
      EXPECT_EQ(batch % (ranks / (w.context * w.tensor * w.pipeline)), 0);
      EXPECT_LE(w.tensor, 8) << "within a node";
      EXPECT_LE(w.context, 2 * std::max(1, ranks / (w.tensor * batch))) << "twice what the batch needs, at most";
      EXPECT_EQ(mesh_sizes(configured_as(c, w), ranks).ranks(), ranks);
    }
    EXPECT_FALSE(seen.empty());
  }
}

TEST(PlanSearch, WrittenConfigTakesThePredictedStepTime) {
  const testing::TempDir dir;
  const Config c = small({"global_batch_size=64"});
  const Cluster on = gpus(16);
  ::testing::internal::CaptureStdout();
  print_search(c, on, {.search = true, .price = 3, .write = dir / "best.json"});
  const std::string text = ::testing::internal::GetCapturedStdout();
  for (const char* part : {"best: zero_stage", "bound by", "memory of a rank", "GPU h / 1B", "another zero_stage",
                           "best with one change", "expected step", "step time if 20 % better"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  try {
    print_search(c, on, {.search = true, .write = dir / "best.json"});
    ADD_FAILURE() << "replaced a configuration";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("best.json: exists already; give a new name"), std::string::npos) << e.what();
  }
  const Config best = load_config(dir / "best.json", std::vector<std::string>{});
  EXPECT_GT(best.micro_batch_size, 0);
  double least = 1e9;
  for (const Candidate& w : search_candidates(c, on)) {
    Config tried = configured_as(c, w);
    try {
      validate(tried);
      least = std::min(least, RankPlan(tried, on).expected().step());
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): 12 heads do not divide among 8 ranks
    }
  }
  EXPECT_DOUBLE_EQ(RankPlan(best, on).expected().step(), least);
}

TEST(PlanSearch, ReportsWhyNoCandidateFits) {
  const Config c = small({"global_batch_size=7"});
  EXPECT_THROW(print_search(c, gpus(1024), {.search = true}), Error);
}

}  // namespace
}  // namespace athanor
