// Checkpoints in memory: runs of four ranks on two machines, which have a folder each, that crash between two
// checkpoints on disk, and what is left of the folders afterwards.
#include "train/memory_checkpoints.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

TEST(DiskState, LeadsToItselfAndToTheSaveThatWasUnderWay) {
  const DiskState before{.serial = 4, .manifest = "a", .step = 40, .saving_step = 60};
  const auto leads_to = [&](DiskState now) { return before.leads_to(now); };
  EXPECT_TRUE(leads_to({.serial = 4, .manifest = "a", .step = 40}));
  EXPECT_TRUE(leads_to({.serial = 5, .manifest = "b", .step = 60}));
  EXPECT_FALSE(leads_to({.serial = 4, .manifest = "b", .step = 40})) << "another checkpoint of that number";
  EXPECT_FALSE(leads_to({.serial = 6, .manifest = "a", .step = 40})) << "the run went back to it";
  EXPECT_FALSE(leads_to({.serial = 6, .manifest = "b", .step = 60})) << "one more was saved since";
  EXPECT_FALSE(leads_to({.serial = 5, .manifest = "b", .step = 50})) << "another branch";
  EXPECT_FALSE(leads_to({})) << "all checkpoints were removed";
  EXPECT_FALSE(leads_to({.start = "b", .serial = 4, .manifest = "a", .step = 40})) << "the run began anew";
  EXPECT_TRUE(DiskState{}.leads_to({}));
  const DiskState unreadable{.serial = -2};
  EXPECT_FALSE(unreadable.leads_to(unreadable));
  EXPECT_TRUE(disk_state_from_json(to_json(before)).leads_to({.serial = 5, .manifest = "b", .step = 60}));
}

TEST(MemoryFolder, IsPrivateAndOfOneRun) {
  const std::string folder = memory_folder("", "runs/a");
  EXPECT_EQ(folder, memory_folder("", fs::absolute("runs").string() + "/b/../a"));
  EXPECT_NE(folder, memory_folder("", "other/a"));
  const std::string parent = parent_dir(folder);
  EXPECT_EQ(fs::status(parent).permissions(), fs::perms::owner_all);
  EXPECT_EQ(parent_dir(memory_folder("/some/where", "runs/a")), "/some/where");
}

class MemoryCheckpoint : public testing::TrainerRanks {
 protected:
  MemoryCheckpoint() {
    all_.own = [this](int rank, Config& c) { c.memory_folder = machine(rank / 2); };
  }

  std::string machine(int m) const { return cat(dir_.path(), "/memory", m); }
  // The folder of a run's checkpoints in a machine's memory.
  std::string held(int m, const std::string& name) const {
    return memory_folder(machine(m), cat(dir_.path(), "/", name));
  }
  std::string file(int m, const std::string& name, int64_t step, const std::string& file) const {
    return cat(held(m, name), "/", step_folder(step), "/", file);
  }
  Config of_ranks(const std::string& name) {
    return config(name, {"micro_batch_size=1", "zero_stage=2", "checkpoint.memory_interval=2", "save_interval=5"});
  }
  // Trains to step 7 of 8 and fails there, with a checkpoint of step 5 on disk and one of step 6 in memory.
  void crash(const std::string& name, int machines = 2) {
    testing::TrainerRanks::Ranks ranks = all_;
    ranks.doing = [](int rank, Activity now, int64_t step, testing::Asked&) {
      if (rank == 1 && now == Activity::step && step == 7) throw Error("killed by the test");
    };
    EXPECT_EQ(run_all(of_ranks(name), ranks)[1].error, "killed by the test");
    ASSERT_EQ(steps(name), std::vector<int64_t>{5});
    for (int m = 0; m < machines; ++m) ASSERT_EQ(list_checkpoints(held(m, name)).size(), 1U);
  }
  // Runs to the end, and returns the folder from which it continued.
  std::string resume(const std::string& name, const testing::TrainerRanks::Ranks& ranks) {
    for (const testing::Ended& e : run_all(of_ranks(name), ranks)) EXPECT_EQ(e.code, Exit::done) << e.error;
    const std::string text = events(name, EventKind::resume).back().text;
    return text.substr(5, text.find(';') - 5);
  }
  std::string in_memory(const std::string& name) { return cat(held(0, name), "/", step_folder(6)); }
  std::string on_disk(const std::string& name) { return cat(dir_.path(), "/", name, "/", step_folder(5)); }
  std::string weights(const std::string& name) {
    std::string all;
    for (const char* kind : {"model", "optimizer"})
      for (int part = 1; part <= 4; ++part) all += bytes(name, 8, cat(kind, "-0000", part, "-of-00004.safetensors"));
    return all;
  }
  void expect_like_whole(const std::string& name) {
    EXPECT_EQ(weights(name), weights("whole"));
    for (int m = 0; m < 2; ++m) EXPECT_FALSE(fs::exists(held(m, name))) << "the end of a run frees the memory";
  }

  testing::TrainerRanks::Ranks all_{.count = 4};
};

