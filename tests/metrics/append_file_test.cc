// Whole records or nothing, also when the space runs out in the middle of one.
#include "metrics/append_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/files.h"
#include "tests/metrics/capture.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;

struct AppendFileTest : ::testing::Test {
  TempDir dir;
};

TEST_F(AppendFileTest, RecordThatDoesNotFitIsNotWrittenPartially) {
  AppendFile file(dir / "log");
  EXPECT_TRUE(file.append("first\n"));
  std::string log;
  {
    // The capture file of standard error is under the same limit: written from inside, only read outside.
    const FileSizeLimit limit(4096);
    log = stderr_of([&] {
      EXPECT_FALSE(file.append(std::string(8000, 'x') + "\n"));
      EXPECT_EQ(read_bytes(dir / "log"), "first\n");
      EXPECT_FALSE(file.append(std::string(8000, 'y') + "\n"));
      EXPECT_TRUE(file.append("small\n")) << "what fits is written";
    });
  }
  EXPECT_EQ(count_of(log, "cannot be written: File too large"), 1) << log;
  EXPECT_TRUE(file.append(std::string(8000, 'z') + "\n")) << "space is back";
  EXPECT_EQ(read_bytes(dir / "log"), "first\nsmall\n" + std::string(8000, 'z') + "\n");
}

TEST_F(AppendFileTest, SizeTruncatesTheFile) {
  write_bytes(dir / "log", "one\ntorn");
  EXPECT_TRUE(AppendFile(dir / "log", {.size = 4}).append("two\n"));
  EXPECT_EQ(read_bytes(dir / "log"), "one\ntwo\n");
}

TEST_F(AppendFileTest, PlantedLinkIsNotFollowed) {
  write_bytes(dir / "victim", "precious");
  std::filesystem::create_symlink(dir / "victim", dir / "log");
  std::filesystem::create_symlink(dir / "", dir / "folder");
  const std::string log = stderr_of([&] {
    EXPECT_FALSE(AppendFile(dir / "log").append("text\n"));
    EXPECT_FALSE(AppendFile(dir / "", "folder/other", {}).append("text\n"));
  });
  EXPECT_EQ(count_of(log, "symbolic link"), 2) << log;
  EXPECT_EQ(read_bytes(dir / "victim"), "precious");
  EXPECT_FALSE(std::filesystem::exists(dir / "other"));
}

TEST_F(AppendFileTest, KeepsTheFileWithoutASize) {
  write_bytes(dir / "log", "one\n");
  EXPECT_TRUE(AppendFile(dir / "log").append("two\n"));
  EXPECT_EQ(read_bytes(dir / "log"), "one\ntwo\n");
}

TEST_F(AppendFileTest, IsRecreatedWhenDeletedOrRenamed) {
  AppendFile file(dir / "run/log", {.head = "head\n"});
  EXPECT_TRUE(file.append("one\n"));
  const std::string log = stderr_of([&] {
    std::filesystem::remove_all(dir / "run");
    EXPECT_TRUE(file.append("two\n"));
    EXPECT_TRUE(file.append("three\n"));
    EXPECT_EQ(read_bytes(dir / "run/log"), "head\ntwo\nthree\n");
    std::filesystem::rename(dir / "run/log", dir / "run/log.1");
    write_bytes(dir / "run/log", "of another program\n");
    EXPECT_TRUE(file.append("four\n"));
  });
  EXPECT_EQ(read_bytes(dir / "run/log"), "of another program\nfour\n");
  EXPECT_EQ(read_bytes(dir / "run/log.1"), "head\ntwo\nthree\n");
  EXPECT_EQ(count_of(log, "was deleted or renamed"), 2) << log;
}

TEST_F(AppendFileTest, RetriesRecreationAndWarnsOnce) {
  AppendFile file(dir / "run/log");
  std::filesystem::remove_all(dir / "run");
  write_bytes(dir / "run", "in the way");
  const std::string log = stderr_of([&] {
    EXPECT_FALSE(file.append("one\n"));
    EXPECT_FALSE(file.append("two\n"));
    std::filesystem::remove(dir / "run");
    EXPECT_TRUE(file.append("three\n"));
  });
  EXPECT_EQ(read_bytes(dir / "run/log"), "three\n");
  EXPECT_EQ(count_of(log, "cannot be opened"), 1) << log;
}

TEST_F(AppendFileTest, IsNotRecreatedWithoutAHeader) {
  AppendFile file(dir / "log", {.head = std::nullopt});
  std::filesystem::remove(dir / "log");
  const std::string log = stderr_of([&] { EXPECT_FALSE(file.append("one\n")); });
  EXPECT_FALSE(std::filesystem::exists(dir / "log"));
  EXPECT_EQ(count_of(log, "further records are lost"), 1) << log;
}

}  // namespace
}  // namespace athanor
