#include "base/process_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace athanor {
namespace {

// The number at the start of `text`, after blanks; empty if there is none or it overflows.
std::optional<uint64_t> leading_number(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const auto result = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  return line ? leading_number(*line) : std::nullopt;
}

// Bytes from a line like "Key:   123 kB"; 0 if the key is missing.
uint64_t kilobytes_of(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    const auto kb = leading_number(std::string_view(line).substr(key.size() + 1));
    return kb && *kb <= UINT64_MAX / 1024 ? *kb * 1024 : 0;
  }
  return 0;
}

template <class T>
void tighten(std::optional<T>& limit, const T& value) {
  limit = limit ? std::min(*limit, value) : value;
}

// cgroup v2: "<quota|max> <period>", both in microseconds.
void add_cpu_max(CgroupLimits& limits, const std::string& path) {
  const auto line = first_line(path);
  if (!line) return;
  const auto quota = leading_number(*line);
  const auto period = leading_number(std::string_view(*line).substr(std::min(line->find(' '), line->size())));
  if (quota && period && *period > 0) tighten(limits.cpus, double(*quota) / double(*period));
}

void add_v2(CgroupLimits& limits, const std::string& folder) {
  if (const auto memory = number_in(folder + "/memory.max")) tighten(limits.memory, *memory);
  add_cpu_max(limits, folder + "/cpu.max");
}

void add_v1_memory(CgroupLimits& limits, const std::string& folder) {
  // Without a limit, the file holds the largest multiple of the page size below 2^63.
  const auto memory = number_in(folder + "/memory.limit_in_bytes");
  if (memory && *memory < uint64_t(1) << 62) tighten(limits.memory, *memory);
}

void add_v1_cpu(CgroupLimits& limits, const std::string& folder) {
  const auto quota = number_in(folder + "/cpu.cfs_quota_us");  // -1 means no limit and does not parse as a number here
  const auto period = number_in(folder + "/cpu.cfs_period_us");
  if (quota && period && *period > 0) tighten(limits.cpus, double(*quota) / double(*period));
}

// The group's folder and its ancestors up to the mount point. In a container, the path may name a folder of the host
// that is not visible; then only the mount point counts.
std::vector<std::string> folders_up(const std::string& mount, const std::string& group) {
  std::vector<std::string> folders;
  std::filesystem::path path = std::filesystem::path("/" + group).lexically_normal();
  for (; path.has_relative_path(); path = path.parent_path()) folders.push_back(mount + path.string());
  folders.push_back(mount);
  return folders;
}

}  // namespace

ProcessMemory process_memory(const SystemRoot& root) {
  const std::string status = root.path + "/proc/self/status";
  return {.resident = kilobytes_of(status, "VmRSS"),
          .anonymous = kilobytes_of(status, "RssAnon"),
          .peak = kilobytes_of(status, "VmHWM")};
}

MachineMemory machine_memory(const SystemRoot& root) {
  const std::string info = root.path + "/proc/meminfo";
  return {.total = kilobytes_of(info, "MemTotal"), .available = kilobytes_of(info, "MemAvailable")};
}

CgroupLimits cgroup_limits(const SystemRoot& root) {
  CgroupLimits limits;
  const std::string mount = root.path + "/sys/fs/cgroup";
  std::ifstream in(root.path + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "<id>:<controllers>:<path>"; v2 has no controllers
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    if (second == first + 1)
      for (const auto& folder : folders_up(mount, group)) add_v2(limits, folder);
    std::stringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name == "memory")
        for (const auto& folder : folders_up(mount + "/memory", group)) add_v1_memory(limits, folder);
      if (name == "cpu")
        for (const auto& folder : folders_up(mount + "/cpu", group)) add_v1_cpu(limits, folder);
    }
  }
  return limits;
}

uint64_t memory_limit(const SystemRoot& root) {
  const uint64_t machine = machine_memory(root).total;
  const auto cgroup = cgroup_limits(root).memory;
  if (!cgroup) return machine;
  return machine == 0 ? *cgroup : std::min(machine, *cgroup);
}

}  // namespace athanor
