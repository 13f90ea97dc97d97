// Laws of the save folder: only complete steps are listed, only one run writes at a time, saving a step twice replaces
// it, pruning never removes the last good step, and a failure keeps existing checkpoints.
#include "checkpoint/store.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "checkpoint/printable.h"
#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/sample_run.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

namespace fs = std::filesystem;

class Store : public SaveFolder {
 protected:
  std::vector<int64_t> steps() const {
    std::vector<int64_t> s;
    for (const auto& info : list_checkpoints(root)) s.push_back(info.step);
    return s;
  }
  // Saves the state of a run that diverged at step n, and returns its folder.
  static std::string save_diverged(const RunLock& lock, int64_t n) {
    CheckpointOptions options = sample_options();
    options.diverged = true;
    CheckpointWriter w(lock, n, options);
    add_sample(w, n, 7);
    return w.commit();
  }
  void damage(int64_t n) const {
    const std::string path = step(n) + "/optim.safetensors";
    std::string bytes = slurp(path);
    bytes.back() = char(bytes.back() ^ 1);
    spill(path, bytes);
  }
};

using Steps = std::vector<int64_t>;

TEST_F(Store, CommittedStepIsListedValidAndLoads) {
  EXPECT_TRUE(list_checkpoints(root).empty());
  EXPECT_FALSE(newest_valid(root));
  const RunLock lock(root);
  save_sample(lock, 1000);
  EXPECT_EQ(steps(), Steps{1000});
  EXPECT_EQ(slurp(root + "/latest"), "step-00001000\n");
  EXPECT_TRUE(hidden_names(root).empty());
  const auto newest = newest_valid(root);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 1000);
  EXPECT_EQ(newest->path, step(1000));
  EXPECT_EQ(loaded_generation(newest->path, 1000, 2), 0);
  const Manifest m = read_manifest(newest->path);
  EXPECT_EQ(m.step, 1000);
  EXPECT_EQ(m.program_version, "0.1.0");
  EXPECT_EQ(m.config_hash, "cfg");
  EXPECT_EQ(m.data_fingerprint, "data");
  ASSERT_EQ(m.created.size(), 20u);
  EXPECT_EQ(m.created[10], 'T');
  EXPECT_EQ(m.files.size(), 3u);
  EXPECT_EQ(m.tensors.size(), 6u);
}

TEST_F(Store, ListsStepsInOrderOfWritingAndIgnoresOtherFolders) {
  const RunLock lock(root);
  for (int64_t n : {123456789, 5, 0, 99999999}) save_sample(lock, n);
  for (const char* name :
       {"step-1", "step-000000010", "step--0000001", "step-0000000x", "step-00000007.bak", "steps", "wandb"})
    make_dirs(cat(root, "/", name));
  EXPECT_EQ(steps(), (Steps{123456789, 5, 0, 99999999}));
  EXPECT_EQ(newest_valid(root)->step, 99999999);
  EXPECT_ERROR(step_folder(-1), "step -1");
}

TEST_F(Store, UncommittedCheckpointIsRemoved) {
  const RunLock lock(root);
  save_sample(lock, 1);
  {
    CheckpointWriter w(lock, 2);
    add_sample(w, 2, 0);
    EXPECT_EQ(steps(), Steps{1});
    EXPECT_EQ(hidden_names(root), std::vector<std::string>{".step-00000002.tmp"});
  }
  EXPECT_EQ(steps(), Steps{1});
  EXPECT_TRUE(hidden_names(root).empty());
}

TEST_F(Store, SavingAStepTwiceReplacesItEvenIfDamaged) {
  const RunLock lock(root);
  save_sample(lock, 7, 0);
  spill(step(7) + "/extra.txt", "left by a person");
  save_sample(lock, 7, 1);
  EXPECT_EQ(steps(), Steps{7});
  EXPECT_EQ(loaded_generation(step(7), 7, 3), 1);
  EXPECT_FALSE(fs::exists(step(7) + "/extra.txt"));
  damage(7);
  EXPECT_FALSE(newest_valid(root));
  save_sample(lock, 7, 2);
  EXPECT_EQ(loaded_generation(newest_valid(root)->path, 7, 3), 2);
  EXPECT_TRUE(hidden_names(root).empty());
}

