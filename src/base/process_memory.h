// Memory use and limits of this process, from /proc/self/status, the machine, and control groups v2 and v1.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace athanor {

// Root of the kernel's files; tests set another one.
struct SystemRoot {
  std::string path = "";  // prefix of /proc and /sys
};

// In bytes; 0 where the kernel does not report a value.
struct ProcessMemory {
  uint64_t resident = 0;   // VmRSS: RssAnon plus mapped files, such as token shards
  uint64_t anonymous = 0;  // RssAnon: memory that the program allocated and touched
  uint64_t peak = 0;       // VmHWM: maximum VmRSS so far
};
ProcessMemory process_memory(const SystemRoot& = {});

// Memory of the whole machine, in bytes.
struct MachineMemory {
  uint64_t total = 0, available = 0;
};
MachineMemory machine_memory(const SystemRoot& = {});

// The tightest limits among this process' control groups (containers, Slurm); absent if unlimited.
struct CgroupLimits {
  std::optional<uint64_t> memory;  // bytes
  std::optional<double> cpus;
};
CgroupLimits cgroup_limits(const SystemRoot& = {});

// Memory this process may use: the smaller of the machine's memory and the control groups' limit; 0: unknown.
uint64_t memory_limit(const SystemRoot& = {});

}  // namespace athanor
