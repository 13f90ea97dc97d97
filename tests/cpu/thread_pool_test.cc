// Laws of the thread pool: every chunk once, workers private, exceptions leave, nested and concurrent calls finish.
#include "cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "base/error.h"
#include "cpu/cores.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

TEST(ThreadPool, RunsEveryChunkExactlyOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t chunks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(chunks));
      pool.parallel_for(chunks, [&](int64_t c) { hits[size_t(c)].fetch_add(1); });
      for (auto& h : hits) EXPECT_EQ(h.load(), 1);
    }
  }
}

// Switches the calling process to a separate user that may run this many threads. Returns false if that is not
// possible.
bool allow_threads(rlim_t count) {
  constexpr uid_t kNobodyElse = 54321;
  if (::geteuid() != 0) return false;
  const rlimit limit{count, count};
  return ::setresuid(kNobodyElse, kNobodyElse, kNobodyElse) == 0 && ::setrlimit(RLIMIT_NPROC, &limit) == 0;
}

// The thread sanitizer runs a thread of its own, which also counts.
TEST(ThreadPool, ThreadCreationFailureReportsTheLimit) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user without other processes";
  EXPECT_EXIT(
      {
        if (!allow_threads(6)) _exit(7);
        try {
          ThreadPool pool(16);
        } catch (const Error& e) {
          std::fprintf(stderr, "%s\n", e.what());
          _exit(int(e.code()));
        }
        _exit(0);
      },
      ::testing::ExitedWithCode(int(Exit::usage)),
      "threads: [56] of 16 .* 6 processes.*ulimit -u.*set threads to fewer");
}

TEST(ThreadPool, AutomaticSizeShrinksToTheThreadLimit) {
  if (::geteuid() != 0 || usable_cores() < 2) GTEST_SKIP() << "needs root and two cores";
  EXPECT_EXIT(
      {
        if (!allow_threads(1)) _exit(7);
        ThreadPool pool(0);
        int64_t sum = 0;
        pool.parallel_for(10, [&](int64_t chunk) { sum += chunk; });
        _exit(pool.size() == 1 && sum == 45 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "threads: 1 instead of");
}

TEST(ThreadPool, SecondStageChunksMayWaitForTheFirst) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t first : {0, 1, 5, 40}) {
      std::atomic<int64_t> begun{0}, second{0};
      pool.parallel_stages(first, 50, [&](int64_t chunk) {
        if (chunk < first) {
          begun.fetch_add(1);
          return;
        }
        while (begun.load() < first) std::this_thread::yield();
        second.fetch_add(1);
      });
      EXPECT_EQ(begun.load(), first);
      EXPECT_EQ(second.load(), 50);
    }
  }
}

TEST(ThreadPool, ManySmallJobsInARowSeeEachOthersWrites) {
  ThreadPool pool(4);
  std::vector<int64_t> v(16, 0);  // plain memory: the pool itself must order the jobs
  for (int round = 0; round < 20000; ++round)
    pool.parallel_for(16, [&](int64_t c) { v[size_t((c + round) % 16)] += 1; });
  for (int64_t x : v) EXPECT_EQ(x, 20000);
}

TEST(ThreadPool, NoTwoRunningChunksShareAWorker) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  pool.parallel_for(5000, [&](int64_t, int worker) {
    ASSERT_TRUE(worker >= 0 && worker < 4);
    if (inside[size_t(worker)].fetch_add(1) != 0) clashes.fetch_add(1);
    inside[size_t(worker)].fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, RangesPartitionTheInputAndDoNotDependOnThreads) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<int> owner(1003, -1);
    pool.parallel_ranges(1003, 100, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 100, 0);
      for (int64_t i = begin; i < end; ++i) owner[size_t(i)] = int(begin);
    });
    for (int i = 0; i < 1003; ++i) EXPECT_EQ(owner[size_t(i)], i / 100 * 100);
  }
}

TEST(ThreadPool, FirstExceptionIsRethrownAndThePoolStaysUsable) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::string message;
      try {
        pool.parallel_for(100, [&](int64_t c) {
          if (c == 37) throw Error("chunk 37 is bad");
        });
      } catch (const Error& e) {
        message = e.what();
      }
      EXPECT_EQ(message, "chunk 37 is bad");
      std::atomic<int64_t> sum{0};
      pool.parallel_for(10, [&](int64_t c) { sum += c; });
      EXPECT_EQ(sum.load(), 45);
    }
  }
}