TEST_F(Store, NewestValidSkipsDamagedStepsAndReportsWhy) {
  const RunLock lock(root);
  for (int64_t n = 1; n <= 4; ++n) save_sample(lock, n);
  fs::remove(step(4) + "/state.json");
  damage(3);
  std::vector<std::string> why;
  const auto newest = newest_valid(root, &why);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 2);
  ASSERT_EQ(why.size(), 2u);
  expect_parts(why[0], {"step-00000004", "state.json"});
  EXPECT_NE(why[1].find("step-00000003: optim.safetensors, tensor 'embed.weight.m'"), std::string::npos) << why[1];
  EXPECT_EQ(newest_valid(root, nullptr, verify_sizes)->step, 3);  // sizes alone cannot see a flipped bit
}

// An unreadable step is not treated as damaged: a run that fell back to an older step would overwrite it.
TEST_F(Store, UnreadableStepIsAnErrorAndIsNotSkipped) {
  const RunLock lock(root);
  for (int64_t n : {1, 2}) save_sample(lock, n);
  const std::string manifest = step(2) + "/manifest.json";
  fs::remove(manifest);
  EXPECT_FALSE(verify_checkpoint(step(2), Depth::sizes).unreadable) << "nothing there";
  EXPECT_EQ(newest_valid(root)->step, 1);
  fs::create_symlink("/proc/self/mem", manifest);  // its first byte gives EIO, also to root
  const Verification v = verify_checkpoint(step(2), Depth::sizes);
  EXPECT_FALSE(v.ok);
  EXPECT_TRUE(v.unreadable) << v.problem;
  const std::string error = error_of([&] { newest_valid(root); });
  EXPECT_NE(error.find(cat(step(2), ": cannot be read")), error.npos) << error;
}

// A disk or network read fails once: whichever read it is, and whether it returns an error or too few bytes, the newest
// step stays the newest.
TEST_F(Store, TransientReadErrorIsNotDamage) {
  const RunLock lock(root);
  for (int64_t n : {1, 2}) save_sample(lock, n);
  for (const int error : {EIO, EINTR, 0}) {
    int reads = 0;
    for (bool reached = true; reached; ++reads) {
      std::vector<std::string> why;
      const faults::Scope scope({.error = error, .bad_read = reads});
      const auto newest = newest_valid(root, &why);
      reached = faults::fault_reached();
      ASSERT_TRUE(newest);
      EXPECT_EQ(newest->step, 2) << "read " << reads << ", errno " << error << ": " << (why.empty() ? "" : why[0]);
    }
    EXPECT_GT(reads, 3) << "of the manifest and of files";
  }
}

TEST_F(Store, DivergedStateIsNotListedAsAStep) {
  const RunLock lock(root);
  for (int64_t n : {1, 2}) save_sample(lock, n);
  for (const int64_t n : {2, 3, 3}) EXPECT_EQ(save_diverged(lock, n), cat(root, "/", diverged_folder(n)));
  EXPECT_EQ(slurp(root + "/latest"), "step-00000002\n");
  EXPECT_EQ(newest_valid(root)->step, 2);
  EXPECT_EQ(loaded_generation(step(2), 2, 2), 0);
  prune(lock, 1);
  EXPECT_EQ(steps(), Steps{2});
  ASSERT_EQ(list_diverged(root).size(), 2u);
  prune_diverged(lock);
  ASSERT_EQ(list_diverged(root).size(), 1u);
  EXPECT_EQ(list_diverged(root)[0].step, 3);
  EXPECT_TRUE(verify_checkpoint(list_diverged(root)[0].path, Depth::checksums).ok);
}

TEST_F(Store, NewestDivergedStateIsTheOneWrittenLast) {
  const RunLock lock(root);
  save_sample(lock, 1);
  for (const int64_t n : {9, 5}) save_diverged(lock, n);
  prune_diverged(lock);
  ASSERT_EQ(list_diverged(root).size(), 1u);
  EXPECT_EQ(list_diverged(root)[0].step, 5);
}

TEST_F(Store, FolderRenamedToAnotherStepIsRefused) {
  const RunLock lock(root);
  save_sample(lock, 1);
  fs::rename(step(1), step(2));
  std::vector<std::string> why;
  EXPECT_FALSE(newest_valid(root, &why));
  EXPECT_NE(why.at(0).find("is of step 1, the folder's name says 2"), std::string::npos) << why.at(0);
}

