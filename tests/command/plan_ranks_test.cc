// What many ranks would take: the price of an optimizer by the model of docs/distributed.md.
#include "command/plan_ranks.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace athanor {
namespace {

struct Case {
  const char* config;
  int64_t sequences;  // of a step of 524,288 tokens
  int ranks, stage;
};

double step_seconds(const Case& c, const char* optimizer) {
  const Config config = load_config(cat("configs/", c.config, ".json"),
                                    std::vector<std::string>{cat("optimizer=", optimizer), cat("zero_stage=", c.stage),
                                                             cat("global_batch_size=", c.sequences)});
  const ManyRanks many;
  return predict(config, find_gpu("h200"), c.ranks, many.on_nodes(c.ranks)).step();
}

TEST(PlanRanks, MuonCostsLittleMoreThanAdamW) {
  for (const Case& c : {Case{"gpt2-124m", 512, 1, 1}, Case{"gpt2-124m", 512, 8, 1}, Case{"gpt2-124m", 512, 64, 0},
                        Case{"gpt2-124m", 512, 64, 1}, Case{"gpt2-124m", 512, 64, 3}, Case{"llama-8b", 64, 8, 3},
                        Case{"llama-8b", 64, 64, 2}, Case{"llama-8b", 64, 64, 3}}) {
    const double adamw = step_seconds(c, "adamw");
    for (const char* optimizer : {"muon", "normuon"})
      EXPECT_LE(step_seconds(c, optimizer), 1.05 * adamw)
          << optimizer << ", " << c.config << ", " << c.ranks << " ranks, zero_stage " << c.stage;
  }
}

}  // namespace
}  // namespace athanor
