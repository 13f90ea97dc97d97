// System information, parsed from copies of the kernel's files, from the real ones, and from invalid ones.
#include "metrics/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/process_memory.h"
#include "tests/files.h"
#include "tests/metrics/terminal.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;
using Json = nlohmann::json;
constexpr uint64_t kGiB = uint64_t(1) << 30;

// ---- memory ----

TEST(ProcessMemory, ReadsProcSelfStatus) {
  const TempDir dir;
  write_bytes(dir / "proc/self/status",
              "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t     512 kB\nVmRSSX:\t9 kB\n");
  const auto memory = process_memory({dir.path()});
  EXPECT_EQ(memory.resident, 1024u << 10);
  EXPECT_EQ(memory.anonymous, 512u << 10);
  EXPECT_EQ(memory.peak, 2048u << 10);
}

TEST(ProcessMemory, InvalidFilesReadAsUnknown) {
  const TempDir dir;
  EXPECT_EQ(process_memory({dir.path()}).resident, 0u) << "no such file";
  write_bytes(dir / "proc/self/status", "VmRSS\nVmRSS:\nRssAnon:\tmany kB\nVmHWM:\t99999999999999999999 kB\n");
  EXPECT_EQ(process_memory({dir.path()}).resident, 0u);
  EXPECT_EQ(process_memory({dir.path()}).anonymous, 0u);
  EXPECT_EQ(process_memory({dir.path()}).peak, 0u);
  write_bytes(dir / "proc/self/status", "VmHWM:\t18446744073709551615 kB\n");
  EXPECT_EQ(process_memory({dir.path()}).peak, 0u) << "bytes overflow";
}

TEST(ProcessMemory, TouchedMemoryIsAnonymousAndRaisesThePeak) {
  const auto before = process_memory();
  ASSERT_GT(before.resident, 0u);
  const std::vector<char> block(64 << 20, 'x');
  const auto after = process_memory();
  EXPECT_GE(after.anonymous, before.anonymous + (60u << 20)) << int(block[12345]);
  EXPECT_GE(after.peak, after.resident);
}

// ---- control groups ----

