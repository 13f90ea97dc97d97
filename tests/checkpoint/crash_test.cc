// The guarantee of the save folder: whenever a run dies and whichever call fails, the newest valid step is the last
// committed one (or the one being committed, complete), it loads, and every listed step is complete.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/sample_run.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

namespace fs = std::filesystem;

// Every test saves step 2 over one of these pasts.
struct Past {
  const char* what;
  bool has_step_2;   // step 2 is there already, as generation 0; it is replaced by generation 1
  bool no_exchange;  // the file system cannot swap two names
};
constexpr Past kPasts[] = {
    {"a new step", false, false}, {"replacing by a swap", true, false}, {"replacing by two renames", true, true}};

class Crash : public SaveFolder {
 protected:
  void make_past(const Past& past) {
    fs::remove_all(root);
    const RunLock lock(root);
    save_sample(lock, 1, 0);
    if (past.has_step_2) save_sample(lock, 2, 0);
  }

  // Runs fn in a child that is expected to exit or die; gives the wait status.
  template <class Fn>
  int in_child(Fn&& fn) {
    const pid_t child = fork();
    if (child == 0) {
      fn();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
  }

  // Checks the guarantee before and after the next run takes the lock. Returns whether the new step 2 was found.
  bool expect_kept_promise(const Past& past) {
    const bool before = check_newest(past);
    { const RunLock lock(root); }
    EXPECT_TRUE(hidden_names(root).empty());
    const bool after = check_newest(past);
    EXPECT_EQ(before, after);
    return after;
  }

 private:
  bool check_newest(const Past& past) {
    for (const auto& info : list_checkpoints(root)) {
      const Verification v = verify_checkpoint(info.path, Depth::checksums);
      EXPECT_TRUE(v.ok) << info.path << ": " << v.problem;
    }
    const auto newest = newest_valid(root);
    if (!newest) {
      ADD_FAILURE() << "no valid checkpoint is left";
      return false;
    }
    const int64_t generation = loaded_generation(newest->path, newest->step, 2);
    EXPECT_GE(generation, 0) << newest->path << " holds a mixture";
    EXPECT_TRUE(newest->step == 2 || !past.has_step_2) << newest->step;
    return newest->step == 2 && (generation == 1 || !past.has_step_2);
  }
};

uint64_t new_generation(const Past& past) { return past.has_step_2 ? 1 : 0; }

TEST_F(Crash, KillAtEveryNamedPointKeepsAValidCheckpoint) {
  for (const Past& past : kPasts) {
    SCOPED_TRACE(past.what);
    std::vector<std::string> points;
    make_past(past);
    {
      const faults::Scope scope({.no_exchange = past.no_exchange});
      save_sample(RunLock(root), 2, new_generation(past), [&](std::string_view p) { points.emplace_back(p); });
    }
    std::set<std::string> expected(std::begin(kSavePoints), std::end(kSavePoints));
    if (!past.no_exchange) expected.erase("moved_aside");
    if (!past.has_step_2) expected.erase("old_removed");
    EXPECT_EQ(std::set<std::string>(points.begin(), points.end()), expected);

    const auto renamed = std::find(points.begin(), points.end(), "renamed") - points.begin();
    for (int die_at = 0; die_at < int(points.size()); ++die_at) {
      SCOPED_TRACE(cat("dying at point ", die_at, ": ", points[size_t(die_at)]));
      make_past(past);
      const int status = in_child([&] {
        const faults::Scope scope({.no_exchange = past.no_exchange});
        int passed = 0;
        save_sample(RunLock(root), 2, new_generation(past), [&](std::string_view) {
          if (passed++ == die_at) _exit(77);
        });
      });
      ASSERT_EQ(WEXITSTATUS(status), 77);
      EXPECT_EQ(expect_kept_promise(past), die_at >= renamed);
    }
  }
}

// A power cut loses what was not synced. Worst case per file: everything written since its last fsync is gone; a file
// whose folder was not synced after a rename may be under either name (the rename itself is kept here; DyingAtEvery...
// covers the other order). Replays the log of a dead child onto its folder.
void lose_unsynced_data(const std::vector<faults::Call>& calls) {
  std::map<std::string, bool> dirty;  // by the path at the time of the cut
  for (const auto& c : calls) {
    if (c.name == "write") dirty[c.path] = true;
    if (c.name == "fsync") dirty[c.path] = false;
    if (c.name != "rename" && c.name != "exchange") continue;
    std::map<std::string, bool> moved;
    for (const auto& [path, d] : dirty) {
      const bool inside = path == c.path || path.starts_with(c.path + "/");
      moved[inside ? c.to + path.substr(c.path.size()) : path] |= d;
    }
    dirty = moved;
  }
  for (const auto& [path, d] : dirty)
    if (d && fs::is_regular_file(path)) fs::resize_file(path, 0);
}

TEST_F(Crash, KillBeforeEverySystemCallWithUnsyncedDataLostKeepsAValidCheckpoint) {
  for (const Past& past : kPasts) {
    int deaths = 0;
    for (bool finished = false; !finished; ++deaths) {
      SCOPED_TRACE(cat(past.what, ", dying before call ", deaths));
      make_past(past);
      const int status = in_child([&] {
        const RunLock lock(root);
        const faults::Scope scope({.die_at = deaths, .no_exchange = past.no_exchange, .log = at("calls")});
        save_sample(lock, 2, new_generation(past));
      });
      finished = WEXITSTATUS(status) == 0;
      lose_unsynced_data(faults::read_log(at("calls")));
      EXPECT_TRUE(expect_kept_promise(past) || !finished);
      if (HasFailure()) return;
    }
    EXPECT_GT(deaths, 30);
  }
}

TEST_F(Crash, EveryFailingSystemCallIsAClearErrorOrHarmless) {
  for (const Past& past : kPasts)
    for (const int error : {ENOSPC, EIO, EROFS}) {
      int number = 0;
      for (bool reached = true; reached; ++number) {
        make_past(past);
        const RunLock lock(root);
        std::string message, name;
        {
          const faults::Scope scope({.fail_at = number, .error = error, .no_exchange = past.no_exchange});
          message = error_of([&] { save_sample(lock, 2, new_generation(past)); });
          reached = faults::fault_reached();
          if (reached) name = faults::calls()[size_t(number)].name;
        }
        SCOPED_TRACE(cat(past.what, ", call ", number, " (", name, ") fails with ", strerror(error), ": ", message));
        if (message != "no error") {
          EXPECT_NE(message.find(root), message.npos);
          EXPECT_NE(message.find(strerror(error)), message.npos);
          const bool remedy = message.find(error == EIO ? "kernel log" : "choose another folder") != message.npos;
          EXPECT_TRUE(remedy);
        }
        // An error may come after the step became visible (its folder could not be synced); success may not come
        // before.
        const bool is_new = [&] {
          const auto newest = newest_valid(root);
          return newest && newest->step == 2 && loaded_generation(newest->path, 2, 2) == int64_t(new_generation(past));
        }();
        EXPECT_TRUE(message != "no error" || is_new);
        // The new step is visible but the save failed: it may not be durable, so the old one must still be there.
        const bool old_kept = fs::exists(cat(root, "/", tmp_folder(2))) || fs::exists(cat(root, "/", aside_folder(2)));
        EXPECT_TRUE(message == "no error" || !is_new || !past.has_step_2 || old_kept);
        // Nothing unfinished is left; an old generation may be, until the next start, when it could not be removed.
        EXPECT_TRUE(is_new || !fs::exists(cat(root, "/", tmp_folder(2)))) << "the unfinished folder is left";
        save_sample(lock, 2, new_generation(past));  // a retry with the same lock works
        EXPECT_EQ(loaded_generation(newest_valid(root)->path, 2, 2), int64_t(new_generation(past)));
        if (HasFailure()) return;
      }
      EXPECT_GT(number, 30);
    }
}

TEST_F(Crash, ShortAndInterruptedTransfersChangeNothing) {
  make_past(kPasts[0]);
  const RunLock lock(root);
  const faults::Scope scope({.short_writes = true});
  save_sample(lock, 2, 0);
  EXPECT_TRUE(verify_checkpoint(step(2), Depth::checksums).ok);
  EXPECT_EQ(loaded_generation(step(2), 2, 1), 0);
}

TEST_F(Crash, RenamesOnlySyncedFilesAndRemovesOnlySupersededOnes) {
  for (const Past& past : kPasts) {
    SCOPED_TRACE(past.what);
    make_past(past);
    const RunLock lock(root);
    {
      const faults::Scope scope({.no_exchange = past.no_exchange});
      save_sample(lock, 2, new_generation(past));
    }
    const auto& calls = faults::calls();
    auto last = [&](std::string_view name, const std::string& path) {
      int found = -1;
      for (int i = 0; i < int(calls.size()); ++i)
        if (calls[size_t(i)].name == name && calls[size_t(i)].path == path) found = i;
      return found;
    };
    const std::string tmp = cat(root, "/", tmp_folder(2));
    const int folder_synced = last("fsync", tmp);
    const int moved = past.has_step_2 && !past.no_exchange ? last("exchange", tmp) : last("rename", tmp);
    ASSERT_GE(folder_synced, 0);
    for (const char* file : {"model.safetensors", "optim.safetensors", "state.json", "manifest.json"}) {
      const std::string path = cat(tmp, "/", file);
      EXPECT_GE(last("write", path), 0);
      EXPECT_LT(last("write", path), last("fsync", path));
      EXPECT_LT(last("fsync", path), folder_synced);
      EXPECT_LE(last("open", path), last("open", tmp + "/manifest.json"));  // the manifest is the last file
    }
    EXPECT_LT(folder_synced, moved);
    int root_synced = -1, removed = -1, latest = -1;
    for (int i = moved; i < int(calls.size()); ++i) {
      const auto& c = calls[size_t(i)];
      if (root_synced < 0 && c.name == "fsync" && c.path == root) root_synced = i;
      if (removed < 0 && c.name == "unlink") removed = i;
      if (latest < 0 && c.name == "rename" && c.to == root + "/latest") latest = i;
    }
    EXPECT_LT(moved, root_synced);
    EXPECT_LT(root_synced, latest);
    EXPECT_TRUE(!past.has_step_2 || root_synced < removed) << root_synced << " " << removed;
  }
}

TEST_F(Crash, KillDuringPruningLeavesNoPartialStep) {
  int deaths = 0;
  for (bool finished = false; !finished; ++deaths) {
    SCOPED_TRACE(deaths);
    fs::remove_all(root);
    {
      const RunLock lock(root);
      for (int64_t n = 1; n <= 3; ++n) save_sample(lock, n);
    }
    const int status = in_child([&] {
      const RunLock lock(root);
      const faults::Scope scope({.die_at = deaths});
      prune(lock, 1);
    });
    finished = WEXITSTATUS(status) == 0;
    for (const auto& info : list_checkpoints(root))
      EXPECT_TRUE(verify_checkpoint(info.path, Depth::checksums).ok) << info.path;
    EXPECT_EQ(newest_valid(root)->step, 3);
    if (HasFailure()) return;
  }
  EXPECT_GT(deaths, 10);
}

TEST_F(Crash, FiftyRandomKillsKeepAValidCheckpoint) {
  const uint64_t seed = uint64_t(getpid());
  const auto start = std::chrono::steady_clock::now();
  save_sample(RunLock(root), 1);
  const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - start;
  const auto window = uint64_t(std::min(2 * one_save.count(), 1e5)) + 1000;  // any moment of a save or two
  int64_t committed = 1;
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(cat("seed ", seed, " round ", round));
    int said[2];
    ASSERT_EQ(pipe(said), 0);
    const pid_t child = fork();
    if (child == 0) {
      const RunLock lock(root);
      for (int64_t n = committed + 1;; ++n) {
        save_sample(lock, n);
        (void)!write(said[1], &n, sizeof n);
        prune(lock, 2);
      }
    }
    close(said[1]);
    const uint64_t moment = random_bits(seed, 1, uint64_t(round));
    for (uint64_t saves = moment % 3; saves > 0;
         --saves)  // saves completed by then, independent of the machine's speed
      ASSERT_EQ(read(said[0], &committed, sizeof committed), ssize_t(sizeof committed));
    usleep(useconds_t((moment >> 8) % window));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (int64_t n; read(said[0], &n, sizeof n) == ssize_t(sizeof n);) committed = n;
    close(said[0]);

    const auto newest = newest_valid(root);
    ASSERT_TRUE(newest);
    // Killed between commit and its announcement, the step after the last announced one is there.
    ASSERT_TRUE(newest->step == committed || newest->step == committed + 1) << newest->step << " " << committed;
    ASSERT_EQ(loaded_generation(newest->path, newest->step, 1), 0);
    for (const auto& info : list_checkpoints(root)) ASSERT_TRUE(verify_checkpoint(info.path, Depth::checksums).ok);
    committed = newest->step;
  }
  { const RunLock lock(root); }
  EXPECT_TRUE(hidden_names(root).empty());
  EXPECT_GT(committed, 1);
}

