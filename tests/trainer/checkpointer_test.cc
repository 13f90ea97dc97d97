// Background and sharded saves: the saved state is that at begin(), saved completely or not at all.
#include "train/checkpointer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <semaphore>

#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "comm/threads.h"
#include "cpu/make_cpu.h"
#include "tests/comm/forwarding.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace {
std::atomic<int64_t> bytes_free{-1};  // free bytes that statvfs() reports; -1: those of the disk
}

// Linked in the place of libc's function; the name in C++ differs from that of libc's struct.
extern "C" int fake_statvfs(const char* path, struct statvfs* fs) noexcept __asm__("statvfs");
extern "C" int fake_statvfs(const char* path, struct statvfs* fs) noexcept {
  const int fd = ::open(path, O_PATH | O_CLOEXEC);
  const int result = ::fstatvfs(fd, fs);
  ::close(fd);
  if (bytes_free >= 0) fs->f_frsize = 1, fs->f_bavail = fsblkcnt_t(bytes_free);
  return result;
}

namespace athanor {
namespace {

ModelConfig tiny() {
  return testing::tiny_model(ModelType::llama,
                             {.vocab = 40, .hidden = 16, .heads = 4, .intermediate = 24, .positions = 8});
}

EngineOptions options(int ranks, int stage) {
  EngineOptions o;
  o.recipe = make_recipe("bf16", DType::f32);
  o.seq_length = 7;
  o.micro_batch_size = 12 / ranks;
  o.global_batch_size = 12;
  o.zero_stage = stage;
  o.save_block_bytes = 1000;  // tensors are several blocks
  o.seed = 3;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-2, .min_lr = 1e-2};
  return o;
}

void step(Engine& engine) {
  std::vector<int32_t> tokens(size_t(engine.options().micro_batch_size * 7), 3), targets(tokens.size(), 5);
  PhaseClock clock;
  engine.micro_batch(tokens, targets, clock);
  engine.finish_step();
}

// Body for each rank of a run with an engine and a save folder.
class CheckpointerTest : public ::testing::Test {
 protected:
  using Body = std::function<void(Engine&, Checkpointer&)>;
  void run(int ranks, int stage, bool background, const std::string& save, const Body& body, int64_t keep = 0) {
    run_ranks(ranks, [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), {.shards = ranks});
      Engine engine(tiny(), options(ranks, stage), {*cpu.device, *cpu.ops, mesh});
      engine.commit();
      engine.init_weights();
      std::optional<RunLock> lock;
      if (engine.rank() == 0) lock.emplace(root(save));
      mesh.world().barrier();
      Checkpointer saves(engine, *cpu.device,
                         {.root = root(save),
                          .lock = lock ? &*lock : nullptr,
                          .control = &mesh.world(),
                          .background = background,
                          .keep_latest = keep});
      body(engine, saves);
    });
  }
  std::string root(const std::string& save) const { return dir_.path() + "/" + save; }
  Manifest manifest(const std::string& save, int64_t step) const {
    const std::string folder = root(save) + "/" + step_folder(step);
    const Verification v = verify_checkpoint(folder, Depth::checksums);
    EXPECT_TRUE(v.ok) << v.problem;
    return v.manifest;
  }
  std::map<std::string, std::string> sums(const std::string& save, int64_t step) const {
    std::map<std::string, std::string> all;
    for (const ManifestTensor& t : manifest(save, step).tensors) all[t.name] = t.xxh3;
    return all;
  }
  testing::TempDir dir_;
};

RunState at(int64_t step) { return {.step = step, .micro_batch_size = 1}; }