TEST_F(Store, LockHasOneHolderAndNamesIt) {
  {
    const RunLock lock(root);
    EXPECT_ERROR(RunLock{root}, "save folder", root, "in use by another run", "host ", cat("process ", getpid()),
                 "choose another save folder");
  }
  const RunLock again(root);  // freed by the destructor
}

// A run would count such a save folder as its own checkpoint, and remove it with the checkpoint around it.
TEST_F(Store, NoSaveFolderIsInsideACheckpoint) {
  const RunLock lock(root);
  save_sample(lock, 3);
  for (const std::string& path : {step(3), step(3) + "/run", step(4), root + "/diverged-00000003/run/"})
    EXPECT_ERROR(RunLock{path}, "has the name of a checkpoint of the run in");
  EXPECT_EQ(list_checkpoints(root).size(), 1u);
  const RunLock other(root + "/run");
}

TEST_F(Store, RemovedLockFileStillExcludesASecondRun) {
  RunLock lock(root);
  const std::string file = root + "/.lock";
  fs::remove(file);
  EXPECT_ERROR(RunLock{root}, "in use by another run", ".lock was removed");
  fs::remove(file);
  log::configure({});
  ::testing::internal::CaptureStderr();
  lock.keep();
  lock.keep();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("it was created again"), std::string::npos) << log;
  EXPECT_EQ(log.find("it was created again"), log.rfind("it was created again")) << log;
  EXPECT_ERROR(RunLock{root}, "in use by another run", cat("process ", getpid()));
}

TEST_F(Store, LockIsLostWhenAnotherRunOwnsTheFolder) {
  RunLock lock(root);
  fs::rename(root, root + ".away");
  const auto other = std::make_unique<RunLock>(root);
  std::ofstream(root + "/.lock") << "host elsewhere, process 1\n";
  EXPECT_ERROR(lock.keep(), "in use by another run", "host elsewhere, process 1", ".lock was removed");
}

TEST_F(Store, LockIsReleasedWhenItsHolderIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(root);
    (void)!write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char c;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  EXPECT_ERROR(RunLock{root}, cat("process ", child));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  const RunLock lock(root);
}

TEST_F(Store, TakingTheLockRemovesOnlyLeftovers) {
  {
    const RunLock lock(root);
    save_sample(lock, 1);
    save_sample(lock, 3);
  }
  make_dirs(cat(root, "/", tmp_folder(2), "/sub"));
  spill(cat(root, "/", tmp_folder(2), "/model.safetensors"), "half");
  spill(root + "/.latest.123.0.tmp", "step-0");
  make_dirs(root + "/.step-5.tmp");  // not a name this program makes
  spill(root + "/.mine", "x");
  const RunLock lock(root);
  EXPECT_EQ(steps(), (Steps{1, 3}));
  EXPECT_EQ(hidden_names(root), (std::vector<std::string>{".mine", ".step-5.tmp"}));
}

TEST_F(Store, StepMovedAsideIsFoundAndRenamedBack) {
  {
    const RunLock lock(root);
    save_sample(lock, 1);
    save_sample(lock, 2, 1);
  }
  const std::string aside = cat(root, "/", aside_folder(2));
  fs::rename(step(2), aside);  // a crash between the two renames
  EXPECT_EQ(newest_valid(root)->path, aside);
  { const RunLock lock(root); }
  EXPECT_EQ(newest_valid(root)->path, step(2));
  EXPECT_EQ(loaded_generation(step(2), 2, 2), 1);

  fs::copy(step(2), aside, fs::copy_options::recursive);  // a crash before the old one was removed
  EXPECT_EQ(newest_valid(root)->path, step(2));
  { const RunLock lock(root); }
  EXPECT_TRUE(hidden_names(root).empty());

  fs::copy(step(2), aside, fs::copy_options::recursive);
  fs::remove(step(2) + "/optim.safetensors");  // the replacement did not reach the disk
  { const RunLock lock(root); }
  EXPECT_EQ(loaded_generation(newest_valid(root)->path, 2, 2), 1);
  EXPECT_TRUE(hidden_names(root).empty());
}