// Runs in a child process with a small file system mounted on `root`; exits 0 if the guarantee holds, 99 without
// permission to mount.
int on_a_tiny_disk(const std::string& root) {
  const pid_t child = fork();
  if (child == 0) {
    const bool mounted = (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("none", root.c_str(), "tmpfs", 0, "size=256k") == 0;
    if (!mounted) _exit(99);
    const auto big = random_tensor("big", DType::u8, {300'000});
    const CheckpointTensor t{.data = big.data, .placement = {}};
    bool good = true;
    {
      const RunLock lock(root);
      save_sample(lock, 1);
      const std::string full = error_of([&] {
        CheckpointWriter w(lock, 2);
        add_sample(w, 2, 0);
        w.add_safetensors("big.safetensors", std::span(&t, 1));
      });

      good = full.find("No space left on device") != full.npos && full.find("bytes are free") != full.npos &&
             full.find("more bytes were needed") != full.npos && hidden_names(root).empty();
    }
    // Remounting works only while the lock's file is not open for writing.
    good = good && mount("none", root.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k") == 0;
    const std::string locked = error_of([&] { RunLock{root}; });
    good = good && locked.find("Read-only file system") != locked.npos && locked.find("remount it") != locked.npos;
    good = good && newest_valid(root)->step == 1 && loaded_generation(newest_valid(root)->path, 1, 1) == 0;

    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST_F(Crash, FullOrReadOnlyDiskKeepsExistingCheckpoints) {
  make_dirs(root);
  const int status = on_a_tiny_disk(root);
  if (status == 99) GTEST_SKIP() << "mounting a small file system is not permitted here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace athanor::test
