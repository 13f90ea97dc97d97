// Whole runs of ranks over NCCL: their decisions travel with the step scalars that the host collects late.
#include <algorithm>
#include <atomic>

#include "tests/cuda/train/nccl_rig.h"
#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

using testing::Asked;
using testing::Ended;
using testing::Nccl;
using testing::Observed;
using testing::QuietSteps;
using testing::Rank;

constexpr int kRanks = 2;

class NcclDecisions : public Nccl, protected RunFolder {
 protected:
  using Doing = std::function<void(int rank, Activity, int64_t step, Asked&)>;

  std::vector<Ended> run_all(const Config& c, const Doing& doing, const std::function<void()>& before = {}) {
    std::vector<Ended> ended(kRanks);
    std::vector<Asked> asked(kRanks);
    std::atomic<int64_t> said{0};  // messages of all ranks
    observe_ = [&](std::unique_ptr<Communicator> hosts) { return std::make_unique<Observed>(std::move(hosts), &said); };
    ::testing::internal::CaptureStdout();
    try {
      run(kRanks, [&](Rank& rank, Communicator& hosts) {
        const int me = hosts.rank();
        train(c, rank, hosts, said, ended[size_t(me)], asked[size_t(me)], doing, before);
      });
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): each rank has recorded its own error
    }
    ::testing::internal::GetCapturedStdout();
    return ended;
  }

 private:
  void train(const Config& c, Rank& rank, Communicator& hosts, std::atomic<int64_t>& said, Ended& ended, Asked& asked,
             const Doing& doing, const std::function<void()>& before) {
    const int me = hosts.rank();
    Observed control(hosts.split(0, me), &said);
    ProcessMesh mesh(rank.nccl->split(0, me), {.shards = kRanks});
    QuietSteps quiet;
    const TrainerOptions options{.stop = asked,
                                 .program = {.version = "test", .command = {}, .libraries = {}},
                                 .doing = [&](Activity activity, int64_t step) {
                                   quiet.doing(activity, said);
                                   if (doing) doing(me, activity, step, asked);
                                 }};
    try {
      std::unique_ptr<Trainer> trainer;
      for (int turn = 0; turn < kRanks; ++turn) {
        if (turn == me && before) before();
        if (turn == me)
          trainer = std::make_unique<Trainer>(c, Backend{*rank.cuda.device, *rank.cuda.ops, mesh, nullptr, &control},
                                              options);
        hosts.barrier();
      }
      ended.code = trainer->run();
      ended.quiet_steps = quiet.count();
      rank.quiet(hosts, board_);
    } catch (const Error& e) {
      ended.code = e.code(), ended.error = e.what();
      board_.tell(cat("rank ", me, " failed: ", e.what()));
      throw;
    }
  }
};

// The request is made in the fifth step; the sixth is launched before its result is read.
TEST_F(NcclDecisions, HostsExchangeNoMessagesInASteadyStep) {
  const auto ask = [](int rank, Activity activity, int64_t step, Asked& asked) {
    if (rank == 1 && activity == Activity::step && step == 5) asked.ask(SIGUSR1);
  };
  for (const Ended& e : run_all(config("r", {"eval_interval=0", "zero_stage=1"}), ask)) {
    EXPECT_EQ(e.code, Exit::requeue) << e.error;
    EXPECT_EQ(e.quiet_steps, 5) << "from the beginning of each step to that of the next";
  }
  EXPECT_EQ(steps("r"), std::vector<int64_t>{6});
}

TEST_F(NcclDecisions, ReadErrorOnOneRankSavesTheLastCompleteStep) {
  const std::vector<std::string> set = {"eval_interval=0", "zero_stage=1", "micro_batch_size=1"};
  auto every = set;
  every.push_back("save_interval=1");
  ASSERT_EQ(run_all(config("whole", every), {})[0].code, Exit::done);
  const std::string path = dir_.path() + "/data.bin", text = read_file(path, 1 << 20);
  const auto truncate = [&](int rank, Activity activity, int64_t step, Asked&) {
    if (rank == 1 && activity == Activity::step && step == 3)
      fs::resize_file(path, 100);  // only the last rank
                                   // truncates the file
  };
  const std::vector<Ended> ended = run_all(config("failed", set), truncate, [&] {
    fs::remove(path);
    write_file(path, text);
  });
  EXPECT_NE(ended[1].error.find("data.bin"), std::string::npos) << ended[1].error;
  EXPECT_EQ(ended[0].code, Exit::peer_lost) << ended[0].error;
  ASSERT_EQ(steps("failed").size(), 1U);
  const int64_t saved = steps("failed")[0];
  for (const char* file : {"model-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors", "state.json"})
    EXPECT_EQ(bytes("failed", saved, file), bytes("whole", saved, file)) << file << " of step " << saved;
}

}  // namespace
}  // namespace athanor
