// Memory of this process and its limits: /proc/self/status, the machine, control groups v2 and v1.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace athanor {

// Root of the kernel's files; tests use another.
struct SystemRoot {
  std::string path = "";  // in front of /proc and /sys
};

// Bytes; 0 where the kernel does not say.
struct ProcessMemory {
  uint64_t resident = 0;   // VmRSS: RssAnon and mapped files, among them the token shards
  uint64_t anonymous = 0;  // RssAnon: what the program allocated and touched
  uint64_t peak = 0;       // VmHWM: the largest VmRSS so far
};
ProcessMemory process_memory(const SystemRoot& = {});

// Bytes of the whole machine.
struct MachineMemory {
  uint64_t total = 0, available = 0;
};
MachineMemory machine_memory(const SystemRoot& = {});

// The tightest limits of this process' control groups (containers, Slurm); empty if unlimited.
struct CgroupLimits {
  std::optional<uint64_t> memory;  // bytes
  std::optional<double> cpus;
};
CgroupLimits cgroup_limits(const SystemRoot& = {});

// Memory this process may use: the smaller of the machine's memory and the control groups' limit. 0: unknown.
uint64_t memory_limit(const SystemRoot& = {});

}  // namespace athanor