TEST_F(Store, PruneKeepsTheNewest) {
  const RunLock lock(root);
  for (int64_t n = 1; n <= 5; ++n) save_sample(lock, n);
  EXPECT_EQ(prune(lock, 9), Steps{});
  EXPECT_EQ(prune(lock, 5), Steps{});
  EXPECT_EQ(prune(lock, 2), (Steps{1, 2, 3}));
  EXPECT_EQ(steps(), (Steps{4, 5}));
  EXPECT_EQ(prune(lock, 1), Steps{4});
  EXPECT_EQ(prune(lock, 1), Steps{});
  EXPECT_TRUE(hidden_names(root).empty());
  EXPECT_ERROR(prune(lock, 0), "keep 0");
}

TEST_F(Store, PruneNeverRemovesTheLastGoodStep) {
  const RunLock lock(root);
  for (int64_t n = 1; n <= 5; ++n) save_sample(lock, n);
  damage(4);
  damage(5);  // all that would be kept is damaged in a way that sizes do not show
  EXPECT_EQ(prune(lock, 2), (Steps{1, 2}));
  EXPECT_EQ(steps(), (Steps{3, 4, 5}));
  EXPECT_EQ(newest_valid(root)->step, 3);
  damage(3);
  EXPECT_EQ(prune(lock, 1), Steps{});  // nothing is good: nothing is removed
  EXPECT_EQ(steps(), (Steps{3, 4, 5}));
}

TEST_F(Store, NewestIsTheLastWrittenStep) {
  const RunLock lock(root);
  for (int64_t n : {1, 2, 8, 9}) save_sample(lock, n);
  make_newest(lock, list_checkpoints(root).front());  // the run goes back to 1
  EXPECT_EQ(newest_valid(root)->step, 1);
  EXPECT_EQ(slurp(root + "/latest"), "step-00000001\n");
  EXPECT_TRUE(verify_checkpoint(step(1), Depth::checksums).ok);
  save_sample(lock, 2), save_sample(lock, 3);
  EXPECT_EQ(steps(), (Steps{8, 9, 1, 2, 3}));
  EXPECT_EQ(newest_valid(root)->step, 3);
  for (const CheckpointInfo& info : list_checkpoints(root)) EXPECT_EQ(info.given_up, info.step > 3) << info.step;
  damage(3);
  EXPECT_EQ(newest_valid(root)->step, 2);
  EXPECT_EQ(prune(lock, 2), (Steps{8, 9, 1}));
}

TEST_F(Store, CheckpointsWithoutSerialAreOrderedByStep) {
  const RunLock lock(root);
  for (int64_t n : {9, 8}) {
    save_sample(lock, n);
    Manifest m = read_manifest(step(n));
    m.serial = 0;
    spill(step(n) + "/manifest.json", manifest_json(m));
  }
  EXPECT_EQ(steps(), (Steps{8, 9}));
  save_sample(lock, 5);
  EXPECT_EQ(steps(), (Steps{8, 9, 5}));
  spill(step(8) + "/manifest.json", "damaged");
  EXPECT_EQ(steps(), (Steps{9, 5, 8}));  // tried first, so that a message says what is wrong with it
}

TEST_F(Store, PathResolvesToACheckpointOrTheLatestOfARun) {
  const RunLock lock(root);
  for (int64_t n : {1, 2}) save_sample(lock, n);
  EXPECT_EQ(checkpoint_at(step(1), verify_checksums), step(1));
  EXPECT_EQ(checkpoint_at(root, verify_checksums), step(2));
  EXPECT_EQ(checkpoint_at(root + "/latest", verify_checksums), step(2));
  EXPECT_ERROR(checkpoint_at(step(3), verify_checksums), "there is no such folder", "step-00000002");
  damage(1);
  EXPECT_ERROR(checkpoint_at(step(1), verify_checksums), "not a whole checkpoint", "checkpoint list");
}

TEST_F(Store, OtherFoldersAreNeitherRemovedNorOverwritten) {
  const RunLock lock(root);
  make_dirs(step(2));
  spill(step(2) + "/notes.txt", "mine");
  for (int64_t n : {1, 3, 4}) save_sample(lock, n);
  EXPECT_EQ(prune(lock, 1), (Steps{1, 3}));
  EXPECT_EQ(slurp(step(2) + "/notes.txt"), "mine");
  save_sample(lock, 2);
  EXPECT_EQ(newest_valid(root)->step, 2);
  EXPECT_EQ(slurp(step(2) + ".moved-1/notes.txt"), "mine");
}