TEST_F(CheckpointerTest, BackgroundAndShardedSavesHoldTheStateAtBegin) {
  run(1, 0, false, "plain", [](Engine& engine, Checkpointer& saves) {
    step(engine);
    saves.begin(at(1), "", {}, {});
    saves.finish();
  });
  for (const auto& [ranks, stage] : {std::pair{1, 0}, {3, 0}, {2, 1}, {3, 3}, {12, 2}})
    for (const bool background : {false, true}) {
      const std::string save = cat(ranks, "-", stage, background ? "b" : "");
      const bool same_sums = ranks == 1 || stage == 0;
      run(ranks, stage, background, save, [&](Engine& engine, Checkpointer& saves) {
        if (same_sums) step(engine);  // other ranks round other sums: there the initial weights do
        saves.begin(at(1), "", {}, {});
        if (background) step(engine);  // the save must not contain this later step
        saves.finish();
      });
      ASSERT_EQ(manifest(save, 1).tensors.size(), manifest("plain", 1).tensors.size()) << save;
      if (ranks == 1) {
        EXPECT_EQ(sums("plain", 1), sums(save, 1)) << save;
      }
    }
  EXPECT_EQ(sums("2-1", 1), sums("3-3b", 1)) << "initial weights, whoever writes them";
}

// Tensors are not split: on many ranks the largest one dominates the memory of its writer.
TEST_F(CheckpointerTest, ReservedMemoryMatchesTheLargestWriter) {
  for (const int ranks : {2, 12}) {
    const std::string save = cat("reserved", ranks);
    size_t reserved = 0;
    run(ranks, 0, true, save, [&](Engine& engine, Checkpointer& saves) {
      saves.begin(at(1), "", {}, {});
      saves.finish();
      if (engine.rank() == 0) reserved = snapshot_bytes(engine.model().params(), ranks);
    });
    std::map<std::string, size_t> written;  // by shard number
    size_t all = 0;
    for (const ManifestTensor& t : manifest(save, 1).tensors) {
      const size_t bytes = size_t(t.piece_shape().numel()) * size_of(t.dtype);
      written[t.file.substr(t.file.find('-'))] += bytes, all += bytes;
    }
    size_t most = 0;
    for (const auto& [part, bytes] : written) most = std::max(most, bytes);
    EXPECT_EQ(reserved, most) << ranks;
    if (ranks == 12) {
      EXPECT_GT(reserved, 3 * all / size_t(2 * ranks)) << "the mean is far from it";
    }
  }
}

TEST_F(CheckpointerTest, EachSaveIsReportedOnceWithItsTimes) {
  run(2, 1, true, "run", [&](Engine& engine, Checkpointer& saves) {
    EXPECT_FALSE(saves.take_saved());
    saves.begin(at(1), "first", {}, {});
    EXPECT_TRUE(saves.writing());
    while (!saves.part_is_written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    saves.collect();
    EXPECT_FALSE(saves.writing());
    saves.begin(at(2), "second", {}, {});  // finishes the first
    auto saved = saves.take_saved();
    EXPECT_EQ(saved.has_value(), engine.rank() == 0);
    saves.finish();
    if (engine.rank() != 0) return;
    EXPECT_EQ(saved->why, "first");
    EXPECT_EQ(saved->folder, root("run") + "/" + step_folder(1));
    EXPECT_GT(saved->stall_seconds, 0);
    EXPECT_GE(saved->seconds, 0);
    saved = saves.take_saved();
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->step, 2);
    EXPECT_FALSE(saves.take_saved());
  });
}

TEST_F(CheckpointerTest, FailedShardKeepsThePreviousCheckpoint) {
  for (const bool background : {false, true}) {
    const std::string save = background ? "b" : "f";
    const auto body = [&](Engine& engine, Checkpointer& saves) {
      saves.begin(at(1), "", {}, {});
      saves.finish();
      CheckpointOptions options;
      if (engine.rank() == 1)
        options.at_point = [](std::string_view point) {
          if (point == "file_written") throw Error("the disk is full");
        };
      saves.begin(at(2), "", {}, std::move(options));
      saves.finish();
      const auto failed = saves.take_failed();
      ASSERT_TRUE(failed) << "all ranks know";
      EXPECT_EQ(failed->why, cat("rank 1 (", host_name(), "): the disk is full"));
      EXPECT_EQ(failed->step, 2);
      EXPECT_EQ(failed->here, engine.rank() == 1);
      EXPECT_FALSE(saves.take_failed());
      if (engine.rank() != 0) return;
      EXPECT_EQ(saves.take_saved()->step, 1);
      EXPECT_FALSE(saves.take_saved());
    };
    run(3, 2, background, save, body);
    EXPECT_EQ(list_checkpoints(root(save)).size(), 1u);
    manifest(save, 1);
    EXPECT_FALSE(std::filesystem::exists(root(save) + "/" + tmp_folder(2)));
  }
}

