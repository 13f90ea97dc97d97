// Limits of the process, from the kernel's files. The paths are arguments so that tests can fake the files.
#pragma once
#include <cstddef>
#include <string>

namespace athanor {

struct CgroupPaths {
  std::string self = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};
double cgroup_cpu_quota(const CgroupPaths&);     // cores; 0 = no limit
size_t cgroup_memory_limit(const CgroupPaths&);  // bytes; 0 = no limit
size_t usable_memory();                          // physical memory or the cgroup's limit, whichever is less
// The part of usable_memory() that is free or used only by the page cache.
size_t available_memory(const CgroupPaths& = {}, const std::string& meminfo = "/proc/meminfo");

}  // namespace athanor
