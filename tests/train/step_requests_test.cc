// All ranks of a run decide alike, by requests that are reduced with a step's scalars: stops, saves, and failures of
// any rank.
#include "train/step_requests.h"

#include <algorithm>
#include <array>
#include <limits>
#include <thread>

#include "tests/patiently.h"
#include "tests/sanitized.h"
#include "tests/train/ranks_rig.h"
#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

using ranks::Setting;
using testing::Asked;
using testing::Ended;
using testing::has_requests;
using testing::requests_in;

// The sums over ranks with these requests.
std::vector<double> sums_of(const std::vector<RequestBits>& ranks) {
  std::vector<double> all(kRequestSums), mine(kRequestSums);
  for (const RequestBits requests : ranks) {
    write_requests(requests, mine.data());
    for (size_t i = 0; i < all.size(); ++i) all[i] += mine[i];
  }
  return all;
}

TEST(StepRequests, RequestOfAnyRankReachesAll) {
  const RequestBits every = (RequestBits{1} << kRequests) - 1;
  for (int w = 0; w < kRequests; ++w) {
    EXPECT_EQ(read_requests(sums_of({0, RequestBits{1} << w, 0}).data()), RequestBits{1} << w);
    EXPECT_EQ(read_requests(sums_of({every & ~(RequestBits{1} << w), 0}).data()), every & ~(RequestBits{1} << w));
  }
  EXPECT_EQ(read_requests(sums_of({0b01, 0b10, 0b11}).data()), 0b11U);
}

TEST(StepRequests, AreExactUpToTheSupportedRanks) {
  std::vector<double> one(kRequestSums), all(kRequestSums);
  for (const RequestBits requests : {0b01U, 0b10U, 0b11U}) {
    write_requests(requests, one.data());
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = one[i] * double(kRequestRadix - 1);  // the sum of this many equal
                                                    // ranks
    EXPECT_EQ(all[0] - one[0] + one[0], all[0]);
    EXPECT_EQ(read_requests(all.data()), requests);
  }
  EXPECT_THROW(write_requests(RequestBits{1} << kRequests, one.data()), Error);
}

// Why requests are not reduced by max.
TEST(StepRequests, MaxReductionWouldLoseARequest) {
  const std::vector<double> a = sums_of({0b01}), b = sums_of({0b10});
  std::vector<double> largest(kRequestSums);
  std::ranges::transform(a, b, largest.begin(), [](double x, double y) { return std::max(x, y); });
  EXPECT_NE(read_requests(largest.data()), 0b11U);
}

TEST(StepRequests, EachHasItsOwnBit) {
  for (const int signal : kStopSignals) {
    const StepRequests stop{.stop_signal = signal};
    EXPECT_EQ(to_requests(to_bits(stop)), stop);
  }
  std::vector<RequestBits> each;
  for (const StepRequests& w : {StepRequests{.save = true}, StepRequests{.end = true}, StepRequests{.writing = true},
                                StepRequests{.failed = true}}) {
    EXPECT_EQ(to_requests(to_bits(w)), w);
    each.push_back(to_bits(w));
  }
  const StepRequests both = to_requests(to_bits({.stop_signal = SIGINT}) | to_bits({.stop_signal = SIGTERM}) | each[0]);
  EXPECT_EQ(both, (StepRequests{.stop_signal = SIGTERM, .save = true}));
  EXPECT_THROW(to_bits({.stop_signal = SIGKILL}), Error);
}

// Rank r makes request r; the sums run over any groups.
TEST(StepRequests, ReachAllRanksOnEveryMeshAxis) {
  for (Setting s : {Setting{.replicas = 2, .shards = 2, .stage = 3}, Setting{.shards = 2, .stage = 1, .tensor = 2},
                    Setting{.tensor = 4, .kv_heads = 4}, Setting{.tensor = 2, .context = 2}}) {
    s.length = 8;
    if (s.tensor == 2) s.kv_heads = 2;
    const int count = s.ranks();
    ranks::on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
      for (int64_t step = 0; step < 3; ++step) {
        ranks::accumulate(engine, step);
        PhaseClock clock;
        const RequestBits mine = step == 1 ? 0 : RequestBits{1} << mesh.world().rank();
        engine.close_step(clock, mine);
        EXPECT_EQ(engine.collect().requests, step == 1 ? 0 : (RequestBits{1} << count) - 1) << "step " << step;
      }
    });
  }
}