// Only rank 0 commits; all learn of it in finish(), and the next save is a save like any other.
TEST_F(CheckpointerTest, FailedCommitIsKnownToAllRanksAndTheNextSaveSucceeds) {
  for (const bool background : {false, true}) {
    const std::string save = background ? "b" : "f";
    run(2, 1, background, save, [&](Engine& engine, Checkpointer& saves) {
      CheckpointOptions options;
      if (engine.rank() == 0)
        options.at_point = [](std::string_view point) {
          if (point == "manifest_written") throw Error("no room for the manifest");
        };
      saves.begin(at(1), "", {}, std::move(options));
      saves.finish();
      const auto failed = saves.take_failed();
      ASSERT_TRUE(failed);
      EXPECT_EQ(failed->why, cat("rank 0 (", host_name(), "): no room for the manifest"));
      saves.begin(at(1), "", {}, {});
      saves.finish();
      EXPECT_FALSE(saves.take_failed());
      if (engine.rank() == 0) {
        EXPECT_GT(saves.take_saved()->bytes, 0);
      }
    });
    manifest(save, 1);
  }
}

// A rank that has no data for a step takes part in it, and no rank makes an update.
TEST_F(CheckpointerTest, InvalidStepChangesNoWeight) {
  for (const int64_t leaves : {0, 2})
    run_ranks(2, [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), {.shards = 2});
      EngineOptions o = options(2, 1);
      o.logical_shards = leaves;
      Engine engine(tiny(), o, {*cpu.device, *cpu.ops, mesh});
      engine.commit();
      engine.init_weights();
      std::vector<int32_t> tokens(size_t(6 * 7), 3), targets(tokens.size(), engine.rank() == 0 ? 5 : -1);
      PhaseClock clock;
      engine.micro_batch(tokens, targets, clock);
      if (engine.rank() == 1) engine.poison_step();
      const StepState state = engine.finish_step();
      EXPECT_EQ(state.skip, 1);
      EXPECT_EQ(state.updates, 0);
    });
}

// The first exchange of tensor parts detects the lost rank.
class LosesARank final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<LosesARank>(inner_->split(color, key));
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    if (!std::exchange(lost_, true)) throw Error("rank 7 is lost", Exit::peer_lost);
    inner_->all_to_all(out, in, stream);
  }

 private:
  bool lost_ = false;
};

// The remaining ranks abort without a further collective, which would hang: others may not take part in it.
TEST_F(CheckpointerTest, LostRankEndsTheSave) {
  for (const bool background : {false, true})
    run_ranks(2, [&](std::unique_ptr<Communicator> threads) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::make_unique<LosesARank>(std::move(threads)), {.shards = 2});
      Engine engine(tiny(), options(2, 1), {*cpu.device, *cpu.ops, mesh});
      engine.commit();
      engine.init_weights();
      std::optional<RunLock> lock;
      if (engine.rank() == 0) lock.emplace(root(cat("lost-", background)));
      Checkpointer saves(engine, *cpu.device,
                         {.root = root(cat("lost-", background)),
                          .lock = lock ? &*lock : nullptr,
                          .control = &mesh.world(),
                          .background = background});
      try {
        saves.begin(at(1), "", {}, {});
        saves.finish();
        ADD_FAILURE() << "saved";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::peer_lost) << e.what();
        EXPECT_STREQ(e.what(), "rank 7 is lost");
      }
    });
}