TEST_F(Store, FoldersNamedLikeDivergedStateAreNeitherRemovedNorOverwritten) {
  const RunLock lock(root);
  const auto diverged = [&](int64_t n) { return cat(root, "/", diverged_folder(n)); };
  for (int64_t n : {1, 2}) {
    make_dirs(diverged(n));
    spill(diverged(n) + "/notes.txt", "mine");
  }
  EXPECT_EQ(save_diverged(lock, 2), diverged(2));
  prune_diverged(lock);
  EXPECT_EQ(slurp(diverged(1) + "/notes.txt"), "mine");
  EXPECT_EQ(slurp(diverged(2) + ".moved-1/notes.txt"), "mine");
  EXPECT_TRUE(verify_checkpoint(diverged(2), Depth::checksums).ok);
}

TEST_F(Store, PruneDoesNotCountIncompleteSteps) {
  const RunLock lock(root);
  for (int64_t n = 1; n <= 4; ++n) save_sample(lock, n);
  fs::remove(step(4) + "/model.safetensors");
  fs::remove(step(2) + "/manifest.json");
  EXPECT_EQ(prune(lock, 3), Steps{});   // only 1 and 3 are complete
  EXPECT_EQ(prune(lock, 1), Steps{1});  // 2 has no manifest and stays
  EXPECT_EQ(steps(), (Steps{2, 3, 4}));
}

TEST_F(Store, RanksWriteTheirShardsAndOneCommits) {
  const RunLock lock(root);
  const auto whole = random_tensor("w", DType::f32, {6, 4});
  CheckpointWriter w(lock, 1, sample_options());
  for (int rank = 0; rank < 3; ++rank) {
    CheckpointTensor piece{.data = whole.data, .placement = TensorPlacement{.whole = {6, 4}, .begin = {rank * 2, 0}}};
    piece.data.shape = {2, 4};
    piece.data.pieces = {std::span(whole.bytes).subspan(size_t(rank) * 32, 32)};
    w.adopt(write_part(w.folder(), cat("optim-", rank, ".safetensors"), std::span(&piece, 1), sample_options()));
  }
  const CheckpointReader r(w.commit());
  std::vector<std::byte> got(whole.bytes.size());
  r.read("w", got);
  EXPECT_EQ(got, whole.bytes);
}

TEST_F(Store, InvalidWriterCallsAreErrors) {
  const RunLock lock(root);
  CheckpointWriter w(lock, 1);
  w.add_text("state.json", "{}");
  EXPECT_ERROR(w.add_text("state.json", "{}"), "state.json", "File exists");
  EXPECT_ERROR(w.add_text("manifest.json", "{}"), "'manifest.json'");
  EXPECT_ERROR(w.add_text("../x", "{}"), "'../x'");
  EXPECT_ERROR(w.add_safetensors("x.bin", {}), "'x.bin'");
  const auto t = random_tensor("w", DType::f32, {2, 4});
  const CheckpointTensor outside{.data = t.data, .placement = TensorPlacement{.whole = {3, 4}, .begin = {2, 0}}};
  EXPECT_ERROR(w.add_safetensors("x.safetensors", std::span(&outside, 1)), "w [2, 4] at [2, 0] leaves [3, 4]");
  CheckpointWriter done(lock, 2);
  done.commit();
  EXPECT_ERROR(done.commit(), "step 2 was committed before");
}

TEST_F(Store, FileInsteadOfAFolderIsAnError) {
  make_dirs(at("run"));
  spill(root, "a file");
  EXPECT_ERROR(RunLock{root}, root, "Not a directory", "is a file, not a folder");
  EXPECT_ERROR(RunLock{"/proc/athanor"}, "/proc/athanor");
}

