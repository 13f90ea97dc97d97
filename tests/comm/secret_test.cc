// The secret of a job: where it comes from, who may read it, and that no other job's secret is used.
#include "comm/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/error.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

class Secret : public ::testing::Test {
 protected:
  std::string file(const std::string& text, mode_t mode) {
    const std::string path = folder_ / "secret";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  const testing::TempDir folder_;
  RankInfo here_{.rank = 0, .world = 2, .host = "127.0.0.1", .port = 29500, .job = "7.0"};
};

std::string error_of(const RankInfo& ranks, const EnvironmentVariables& environment) {
  try {
    (void)JobSecret(ranks, environment).read();
    return "no error";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST_F(Secret, EnvironmentTakesPrecedence) {
  EXPECT_EQ(JobSecret(here_, {{"ATHANOR_SECRET", "0123456789abcdef"}}).read().secret, "0123456789abcdef");
  EXPECT_NE(error_of(here_, {{"ATHANOR_SECRET", "short"}}).find("can be guessed"), std::string::npos);
}

TEST_F(Secret, FileMustBePrivate) {
  const auto environment = [&](const std::string& path) { return EnvironmentVariables{{"ATHANOR_SECRET_FILE", path}}; };
  EXPECT_EQ(JobSecret(here_, environment(file("0123456789abcdef\n", 0600))).read().secret, "0123456789abcdef");
  EXPECT_NE(error_of(here_, environment(file("0123456789abcdef", 0640))).find("others may read"), std::string::npos);
  EXPECT_NE(error_of(here_, environment(folder_ / "none")).find("/none"), std::string::npos);
  EXPECT_NE(error_of(here_, environment(file("", 0600))).find("can be guessed"), std::string::npos);
}

TEST_F(Secret, RankZeroCreatesItOnOneMachine) {
  const EnvironmentVariables environment = {{"XDG_RUNTIME_DIR", folder_.path()}};
  RankInfo other = here_;
  other.rank = 1;
  std::string first;
  {
    JobSecret zero(here_, environment);
    first = zero.read().secret;
    EXPECT_GE(first.size(), 32u);
    EXPECT_EQ(JobSecret(other, environment).read().secret, "") << "before rank 0 listens there is none";
    zero.publish(29507);
    const JobKey key = JobSecret(other, environment).read();
    EXPECT_EQ(key.secret, first);
    EXPECT_EQ(key.port, 29507) << "where rank 0 really listens";
    RankInfo stranger = other;
    stranger.job = "8.0";
    EXPECT_EQ(JobSecret(stranger, environment).read().secret, "");
  }
  EXPECT_EQ(JobSecret(other, environment).read().secret, "");  // gone with rank 0
  EXPECT_NE(JobSecret(here_, environment).read().secret, first);
}

TEST_F(Secret, EarlierJobDoesNotRemoveTheFileOfALaterOne) {
  const EnvironmentVariables environment = {{"XDG_RUNTIME_DIR", folder_.path()}};
  JobSecret later(here_, environment);
  {
    JobSecret earlier(here_, environment);
    earlier.publish(29500);
    later.publish(29501);
  }
  RankInfo other = here_;
  other.rank = 1;
  EXPECT_EQ(JobSecret(other, environment).read().port, 29501);
}

// Another user who creates a folder or a link of this name first cannot keep a job from starting.
TEST_F(Secret, FolderAccessibleToOthersIsSkipped) {
  const EnvironmentVariables environment = {{"XDG_RUNTIME_DIR", folder_.path()}};
  std::filesystem::create_directory(folder_ / "athanor");
  chmod((folder_ / "athanor").c_str(), 0777);
  std::filesystem::create_directory_symlink(folder_.path(), folder_ / "athanor-1");
  RankInfo other = here_;
  other.rank = 1;
  JobSecret zero(here_, environment);
  zero.publish(29500);
  EXPECT_EQ(JobSecret(other, environment).read().secret, zero.read().secret);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "athanor"));
  EXPECT_FALSE(std::filesystem::is_empty(folder_ / "athanor-2"));
}

TEST_F(Secret, SeveralMachinesWithoutASaveFolderNeedAUserSecret) {
  RankInfo far = here_;
  far.host = "node-1";
  EXPECT_NE(error_of(far, {{"SLURM_JOB_ID", "7"}}).find("ATHANOR_SECRET_FILE"), std::string::npos);
}

class SaveFolderSecret : public Secret {
 protected:
  std::string only_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(save_)) return entry.path();
    return "";
  }
  const std::string save_ = folder_ / "runs/one";  // rank 0 makes it
  RankInfo zero_{.rank = 0, .world = 2, .host = "node-1", .port = 29500, .job = "7.0"},
      other_{.rank = 1, .world = 2, .host = "node-1", .port = 29500, .job = "7.0"};
};

TEST_F(SaveFolderSecret, RankZeroSharesItUntilAllRanksHaveConnected) {
  JobSecret other(other_, {}, save_);
  EXPECT_EQ(other.read().secret, "") << "the folder is not there yet";
  EXPECT_TRUE(other.awaited_file().starts_with(save_));
  JobSecret zero(zero_, {}, save_);
  EXPECT_EQ(other.read().secret, "");
  zero.publish(29501);
  EXPECT_EQ(other.read().secret, zero.read().secret);
  EXPECT_EQ(other.read().port, 29501);
  struct stat s {};
  ASSERT_EQ(stat(only_file().c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  zero.remove();
  EXPECT_EQ(only_file(), "");
  EXPECT_EQ(other.read().secret, "");
}

TEST_F(SaveFolderSecret, FileReadableByOthersIsRefused) {
  JobSecret zero(zero_, {}, save_), other(other_, {}, save_);
  zero.publish(29500);
  chmod(only_file().c_str(), 0644);
  try {
    (void)other.read();
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("others may read"), std::string::npos) << e.what();
  }
}

TEST_F(SaveFolderSecret, UserSecretTakesPrecedence) {
  EXPECT_EQ(JobSecret(zero_, {{"ATHANOR_SECRET", "0123456789abcdef"}}, save_).read().secret, "0123456789abcdef");
  EXPECT_FALSE(std::filesystem::exists(save_));
}

}  // namespace
}  // namespace athanor