TEST_F(CheckpointerTest, EndingRunAbortsABackgroundSave) {
  std::counting_semaphore<> written{0};
  EXPECT_THROW(run(1, 0, true, "run",
                   [&](Engine&, Checkpointer& saves) {
                     CheckpointOptions options;
                     options.at_point = [&](std::string_view point) {
                       if (point == "tensor_written") written.release();
                     };
                     saves.begin(at(1), "", {}, std::move(options));
                     written.acquire();
                     throw Error("something else failed");
                   }),
               Error);
  EXPECT_TRUE(list_checkpoints(root("run")).empty());
  EXPECT_FALSE(std::filesystem::exists(root("run") + "/" + tmp_folder(1)));
}

TEST_F(CheckpointerTest, OldCheckpointsAreDeletedOnceTheNewOneIsDurable) {
  run(
      2, 1, true, "run",
      [&](Engine&, Checkpointer& saves) {
        for (int64_t step = 1; step <= 4; ++step) saves.begin(at(step), "", {}, {});
        saves.finish();
      },
      2);
  std::vector<int64_t> steps;
  for (const CheckpointInfo& c : list_checkpoints(root("run"))) steps.push_back(c.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 4}));
}

TEST_F(CheckpointerTest, OldCheckpointsAreDeletedFirstIfTheNewOneDoesNotFit) {
  using Steps = std::vector<int64_t>;
  struct Case {
    int64_t keep, free;
    Steps while_writing;
  };
  const std::vector<Case> cases = {{.keep = 3, .free = -1, .while_writing = {1, 2, 3, 4}},
                                   {.keep = 3, .free = 0, .while_writing = {3, 4}},
                                   {.keep = 1, .free = 0, .while_writing = {4}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string save = cat("run", i);
    const auto steps = [&] {
      Steps all;
      for (const CheckpointInfo& c : list_checkpoints(root(save))) all.push_back(c.step);
      return all;
    };
    const auto write = [](Checkpointer& saves, int64_t step, CheckpointOptions options) {
      saves.begin(at(step), "", {}, std::move(options));
      saves.finish();
      EXPECT_FALSE(saves.take_failed());
    };
    run(1, 0, false, save, [&](Engine&, Checkpointer& saves) {
      for (int64_t step = 1; step <= 4; ++step) write(saves, step, {});
    });
    run(
        1, 0, false, save,
        [&](Engine&, Checkpointer& saves) {
          Steps seen;
          bytes_free = cases[i].free;
          write(saves, 5, {.at_point = [&](std::string_view point) {
                  if (point == "begin") seen = steps();
                }});
          bytes_free = -1;
          EXPECT_EQ(seen, cases[i].while_writing);
        },
        cases[i].keep);
  }
}

// A disk with just too little room for the last checkpoint's size cannot hold another one of that size.
TEST_F(CheckpointerTest, OldCheckpointsMakeRoomForAllFilesOfTheNewOne) {
  SaveExtras extras;
  extras.adapter = std::string(size_t{1} << 20, ' ');
  int64_t size = 0;
  run(1, 0, false, "run", [&](Engine&, Checkpointer& saves) {
    for (const int64_t step : {1, 2}) {
      saves.begin(at(step), "", extras, {});
      saves.finish();
    }
    for (const auto& file : std::filesystem::directory_iterator(root("run") + "/" + step_folder(2)))
      size += int64_t(file.file_size());
  });
  run(
      1, 0, false, "run",
      [&](Engine&, Checkpointer& saves) {
        size_t while_writing = 0;
        bytes_free = size - 1;
        saves.begin(at(3), "", extras, {.at_point = [&](std::string_view point) {
                      if (point == "begin") while_writing = list_checkpoints(root("run")).size();
                    }});
        saves.finish();
        bytes_free = -1;
        EXPECT_EQ(while_writing, 1u) << size;
      },
      2);
}

}  // namespace
}  // namespace athanor