// A child that may not write files above 3000 bytes saves step 2 with one of 4000; gives its exit status.
int save_beyond_the_size_limit(const std::string& root) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {3000, 3000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const RunLock lock(root);
    const auto big = random_tensor("big", DType::u8, {4000});
    const std::string m = error_of([&] {
      CheckpointWriter w(lock, 2);
      add_sample(w, 2, 0);
      const CheckpointTensor t{.data = big.data, .placement = {}};
      w.add_safetensors("big.safetensors", std::span(&t, 1));
      w.commit();
    });
    const bool told = m.find("big.safetensors: File too large") != m.npos && m.find("bytes were needed") != m.npos;
    _exit(told && hidden_names(root).empty() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(Store, DiskFullDuringASaveKeepsExistingCheckpoints) {
  {
    const RunLock lock(root);
    save_sample(lock, 1);
  }
  EXPECT_EQ(save_beyond_the_size_limit(root), 0);
  EXPECT_EQ(steps(), Steps{1});
  EXPECT_EQ(newest_valid(root)->step, 1);
  EXPECT_EQ(loaded_generation(step(1), 1, 1), 0);
  const RunLock lock(root);
  save_sample(lock, 2);  // the run can continue once there is space
  EXPECT_EQ(newest_valid(root)->step, 2);
}

// The checkpoint written last is the newest of a folder: one joined into its own run's folder would take the run back.
TEST_F(Store, ConsolidationNeverTakesARunBack) {
  {
    const RunLock lock(root);
    save_sample(lock, 10);
    save_sample(lock, 20);
  }
  for (const int64_t n : {10, 20})
    EXPECT_ERROR(consolidate_checkpoint(step(n), root), root, step_folder(n), "already", "another save folder");
  EXPECT_EQ(newest_valid(root)->step, 20);
  const std::string joined = at("joined");
  EXPECT_EQ(consolidate_checkpoint(step(10), joined), cat(joined, "/", step_folder(10)));
  EXPECT_EQ(consolidate_checkpoint(step(20), joined), cat(joined, "/", step_folder(20)));
  EXPECT_ERROR(consolidate_checkpoint(step(10), joined), joined, "already");
  EXPECT_EQ(newest_valid(joined)->step, 20);
}

// tests/checkpoint/golden holds sample step 3 as written by format version 1. It is never rewritten: old checkpoints
// must stay loadable.
TEST_F(Store, FormatVersion1StillLoads) {
  const std::string golden = "tests/checkpoint/golden/step-00000003";
  const Verification v = verify_checkpoint(golden, Depth::checksums);
  ASSERT_TRUE(v.ok) << v.problem;
  EXPECT_EQ(v.manifest.format_version, 1);
  EXPECT_EQ(v.manifest.data_fingerprint, "data");
  EXPECT_EQ(loaded_generation(golden, 3, 1), 0);
}

TEST(Printable, EscapesTerminalControlSequences) {
  EXPECT_EQ(printable("a.weight \xc3\xa9"), "'a.weight \xc3\xa9'");
  EXPECT_EQ(printable("\x1b[2J\n\x7f"), "'\\x1b[2J\\x0a\\x7f'");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "'\\xc2\\x9b2J'");  // U+009B, which begins a control sequence like ESC [
  EXPECT_EQ(printable("\xc2\xa9 \xc2"), "'\xc2\xa9 \xc2'");
  EXPECT_EQ(printable(std::string(500, 'x')), cat("'", std::string(120, 'x'), "...'"));
}

TEST_F(Store, InspectPrintsTensorsSizesAndState) {
  const RunLock lock(root);
  save_sample(lock, 1000);
  const std::string text = inspect_checkpoint(step(1000));
  expect_parts(
      text, {"step-00001000", "athanor 0.1.0 abc", "cfg", "present (sizes checked", "model.safetensors", "embed.weight",
             "bf16", "[9, 5]", "90 B", "6 tensors", "99 elements", "state.json", "generation", "rng", "[1,2]"});
  EXPECT_EQ(text.find('%'), text.npos) << text;
  const std::string with_zeros = inspect_checkpoint(step(1000), true);
  expect_parts(with_zeros, {"zeros", "0.00 %"});
  spill(step(1000) + "/state.json", "{");
  const std::string damaged = inspect_checkpoint(step(1000));
  expect_parts(damaged, {"DAMAGED: state.json", "not JSON"});
  spill(step(1000) + "/state.json", cat("{\"rng\":", std::string(200'000, '['), std::string(200'000, ']'), "}"));
  EXPECT_NE(inspect_checkpoint(step(1000)).find("nested"), text.npos);
  EXPECT_ERROR(inspect_checkpoint(root), "manifest.json", "No such file");
}

}  // namespace
}  // namespace athanor::test