TEST(ThreadPool, AnExceptionSkipsChunksNotYetStarted) {
  ThreadPool pool(2);
  std::atomic<int> ran{0};
  EXPECT_THROW(pool.parallel_for(100000,
                                 [&](int64_t) {
                                   ran.fetch_add(1);
                                   throw std::runtime_error("x");
                                 }),
               std::runtime_error);
  EXPECT_LT(ran.load(), 1000);
}

TEST(ThreadPool, NestedCallsRunInline) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  pool.parallel_for(20, [&](int64_t outer) {
    const auto self = std::this_thread::get_id();
    pool.parallel_for(10, [&](int64_t inner, int worker) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(worker, 0);
      sum += outer * 10 + inner;
    });
  });
  EXPECT_EQ(sum.load(), 199 * 200 / 2);
}

TEST(ThreadPool, SeveralCallersMayRunConcurrently) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) pool.parallel_for(8, [&](int64_t c) { sum += c; });
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(sum.load(), 4 * 500 * 28);
}

// A fake /proc/self/cgroup and /sys/fs/cgroup.
class Cgroups : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const testing::TempDir root_;
  const CgroupPaths paths_ = {.self = root_ / "self", .mount = root_ / "fs"};
};

TEST_F(Cgroups, MissingFilesMeanNoLimit) {
  EXPECT_EQ(cgroup_cpu_quota(paths_), 0);
  EXPECT_EQ(cgroup_memory_limit(paths_), 0u);
}

TEST_F(Cgroups, Version2UsesTheTightestAncestorLimit) {
  write("self", "0::/job/step\n");
  write("fs/job/step/cpu.max", "max 100000\n");
  write("fs/job/cpu.max", "250000 100000\n");
  write("fs/cpu.max", "800000 100000\n");
  write("fs/job/memory.max", "1000000\n");
  write("fs/job/step/memory.max", "max\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(paths_), 2.5);
  EXPECT_EQ(cgroup_memory_limit(paths_), 1000000u);
}

TEST_F(Cgroups, Version1ReadsQuotaAndPeriod) {
  write("self", "5:cpuset:/other\n4:cpu,cpuacct:/box\n3:memory:/box\n");
  write("fs/cpu/box/cpu.cfs_quota_us", "150000\n");
  write("fs/cpu/box/cpu.cfs_period_us", "100000\n");
  write("fs/memory/box/memory.limit_in_bytes", "9223372036854771712\n");  // what the kernel writes for "none"
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(paths_), 1.5);
  EXPECT_EQ(cgroup_memory_limit(paths_), 0u);
  write("fs/cpu/box/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cgroup_cpu_quota(paths_), 0);
}

TEST_F(Cgroups, InvalidValuesAreIgnored) {
  write("self", "garbage\n::\n0::\n");
  write("fs/cpu.max", "fast\n");
  write("fs/memory.max", "-5\n");
  EXPECT_EQ(cgroup_cpu_quota(paths_), 0);
  EXPECT_EQ(cgroup_memory_limit(paths_), 0u);
}

TEST_F(Cgroups, AvailableMemoryIsTheMinimumOfMachineAndGroups) {
  const auto available = [&] { return available_memory(paths_, root_ / "meminfo"); };
  EXPECT_EQ(available(), usable_memory()) << "without files";
  write("meminfo", "MemTotal:       2000 kB\nMemFree:  5 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(available(), 1000u * 1024);
  write("self", "0::/job/step\n");
  write("fs/job/step/memory.max", "max\n");
  write("fs/job/memory.max", "900000\n");
  write("fs/job/memory.current", "500000\n");
  EXPECT_EQ(available(), 400000u);
  write("fs/job/memory.stat", "anon 200000\ninactive_file 250000\nactive_file 50000\n");
  EXPECT_EQ(available(), 650000u) << "copies of files go first";
  write("fs/job/memory.current", "1300000\n");
  EXPECT_EQ(available(), 0u);
  write("self", "3:memory:/box\n");
  write("fs/memory/box/memory.limit_in_bytes", "800000\n");
  write("fs/memory/box/memory.usage_in_bytes", "300000\n");
  write("fs/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n");
  EXPECT_EQ(available(), 600000u);
}

TEST(Cores, AreBetweenOneAndThoseOfTheMachine) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), int(std::thread::hardware_concurrency()));
  EXPECT_GT(usable_memory(), size_t(1) << 20);
  EXPECT_GT(available_memory(), size_t(1) << 20);
  EXPECT_LE(available_memory(), usable_memory());
}

}  // namespace
}  // namespace athanor
