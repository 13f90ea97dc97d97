// Evaluations of runs that are stopped in them: each is made up after a requeue until it completes, on any path to the
// checkpoint, on all ranks.
#include <csignal>

#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

using Ranked = testing::TrainerRanks;

std::vector<int64_t> steps_of(const std::vector<EvalMetrics>& evals) {
  std::vector<int64_t> steps;
  for (const EvalMetrics& e : evals) steps.push_back(e.step);
  return steps;
}

void stop() { std::raise(SIGTERM); }

// train_data has an index of its documents, valid_data has none: the token that ends them there must be known.
TEST_F(TrainerTest, DocumentsOfValidDataWithoutAnIndexNeedAToken) {
  const std::string shard = dir_.path() + "/train.ds";
  fs::copy_file(dir_.path() + "/data.bin", shard);
  write_file(shard + ".metadata", "x|2\n");
  const uint64_t ends[] = {2000, 5000};
  write_file(shard + ".index", std::string(reinterpret_cast<const char*>(ends), sizeof ends));
  const std::vector<std::string> indexed = {"train_data=" + shard, "documents.reset_attention_mask=true"};
  const std::string error = error_of(config("r", indexed));
  EXPECT_NE(error.find("valid_data: documents.eod_token_id"), std::string::npos) << error;
  EXPECT_EQ(run(config("s", {indexed[0], indexed[1], "documents.eod_token_id=0"})), Exit::done);
  EXPECT_EQ(run(config("t", {indexed[0], indexed[1], "valid_data=" + shard})), Exit::done);
}

TEST_F(TrainerTest, InterruptedEvaluationIsRepeatedUntilComplete) {
  for (int start = 0; start < 3; ++start) {
    EXPECT_EQ(run(config("r"), false, at(Activity::evaluation, 4, stop)), Exit::requeue);
    EXPECT_EQ(history("r").steps.size(), 4u) << "a start that was stopped in it goes no further";
  }
  EXPECT_NE(events("r", EventKind::warn).back().text.find("makes no progress"), std::string::npos);
  EXPECT_EQ(run(config("r")), Exit::done);
  EXPECT_EQ(steps_of(history("r").evals), (std::vector<int64_t>{4, 8}));
}

TEST_F(TrainerTest, RequeueCompletesAnInterruptedLastEvaluation) {
  EXPECT_EQ(run(config("r"), false, at(Activity::evaluation, 8, stop)), Exit::requeue);
  EXPECT_EQ(steps_of(history("r").evals), std::vector<int64_t>{4});
  EXPECT_EQ(run(config("r")), Exit::done);
  EXPECT_EQ(steps_of(history("r").evals), (std::vector<int64_t>{4, 8}));
}

TEST_F(Ranked, RequeueCompletesALastEvaluationInterruptedOnOneRank) {
  const auto ask = [](int rank, Activity activity, int64_t step, testing::Asked& asked) {
    if (rank == 1 && activity == Activity::evaluation && step == 8) asked.ask(SIGTERM);
  };
  for (const testing::Ended& ended : run_all(config("r"), {.doing = ask})) EXPECT_EQ(ended.code, Exit::requeue);
  for (const testing::Ended& ended : run_all(config("r"), {})) EXPECT_EQ(ended.code, Exit::done);
  EXPECT_EQ(steps_of(history("r").evals), (std::vector<int64_t>{4, 8}));
}

TEST_F(TrainerTest, PendingEvaluationRunsHoweverTheCheckpointIsNamed) {
  EXPECT_EQ(run(config("r"), false, at(Activity::evaluation, 4, stop)), Exit::requeue);
  const std::string step = cat("r/", step_folder(4));
  ASSERT_EQ(run(config("other", {cat("load=", dir_.path(), "/", step)})), Exit::done);
  EXPECT_EQ(steps_of(history("other").evals), std::vector<int64_t>{8}) << "what another run owes";
  const std::string relative = fs::relative(dir_.path() + "/" + step).string();
  ASSERT_EQ(run(config("r", {cat("load=", relative, "/")})), Exit::done);
  EXPECT_EQ(steps_of(history("r").evals), (std::vector<int64_t>{4, 8}));
}

TEST_F(TrainerTest, TooShortTimeLimitStillMakesAStepAndWarns) {
  const Config c = config("r", {"train_iters=3", "eval_interval=1", "exit_duration_in_mins=1e-9"});
  for (int64_t step = 1; step < 3; ++step) {
    EXPECT_EQ(run(c), Exit::requeue);
    EXPECT_EQ(steps("r").back(), step);
    EXPECT_NE(events("r", EventKind::warn).back().text.find("exit_duration_in_mins"), std::string::npos);
  }
  EXPECT_EQ(run(c), Exit::done) << "nothing is left to train";
  EXPECT_EQ(steps_of(history("r").evals), (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace athanor