class Decisions : public testing::TrainerRanks {
 protected:
  Config of_ranks(const std::string& run, std::vector<std::string> set = {}) {
    set.insert(set.end(), {"micro_batch_size=1", "zero_stage=0"});
    return config(run, set);
  }
  // One rank is asked to stop when it begins the step.
  static auto asks(int who, int64_t at) {
    return [=](int rank, Activity activity, int64_t step, Asked& asked) {
      if (rank == who && activity == Activity::step && step == at) asked.ask(SIGUSR1);
    };
  }
};

TEST_F(Decisions, StopOnOneRankStopsAllAfterTheSameStep) {
  ASSERT_EQ(run_all(of_ranks("whole"), {})[1].code, Exit::done);
  for (const bool ahead : {false, true})
    for (const int who : {0, 1}) {
      const std::string name = cat("stopped", ahead, who);
      for (const Ended& e : run_all(of_ranks(name), {.ahead = ahead, .doing = asks(who, 3)}))
        EXPECT_EQ(e.code, Exit::requeue) << e.error;
      EXPECT_EQ(steps(name), std::vector<int64_t>{ahead ? 4 : 3}) << "the host is one step ahead";
      for (const Ended& e : run_all(of_ranks(name), {.ahead = ahead})) EXPECT_EQ(e.code, Exit::done) << e.error;
      EXPECT_EQ(bytes(name, 8, "optimizer.safetensors.index.json"),
                bytes("whole", 8, "optimizer.safetensors.index.json"));
      EXPECT_EQ(bytes(name, 8, "model-00001-of-00002.safetensors"),
                bytes("whole", 8, "model-00001-of-00002.safetensors"));
      EXPECT_EQ(bytes(name, 8, "state.json"), bytes("whole", 8, "state.json"));
    }
}

// A request in the last step, or before it, finds all steps done; the missing evaluation is made up.
TEST_F(Decisions, StopInTheLastStepsKeepsTheEvaluationPending) {
  for (const bool ahead : {false, true})
    for (const int64_t at : {7, 8}) {
      const std::string name = cat("last", ahead, at);
      const bool all_steps = at == 8 || ahead;
      for (const Ended& e : run_all(of_ranks(name), {.ahead = ahead, .doing = asks(1, at)}))
        EXPECT_EQ(e.code, Exit::requeue) << e.error;
      EXPECT_EQ(steps(name), std::vector<int64_t>{all_steps ? 8 : 7});
      for (const Ended& e : run_all(of_ranks(name), {.ahead = ahead})) EXPECT_EQ(e.code, Exit::done) << e.error;
      EXPECT_EQ(history(name).evals.back().step, 8);
    }
}

TEST_F(Decisions, TimedSavesIncludeAllRanksAndChangeNothing) {
  ASSERT_EQ(run_all(of_ranks("whole"), {})[0].code, Exit::done);
  for (const bool ahead : {false, true}) {
    const std::string name = cat("saved", ahead);
    for (const Ended& e : run_all(
             of_ranks(name, {"checkpoint.interval_minutes=0.000001", "checkpoint.keep_latest_k=0"}), {.ahead = ahead}))
      EXPECT_EQ(e.code, Exit::done) << e.error;
    EXPECT_GT(steps(name).size(), 2U);
    EXPECT_EQ(bytes(name, 8, "model-00002-of-00002.safetensors"),
              bytes("whole", 8, "model-00002-of-00002.safetensors"));
    for (const CheckpointInfo& c : list_checkpoints(dir_.path() + "/" + name))
      EXPECT_TRUE(verify_checkpoint(c.path, Depth::checksums).ok) << c.path;
  }
}