TEST(Cgroup, Version2UsesTheTightestAncestorLimit) {
  const TempDir dir;
  write_bytes(dir / "proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write_bytes(dir / "sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  write_bytes(dir / "sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n");
  write_bytes(dir / "sys/fs/cgroup/slurm/job_7/memory.max", std::to_string(8 * kGiB) + "\n");
  write_bytes(dir / "sys/fs/cgroup/slurm/job_7/cpu.max", "250000 100000\n");
  write_bytes(dir / "sys/fs/cgroup/slurm/memory.max", std::to_string(100 * kGiB) + "\n");
  const auto limits = cgroup_limits({dir.path()});
  EXPECT_EQ(limits.memory, 8 * kGiB);
  EXPECT_EQ(limits.cpus, 2.5);
}

TEST(Cgroup, ContainerReadsItsGroupAtTheMountPoint) {
  const TempDir dir;
  write_bytes(dir / "proc/self/cgroup", "0::/../../host/path\n");
  write_bytes(dir / "sys/fs/cgroup/memory.max", std::to_string(2 * kGiB) + "\n");
  EXPECT_EQ(cgroup_limits({dir.path()}).memory, 2 * kGiB);
}

TEST(Cgroup, ReadsVersion1) {
  const TempDir dir;
  write_bytes(dir / "proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/\n");
  write_bytes(dir / "sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(4 * kGiB) + "\n");
  write_bytes(dir / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_bytes(dir / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n");
  write_bytes(dir / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write_bytes(dir / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write_bytes(dir / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const auto limits = cgroup_limits({dir.path()});
  EXPECT_EQ(limits.memory, 4 * kGiB);
  EXPECT_EQ(limits.cpus, 1.5);
}

TEST(Cgroup, Version1MaximumMeansNoLimit) {
  const TempDir dir;
  write_bytes(dir / "proc/self/cgroup", "4:memory:/\n");
  write_bytes(dir / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(cgroup_limits({dir.path()}).memory);
}

TEST(Cgroup, MissingOrInvalidFilesMeanNoLimit) {
  const TempDir dir;
  EXPECT_FALSE(cgroup_limits({dir.path()}).memory);
  write_bytes(dir / "proc/self/cgroup", "nonsense\n:\n0::\n");
  write_bytes(dir / "sys/fs/cgroup/memory.max", "\n");
  write_bytes(dir / "sys/fs/cgroup/cpu.max", "100000\n");
  EXPECT_FALSE(cgroup_limits({dir.path()}).memory);
  EXPECT_FALSE(cgroup_limits({dir.path()}).cpus) << "no period";
  write_bytes(dir / "sys/fs/cgroup/cpu.max", "100000 0\n");
  EXPECT_FALSE(cgroup_limits({dir.path()}).cpus) << "a period of nothing";
}

TEST(Cgroup, MemoryLimitIsTheMinimumOfMachineAndGroup) {
  const TempDir dir;
  EXPECT_EQ(memory_limit({dir.path()}), 0u) << "not known";
  write_bytes(dir / "proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  EXPECT_EQ(machine_memory({dir.path()}).available, 8 * kGiB);
  EXPECT_EQ(memory_limit({dir.path()}), 16 * kGiB);
  write_bytes(dir / "proc/self/cgroup", "0::/\n");
  write_bytes(dir / "sys/fs/cgroup/memory.max", std::to_string(2 * kGiB) + "\n");
  EXPECT_EQ(memory_limit({dir.path()}), 2 * kGiB);
  write_bytes(dir / "sys/fs/cgroup/memory.max", std::to_string(64 * kGiB) + "\n");
  EXPECT_EQ(memory_limit({dir.path()}), 16 * kGiB);
}

// ---- environment.json ----

TEST(Environment, DescribesTheRealSystem) {
  const Environment env = find_environment({.version = "1.2.3", .command = {"athanor"}, .libraries = {}});
  EXPECT_FALSE(env.host.empty());
  EXPECT_TRUE(env.kernel.starts_with("Linux ")) << env.kernel;
  EXPECT_GE(env.cores_online, 1);
  EXPECT_GE(env.affinity.size(), 1u);
  EXPECT_LE(int64_t(env.affinity.size()), env.cores_online);
  EXPECT_GT(env.memory.total, 0u);
  EXPECT_GT(env.compiler.size(), 5u);
  EXPECT_EQ(env.time.size(), std::string("2026-08-21T09:12:45Z").size());
}

TEST(Environment, FileIsValidJsonWithEveryField) {
  const TempDir dir;
  write_bytes(dir / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some \"CPU\" @ 3 GHz \n");
  write_bytes(dir / "etc/os-release", "NAME=x\nPRETTY_NAME=\"An OS 12\"\n");
  write_bytes(dir / "proc/meminfo", "MemTotal: 4 kB\nMemAvailable: 3 kB\n");
  const auto env = find_environment({.version = "1.2.3 (abc)",
                                     .command = {"athanor", "train", "a b.json"},
                                     .libraries = {{"libdnnl", "2.6"}, {"x", ""}}},
                                    {dir.path()});
  write_environment(env, dir / "environment.json");
  const Json json = Json::parse(read_bytes(dir / "environment.json"));
  EXPECT_EQ(json.at("program_version"), "1.2.3 (abc)");
  EXPECT_EQ(json.at("command"), Json({"athanor", "train", "a b.json"}));
  EXPECT_EQ(json.at("cpu_model"), "Some \"CPU\" @ 3 GHz");
  EXPECT_EQ(json.at("os"), "An OS 12");
  EXPECT_EQ(json.at("libraries"), Json({{"libdnnl", "2.6"}, {"x", ""}}));
  EXPECT_EQ(json.at("memory_total_bytes"), 4096);
  EXPECT_TRUE(json.at("cgroup").at("memory_bytes").is_null());
  EXPECT_TRUE(json.at("cgroup").at("cpus").is_null());
  EXPECT_EQ(json.at("affinity").size(), env.affinity.size());
}

TEST(Environment, ExcludesEnvironmentVariables) {
  const ScopedVariable secret("ATHANOR_TEST_TOKEN", "hunter2-secret");
  EXPECT_EQ(to_json(find_environment({})).find("hunter2"), std::string::npos);
}

TEST(Environment, FailedWriteIsAnError) {
  const TempDir dir;
  write_bytes(dir / "file", "");
  try {
    write_environment({}, dir / "file/environment.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("environment.json"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace athanor
