// Law of verification: every byte of a checkpoint matters. Each byte is changed once; files are truncated, extended,
// removed and swapped; each time the report names the file and a range that contains the damage.
#include <sys/stat.h>

#include "checkpoint/verify.h"
#include "tests/checkpoint/sample_run.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

namespace fs = std::filesystem;

class Damage : public Scratch {
 protected:
  std::string step;
  std::vector<std::string> files = {"model.safetensors", "optim.safetensors", "state.json", "manifest.json"};
  void SetUp() override {
    Scratch::SetUp();
    const RunLock lock(at("save"));
    save_sample(lock, 3);
    step = at("save/step-00000003");
    ASSERT_TRUE(verify_checkpoint(step, Depth::checksums).ok);
  }
  std::string path(const std::string& file) const { return cat(step, "/", file); }
  Verification deep() const { return verify_checkpoint(step, Depth::checksums); }
  Verification sizes() const { return verify_checkpoint(step, Depth::sizes); }

  // The tensor of a file that holds a byte; "" for the header and other files.
  std::string tensor_at(const std::string& file, int64_t byte) const {
    if (!file.ends_with(".safetensors")) return "";
    const SafetensorsFile f(path(file));
    for (const TensorEntry& t : f.tensors())
      if (t.offset <= byte && byte < t.offset + t.bytes) return t.name;
    return "";
  }
};

TEST_F(Damage, EveryChangedByteIsDetectedAndLocated) {
  for (const std::string& file : files) {
    const std::string good = slurp(path(file));
    std::vector<std::string> tensors;
    for (size_t i = 0; i < good.size(); ++i) tensors.push_back(tensor_at(file, int64_t(i)));
    for (size_t i = 0; i < good.size(); ++i) {
      SCOPED_TRACE(cat(file, " byte ", i));
      std::string bad = good;
      bad[i] = char(bad[i] ^ (1 << (i % 8)));
      spill(path(file), bad);
      const Verification v = deep();
      ASSERT_FALSE(v.ok);
      ASSERT_EQ(v.file, file);
      ASSERT_NE(v.problem.find(file), std::string::npos) << v.problem;
      if (file == "manifest.json") continue;
      ASSERT_TRUE(sizes().ok);
      ASSERT_TRUE(v.begin <= int64_t(i) && int64_t(i) < v.end) << v.problem;
      if (!tensors[i].empty()) {
        ASSERT_EQ(v.tensor, tensors[i]) << v.problem;
        ASSERT_NE(v.problem.find(tensors[i]), std::string::npos) << v.problem;
      }
    }
    spill(path(file), good);
    ASSERT_TRUE(deep().ok);
  }
}

TEST_F(Damage, SizeCheckDetectsEveryTruncationAndGrowth) {
  for (const std::string& file : files) {
    const std::string good = slurp(path(file));
    for (size_t n = 0; n <= good.size(); ++n) {
      const bool grown = n == good.size();
      spill(path(file), grown ? good + "\n" : good.substr(0, n));
      const Verification v = sizes();
      ASSERT_FALSE(v.ok) << file << " " << n;
      ASSERT_EQ(v.file, file);
      if (file == "manifest.json") continue;
      ASSERT_NE(v.problem.find(grown ? "it grew" : "truncated"), std::string::npos) << v.problem;
      ASSERT_EQ(v.begin, int64_t(n));
    }
    spill(path(file), good);
  }
}

// Whichever thread is done first.
TEST_F(Damage, FirstOfSeveralDamagedFilesIsNamed) {
  const std::vector<ManifestFile> all = deep().manifest.files;
  for (size_t i = all.size(); i-- > 0;) {
    std::string bytes = slurp(path(all[i].name));
    bytes.back() = char(bytes.back() ^ 1);
    spill(path(all[i].name), bytes);
    for (int again = 0; again < 10; ++again) ASSERT_EQ(deep().file, all[i].name);
  }
}

TEST_F(Damage, MissingAndForeignFilesAreNamed) {
  for (const std::string& file : files) {
    fs::rename(path(file), at("aside"));
    Verification v = sizes();
    EXPECT_FALSE(v.ok);
    EXPECT_EQ(v.file, file);
    EXPECT_NE(v.problem.find("No such file"), std::string::npos) << v.problem;
    fs::create_directory(path(file));
    v = sizes();
    EXPECT_FALSE(v.ok);
    EXPECT_NE(v.problem.find("expected a regular file, found a folder"), std::string::npos) << v.problem;
    fs::remove(path(file));
    ASSERT_EQ(mkfifo(path(file).c_str(), 0600), 0);
    EXPECT_FALSE(sizes().ok);
    fs::remove(path(file));
    fs::rename(at("aside"), path(file));
  }
  EXPECT_TRUE(deep().ok);
  spill(path("notes.txt"), "people may add files");
  EXPECT_TRUE(deep().ok);
}

TEST_F(Damage, FileOfAnotherStepIsDetected) {
  const RunLock lock(at("other"));
  save_sample(lock, 3, 1);
  for (const std::string file : {"model.safetensors", "optim.safetensors", "state.json"}) {
    const std::string good = slurp(path(file));
    spill(path(file), slurp(cat(at("other/step-00000003/"), file)));
    EXPECT_TRUE(sizes().ok);
    EXPECT_EQ(deep().file, file);
    spill(path(file), good);
  }
}

TEST_F(Damage, ZeroedBlocksAreDetected) {  // as left by a file system for data that was never written
  for (const std::string& file : files) {
    const std::string good = slurp(path(file));
    spill(path(file), std::string(good.size(), '\0'));
    EXPECT_EQ(deep().file, file);
    spill(path(file), good);
  }
}

TEST_F(Damage, MissingFolderIsReported) {
  const Verification v = verify_checkpoint(at("none"), Depth::checksums);
  EXPECT_FALSE(v.ok);
  EXPECT_EQ(v.file, "manifest.json");
  EXPECT_NE(v.problem.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace athanor::test
