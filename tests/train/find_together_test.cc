// Ranks that search for a checkpoint together find the same one as a single rank, and each hashes a part of the files.
#include "train/find_together.h"

#include <functional>
#include <utility>

#include "base/file.h"
#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"
#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

constexpr int kRanks = 3;

class FindTogether : public ::testing::Test {
 protected:
  FindTogether() {
    ranks::run_part({.shards = kRanks}, "", 0, 1, dir_.path());
    folder_ = cat(dir_.path(), "/", step_folder(1));
    files_ = read_manifest(folder_).files;
  }
  // Flips a bit, or flips it back; appends a byte to an empty file.
  void flip(const ManifestFile& file) const {
    const std::string path = cat(folder_, "/", file.name);
    std::string text = read_file(path, 1 << 24);
    if (file.bytes > 0) text[size_t(file.bytes) / 2] ^= 4;
    write_file(path, file.bytes > 0 ? text : text.empty() ? "x" : "");
  }
  testing::TempDir dir_;
  std::string folder_;
  std::vector<ManifestFile> files_;
};

TEST_F(FindTogether, ResultMatchesVerificationByOneRank) {
  ASSERT_GT(files_.size(), size_t(2 * kRanks));
  for (size_t damaged = 0; damaged <= files_.size(); ++damaged) {
    for (size_t i = damaged; i < files_.size(); i += 2) flip(files_[i]);
    const Verification want = verify_checksums(folder_);
    EXPECT_EQ(want.ok, damaged == files_.size());
    run_ranks(kRanks, [&](std::unique_ptr<Communicator> ranks) {
      const std::string found = find_together(ranks.get(), [&](const Verify& verify) {
        EXPECT_EQ(ranks->rank(), 0);
        const Verification got = verify(folder_);
        EXPECT_EQ(got.ok, want.ok);
        EXPECT_EQ(got.problem, want.problem);
        EXPECT_EQ(got.unreadable, want.unreadable);
        EXPECT_EQ(verify(dir_.path()).ok, false) << "there is no manifest";
        return cat("found ", damaged);
      });
      EXPECT_EQ(found, cat("found ", damaged));
    });
    for (size_t i = damaged; i < files_.size(); i += 2) flip(files_[i]);
  }
  EXPECT_EQ(find_together(nullptr, [&](const Verify& verify) { return verify(folder_).ok ? "whole" : ""; }), "whole");
}

// Calls `act` on rank 0 once all ranks have hashed their files.
class Afterwards final : public testing::Observed {
 public:
  Afterwards(std::shared_ptr<Communicator> inner, std::function<void()> act)
      : Observed(std::move(inner), nullptr), act_(std::move(act)) {}
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    Observed::all_gather(full, shard, stream);
    if (act_ && rank() == 0) std::exchange(act_, {})();
  }

 private:
  std::function<void()> act_;
};

// File number 1 is hashed by rank 1: a file that only this rank cannot read is not treated as damaged.
TEST_F(FindTogether, UnreadableFileOnOneRankIsAnError) {
  flip(files_[1]);
  run_ranks(kRanks, [&](std::unique_ptr<Communicator> world) {
    Afterwards ranks(std::move(world), [&] { flip(files_[1]); });
    find_together(&ranks, [&](const Verify& verify) {
      const Verification v = verify(folder_);
      EXPECT_FALSE(v.ok);
      EXPECT_TRUE(v.unreadable);
      EXPECT_NE(v.problem.find("rank 1 cannot read what rank 0 can: " + files_[1].name), std::string::npos)
          << v.problem;
      EXPECT_NE(v.problem.find("as read on " + host_name()), std::string::npos) << v.problem;
      return "";
    });
  });
}

}  // namespace
}  // namespace athanor