// The source run is still saving: rank 1 loads the checkpoint that rank 0 found, even if it would find another one.
TEST_F(Decisions, AllRanksLoadTheCheckpointThatRank0Found) {
  ASSERT_EQ(run_all(of_ranks("source", {"save_interval=4", "checkpoint.keep_latest_k=0"}), {})[0].code, Exit::done);
  const std::string source = dir_.path() + "/source", newer = cat(source, "/", step_folder(8)), aside = source + "-8";
  const auto first_loss = [&](const std::string& name, const std::string& from, const Ranks& ranks = {}) {
    const std::vector<Ended> ended = run_all(
        of_ranks(name, {"init_from=" + from, "zero_stage=1", "train_iters=1", "schedule.lr_warmup_iters=0"}), ranks);
    EXPECT_EQ(ended[0].code, Exit::done) << ended[0].error;
    return history(name).steps[0].loss;
  };
  const double of_older = first_loss("older", cat(source, "/", step_folder(4))), of_newer = first_loss("newer", newer);
  ASSERT_NE(of_older, of_newer);
  fs::rename(newer, aside);
  // Two empty broadcasts say that there is nothing to verify and nothing to resume; then rank 1 is delayed, and the
  // newer checkpoint appears.
  const auto late = [&](int rank) {
    return [&, rank, told = 0](const Tensor& x) mutable {
      if (rank != 1 || x.bytes() > 0 || ++told != 2) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      fs::rename(aside, newer);
    };
  };
  const double loss = first_loss("late", source, {.told = late});
  EXPECT_TRUE(fs::exists(newer));
  EXPECT_TRUE(loss == of_older || loss == of_newer) << loss << ": " << of_older << " or " << of_newer;
}

// Rank 0 hashes whole checkpoints and all ranks read one: the timeout of a step would end the run.
TEST_F(Decisions, RollbackIsExcludedFromTheStepTimeout) {
  std::array<int64_t, 2> step{};
  std::array<std::vector<Activity>, 2> rest;  // each rank's activities from the second bad step on
  const auto follow = [&](int rank, Activity activity, int64_t at, Asked&) {
    if (activity == Activity::step) step[size_t(rank)] = at;
    if (step[size_t(rank)] >= 6) rest[size_t(rank)].push_back(activity);
  };
  const auto break_steps = [&](int rank) {
    return [&, rank, left = 2](const Tensor& x) mutable {
      if (x.dtype != DType::f32 || x.numel() < 100 || step[size_t(rank)] < 5 || left == 0) return;
      *x.as<float>() = std::numeric_limits<float>::infinity();
      left = int(6 - step[size_t(rank)]);
    };
  };
  const std::vector<std::string> set = {"save_interval=4", "eval_interval=0", "loss_spikes.max_skipped_steps=2",
                                        "loss_spikes.rollback=true"};
  for (const Ended& e : run_all(of_ranks("back", set), {.doing = follow, .sums = break_steps}))
    EXPECT_EQ(e.code, Exit::done) << e.error;
  const auto back = events("back", EventKind::resume);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].step, 4);
  for (const auto& activities : rest) {
    ASSERT_GE(activities.size(), 4U);
    EXPECT_EQ(std::vector(activities.begin(), activities.begin() + 4),
              (std::vector{Activity::step, Activity::loading, Activity::saving, Activity::step}));
  }
}

// The save interval elapses on only one rank, and only once.
TEST_F(Decisions, RequestedSaveHappensOnce) {
  for (const bool ahead : {false, true})
    testing::patiently({0.6, 6, 30}, [&](double interval) {  // interval in which the steps before and after must finish
      const std::string name = cat("once", ahead, "-", interval);
      const auto waits = [&](int rank, Activity activity, int64_t step, Asked&) {
        if (rank == 1 && activity == Activity::step && step == 3)
          std::this_thread::sleep_for(std::chrono::duration<double>(interval + 0.1));
      };
      for (const Ended& e :
           run_all(of_ranks(name, {cat("checkpoint.interval_minutes=", interval / 60), "checkpoint.keep_latest_k=0"}),
                   {.ahead = ahead, .doing = waits}))
        EXPECT_EQ(e.code, Exit::done) << e.error;
      const std::vector<int64_t> saved = steps(name);
      const bool once = std::ranges::count(saved, ahead ? 4 : 3) == 1 || std::ranges::count(saved, ahead ? 3 : 2) == 1;
      return once && saved.size() < 5;  // otherwise every later step would save
    });
}