TEST_F(MemoryCheckpoint, ContinuesToTheSameBitsAfterACrashAndAfterTheLossOfAnyMachine) {
  for (const testing::Ended& e : run_all(of_ranks("whole"), all_)) ASSERT_EQ(e.code, Exit::done) << e.error;
  crash("r");
  EXPECT_EQ(resume("r", all_), in_memory("r"));
  expect_like_whole("r");
  for (int m = 0; m < 2; ++m) {
    const std::string name = cat("lost", m);
    crash(name);
    fs::remove_all(machine(m));
    EXPECT_EQ(resume(name, all_), in_memory(name));
    expect_like_whole(name);
  }
  crash("fewer");  // its checkpoint is whole for another number of ranks, too
  fs::remove_all(machine(1));
  testing::TrainerRanks::Ranks two = all_;
  two.count = 2;
  EXPECT_EQ(resume("fewer", two), in_memory("fewer"));
}

TEST_F(MemoryCheckpoint, IsOnTwoOfThreeMachines) {
  all_.count = 3;
  all_.own = [this](int rank, Config& c) { c.memory_folder = machine(rank), c.global_batch_size = 6; };
  const auto files_of = [&](int m) {  // numbers of the parts on a machine
    std::string numbers;
    for (int part = 1; part <= 3; ++part)
      if (fs::exists(file(m, "r", 6, cat("model-0000", part, "-of-00003.safetensors")))) numbers += cat(part);
    return numbers;
  };
  crash("r", 3);
  EXPECT_EQ(files_of(0) + " " + files_of(1) + " " + files_of(2), "13 12 23");
  fs::remove_all(machine(1));
  testing::TrainerRanks::Ranks ranks = all_;
  std::string held;
  ranks.doing = [&](int rank, Activity now, int64_t step, testing::Asked&) {
    if (rank == 0 && now == Activity::step && step == 7) held = cat(files_of(0), " ", files_of(1), " ", files_of(2));
  };
  EXPECT_EQ(resume("r", ranks), in_memory("r"));
  EXPECT_EQ(held, "13  23") << "copies of other machines are removed once they are read";
  crash("two", 3);
  for (int m = 0; m < 2; ++m) fs::remove_all(machine(m));
  EXPECT_EQ(resume("two", all_), on_disk("two"));
}

TEST_F(MemoryCheckpoint, IsNotUsedIfIncompleteDamagedOrOutdated) {
  for (const testing::Ended& e : run_all(of_ranks("whole"), all_)) ASSERT_EQ(e.code, Exit::done) << e.error;
  crash("incomplete");
  for (int m = 0; m < 2; ++m) fs::remove(file(m, "incomplete", 6, "model-00003-of-00004.safetensors"));
  EXPECT_EQ(resume("incomplete", all_), on_disk("incomplete"));
  expect_like_whole("incomplete");

  crash("damaged");
  const std::string damaged = file(1, "damaged", 6, "optimizer-00004-of-00004.safetensors");
  std::string content = read_file(damaged, 1 << 24);
  content.back() = char(content.back() ^ 1);
  write_file(damaged, content);
  EXPECT_EQ(resume("damaged", all_), on_disk("damaged"));
  expect_like_whole("damaged");

  crash("outdated");
  {
    RunLock lock(dir_.path() + "/outdated");
    make_newest(lock, list_checkpoints(lock.root()).back());
  }
  EXPECT_EQ(resume("outdated", all_), on_disk("outdated"));
  expect_like_whole("outdated");

  crash("removed");
  fs::remove_all(dir_.path() + "/removed");
  for (const testing::Ended& e : run_all(of_ranks("removed"), all_)) EXPECT_EQ(e.code, Exit::done) << e.error;
  EXPECT_TRUE(events("removed", EventKind::resume).empty()) << "a run whose folder was removed begins anew";
  expect_like_whole("removed");
}

TEST_F(MemoryCheckpoint, IsNotUsedOnceTheRunContinuedWithoutIt) {
  crash("r");
  for (int m = 0; m < 2; ++m) fs::rename(machine(m), cat(dir_.path(), "/away", m));
  testing::TrainerRanks::Ranks ranks = all_;
  ranks.doing = [](int rank, Activity now, int64_t, testing::Asked&) {
    if (rank == 1 && now == Activity::step) throw Error("killed by the test");
  };
  EXPECT_EQ(run_all(of_ranks("r"), ranks)[1].error, "killed by the test");
  for (int m = 0; m < 2; ++m) {
    fs::remove_all(machine(m));
    fs::rename(cat(dir_.path(), "/away", m), machine(m));
  }
  EXPECT_EQ(resume("r", all_), on_disk("r"));
}

TEST_F(MemoryCheckpoint, DoesNotStopARunThatCannotWriteIt) {
  const Config c = of_ranks("r");
  all_.doing = [this](int rank, Activity now, int64_t step, testing::Asked&) {
    if (rank != 3 || now != Activity::step || step != 3) return;
    fs::remove_all(held(1, "r"));
    std::ofstream(held(1, "r")) << "a file in the place of the folder";
  };
  for (const testing::Ended& e : run_all(c, all_)) EXPECT_EQ(e.code, Exit::done) << e.error;
  const std::vector<EventRecord> warnings = events("r", EventKind::warn);
  ASSERT_EQ(warnings.size(), 2U);  // steps 4 and 6
  EXPECT_NE(warnings[0].text.find("the checkpoint in memory was not written, training continues: rank 2"),
            std::string::npos)
      << warnings[0].text;
}

TEST_F(MemoryCheckpoint, IsRefusedIfItDoesNotFit) {
  MemoryCheckpoints memory(machine(0), nullptr);
  try {
    memory.require_room(int64_t{1} << 50);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("expected 2.00 PiB in "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace athanor
