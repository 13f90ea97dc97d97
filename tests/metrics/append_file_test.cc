// Whole records or nothing, also when the space runs out in the middle of one.
#include "metrics/append_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/metrics/capture.h"
#include "tests/metrics/file_size_limit.h"
#include "tests/metrics/temp_dir.h"

namespace athanor {
namespace {

TEST(AppendFile, RecordThatDoesNotFitIsNotWrittenPartially) {
  const TempDir dir;
  AppendFile file(dir / "log");
  EXPECT_TRUE(file.append("first\n"));
  std::string log;
  {
    // The capture file of standard error is under the same limit: written from inside, only read outside.
    const FileSizeLimit limit(4096);
    log = stderr_of([&] {
      EXPECT_FALSE(file.append(std::string(8000, 'x') + "\n"));
      EXPECT_EQ(contents(dir / "log"), "first\n");
      EXPECT_FALSE(file.append(std::string(8000, 'y') + "\n"));
      EXPECT_TRUE(file.append("small\n")) << "what fits is written";
    });
  }
  EXPECT_EQ(count_of(log, "cannot be written: File too large"), 1) << log;
  EXPECT_TRUE(file.append(std::string(8000, 'z') + "\n")) << "space is back";
  EXPECT_EQ(contents(dir / "log"), "first\nsmall\n" + std::string(8000, 'z') + "\n");
}

TEST(AppendFile, SizeTruncatesTheFile) {
  const TempDir dir;
  put(dir / "log", "one\ntorn");
  EXPECT_TRUE(AppendFile(dir / "log", {.size = 4}).append("two\n"));
  EXPECT_EQ(contents(dir / "log"), "one\ntwo\n");
}

TEST(AppendFile, PlantedLinkIsNotFollowed) {
  const TempDir dir;
  put(dir / "victim", "precious");
  std::filesystem::create_symlink(dir / "victim", dir / "log");
  std::filesystem::create_symlink(dir / "", dir / "folder");
  const std::string log = stderr_of([&] {
    EXPECT_FALSE(AppendFile(dir / "log").append("text\n"));
    EXPECT_FALSE(AppendFile(dir / "", "folder/other", {}).append("text\n"));
  });
  EXPECT_EQ(count_of(log, "symbolic link"), 2) << log;
  EXPECT_EQ(contents(dir / "victim"), "precious");
  EXPECT_FALSE(std::filesystem::exists(dir / "other"));
}

TEST(AppendFile, KeepsTheFileWithoutASize) {
  const TempDir dir;
  put(dir / "log", "one\n");
  EXPECT_TRUE(AppendFile(dir / "log").append("two\n"));
  EXPECT_EQ(contents(dir / "log"), "one\ntwo\n");
}

TEST(AppendFile, IsRecreatedWhenDeletedOrRenamed) {
  const TempDir dir;
  AppendFile file(dir / "run/log", {.head = "head\n"});
  EXPECT_TRUE(file.append("one\n"));
  const std::string log = stderr_of([&] {
    std::filesystem::remove_all(dir / "run");
    EXPECT_TRUE(file.append("two\n"));
    EXPECT_TRUE(file.append("three\n"));
    EXPECT_EQ(contents(dir / "run/log"), "head\ntwo\nthree\n");
    std::filesystem::rename(dir / "run/log", dir / "run/log.1");
    put(dir / "run/log", "of another program\n");
    EXPECT_TRUE(file.append("four\n"));
  });
  EXPECT_EQ(contents(dir / "run/log"), "of another program\nfour\n");
  EXPECT_EQ(contents(dir / "run/log.1"), "head\ntwo\nthree\n");
  EXPECT_EQ(count_of(log, "was deleted or renamed"), 2) << log;
}

TEST(AppendFile, RetriesRecreationAndWarnsOnce) {
  const TempDir dir;
  AppendFile file(dir / "run/log");
  std::filesystem::remove_all(dir / "run");
  put(dir / "run", "in the way");
  const std::string log = stderr_of([&] {
    EXPECT_FALSE(file.append("one\n"));
    EXPECT_FALSE(file.append("two\n"));
    std::filesystem::remove(dir / "run");
    EXPECT_TRUE(file.append("three\n"));
  });
  EXPECT_EQ(contents(dir / "run/log"), "three\n");
  EXPECT_EQ(count_of(log, "cannot be opened"), 1) << log;
}

TEST(AppendFile, IsNotRecreatedWithoutAHeader) {
  const TempDir dir;
  AppendFile file(dir / "log", {.head = std::nullopt});
  std::filesystem::remove(dir / "log");
  const std::string log = stderr_of([&] { EXPECT_FALSE(file.append("one\n")); });
  EXPECT_FALSE(std::filesystem::exists(dir / "log"));
  EXPECT_EQ(count_of(log, "further records are lost"), 1) << log;
}

}  // namespace
}  // namespace athanor
