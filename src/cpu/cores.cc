// How many cores and how much memory this process may use: affinity mask and cgroup limits, versions 1 and 2.
#include "cpu/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cpu/thread_pool.h"

namespace athanor {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Directories whose limits apply to this process for one controller ("" = version 2): its group and every parent.
std::vector<std::string> groups(const CgroupPaths& paths, const std::string& controller) {
  std::ifstream in(paths.self);
  std::string line, group = "/";
  while (std::getline(in, line)) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = cat(",", line.substr(first + 1, second - first - 1), ",");
    if (controller.empty() ? names == ",," : names.find(cat(",", controller, ",")) != std::string::npos)
      group = line.substr(second + 1);
  }
  const std::string root = controller.empty() ? paths.mount : paths.mount + "/" + controller;
  std::vector<std::string> result;
  while (!group.empty() && group != "/") {
    result.push_back(root + group);
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  result.push_back(root);
  return result;
}

// The number at the start of `text`, or -1 ("max", a missing file).
double number(const std::string& text) {
  std::istringstream in(text);
  double value = -1;
  return in >> value ? value : -1;
}

}  // namespace

double cgroup_cpu_quota(const CgroupPaths& paths) {
  double quota = 0;
  const auto limit = [&](double micros, double period) {
    if (micros > 0 && period > 0) quota = quota > 0 ? std::min(quota, micros / period) : micros / period;
  };
  for (const std::string& dir : groups(paths, "")) {
    const std::string line = first_line(dir + "/cpu.max");  // "quota period" or "max period"
    const size_t space = line.find(' ');
    if (space != std::string::npos) limit(number(line), number(line.substr(space)));
  }
  for (const std::string& dir : groups(paths, "cpu"))
    limit(number(first_line(dir + "/cpu.cfs_quota_us")), number(first_line(dir + "/cpu.cfs_period_us")));
  return quota;
}

size_t cgroup_memory_limit(const CgroupPaths& paths) {
  double least = 0;
  const auto limit = [&](double bytes) {
    // Version 1 reports "no limit" as a number near 2^63.
    if (bytes > 0 && bytes < 0x1p62) least = least > 0 ? std::min(least, bytes) : bytes;
  };
  for (const std::string& dir : groups(paths, "")) limit(number(first_line(dir + "/memory.max")));
  for (const std::string& dir : groups(paths, "memory")) limit(number(first_line(dir + "/memory.limit_in_bytes")));
  return size_t(least);
}

namespace {

// The number after `key` in a file with one key on each line, or -1.
double field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  double value = -1;
  while (in >> word)
    if (word == key && in >> value) return value;
  return -1;
}

}  // namespace

// Cgroups report how much of a group's memory is file cache that can be dropped; versions 1 and 2 use different names.
size_t available_memory(const CgroupPaths& paths, const std::string& meminfo) {
  const double free_kib = field(meminfo, "MemAvailable:");
  double available = free_kib >= 0 ? free_kib * 1024 : double(usable_memory());
  const auto limit = [&](const std::string& dir, const char* most, const char* used, const char* cache) {
    const double bytes = number(first_line(dir + most)), use = number(first_line(dir + used));
    if (bytes <= 0 || bytes >= 0x1p62 || use < 0) return;
    const double cached = std::max(0.0, field(dir + "/memory.stat", cache));
    available = std::min(available, std::max(0.0, bytes - std::max(0.0, use - cached)));
  };
  for (const std::string& dir : groups(paths, "")) limit(dir, "/memory.max", "/memory.current", "inactive_file");
  for (const std::string& dir : groups(paths, "memory"))
    limit(dir, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");
  return size_t(available);
}

size_t usable_memory() {
  const size_t physical = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGE_SIZE));
  const size_t limit = cgroup_memory_limit(CgroupPaths{});
  return limit ? std::min(limit, physical) : physical;
}

int usable_cores() {
  int cores = int(std::thread::hardware_concurrency());
  // The kernel returns EINVAL if it has more CPUs than the mask; cpu_set_t alone has only 1024.
  std::vector<cpu_set_t> mask(16);
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  if (sched_getaffinity(0, bytes, mask.data()) == 0) cores = CPU_COUNT_S(bytes, mask.data());
  const double quota = cgroup_cpu_quota(CgroupPaths{});
  if (quota > 0) cores = std::min(cores, int(std::ceil(quota)));
  return std::max(cores, 1);
}

}  // namespace athanor