TEST_F(Decisions, TimeLimitEndsAllRanksAfterTheSameStep) {
  for (const bool ahead : {false, true}) {
    const std::string name = cat("ended", ahead);
    for (const Ended& e : run_all(of_ranks(name, {"exit_duration_in_mins=0.000001"}), {.ahead = ahead}))
      EXPECT_EQ(e.code, Exit::requeue) << e.error;
    EXPECT_EQ(steps(name), std::vector<int64_t>{ahead ? 2 : 1});
  }
}

// Steps that other ranks had launched before they knew made no update either.
TEST_F(Decisions, ReadErrorOnOneRankSavesTheLastCompleteStep) {
  ASSERT_EQ(run_all(of_ranks("whole", {"save_interval=1", "eval_interval=0"}), {})[0].code, Exit::done);
  const std::string path = dir_.path() + "/data.bin", text = read_file(path, 1 << 20);
  for (const bool ahead : {false, true})
    for (const int64_t at : kSanitized
                                ? std::vector<int64_t>{4}
                                : std::vector<int64_t>{2, 4, 6}) {  // the loader reads ahead: the last steps fail
      const std::string name = cat("failed", ahead, at);
      const auto own_file = [&](int) {
        fs::remove(path);
        write_file(path, text);
      };
      const auto truncate = [&](int rank, Activity activity, int64_t step, Asked&) {
        if (rank == 1 && activity == Activity::step && step == at)
          fs::resize_file(path, 100);  // only the last rank truncates the file
      };
      const std::vector<Ended> ended =
          run_all(of_ranks(name, {"eval_interval=0"}), {.ahead = ahead, .doing = truncate, .before = own_file});
      own_file(0);
      EXPECT_NE(ended[1].error.find("data.bin"), std::string::npos) << ended[1].error;
      EXPECT_EQ(ended[0].code, Exit::peer_lost) << ended[0].error;
      EXPECT_NE(ended[0].error.find("rank 1 failed"), std::string::npos) << ended[0].error;
      ASSERT_EQ(steps(name).size(), 1U);
      const int64_t saved = steps(name)[0];
      ASSERT_GE(saved, at - 1);
      EXPECT_EQ(history(name).steps.back().step, saved);
      for (const char* file :
           {"model-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors", "state.json"})
        EXPECT_EQ(bytes(name, saved, file), bytes("whole", saved, file)) << file << " of step " << saved;
    }
}

// Except in the first step, which begins after the start's messages, and the last, after which the ranks save.
TEST_F(Decisions, HostsExchangeNoMessagesInASteadyStep) {
  for (const bool ahead : {false, true})
    for (const Ended& e : run_all(of_ranks("", {"eval_interval=0"}), {.ahead = ahead})) {
      EXPECT_EQ(e.code, Exit::done) << e.error;
      EXPECT_EQ(e.quiet_steps, 7);
    }
}

TEST_F(Decisions, LostRequestIsDetected) {
  const auto loses = [](int) {
    return [](const Tensor& x) {
      if (has_requests(x)) std::fill_n(requests_in(x), kRequestSums, 0.);
    };
  };
  for (const bool ahead : {false, true})
    for (const Ended& e :
         run_all(of_ranks("", {"eval_interval=0"}), {.ahead = ahead, .doing = asks(1, 3), .sums = loses}))
      EXPECT_EQ(e.code, Exit::done) << "it stopped in spite of that";
}

TEST_F(Decisions, RequestSeenOneStepLateIsDetected) {
  const auto delays = [](int rank) {
    return [rank, before = std::vector<double>(kRequestSums)](const Tensor& x) mutable {
      if (rank == 1 && has_requests(x)) std::swap_ranges(before.begin(), before.end(), requests_in(x));
    };
  };
  for (const bool ahead : {false, true}) {
    const std::vector<Ended> ended =
        run_all(of_ranks("", {"eval_interval=0"}), {.ahead = ahead, .doing = asks(0, 3), .sums = delays});
    EXPECT_TRUE(ended[0].code == Exit::error || ended[1].code == Exit::error);
    EXPECT_NE((ended[0].error + ended[1].error).find(" calls "), std::string::npos) << ended[0].error;
  }
}

}  // namespace
}  // namespace athanor
