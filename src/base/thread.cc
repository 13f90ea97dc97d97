#include "base/thread.h"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

namespace athanor {
namespace {

std::string first_word(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

// Process limit of this process's cgroup (version 2, or version 1's pids controller); "" if there is none.
std::string cgroup_limit() {
  std::ifstream in("/proc/self/cgroup");
  std::string line, least;
  while (std::getline(in, line)) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    const std::string root = names.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    if (!names.empty() && names != "pids") continue;
    for (const std::string& folder : {root + path, root})  // in a container the path may not be visible
      if (const std::string limit = first_word(folder + "/pids.max"); !limit.empty() && limit != "max") return limit;
  }
  return "";
}

}  // namespace

std::string thread_limits() {
  std::vector<std::string> limits;
  rlimit processes{};
  if (::getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY)
    limits.push_back(cat(processes.rlim_cur, " processes and threads of this user (ulimit -u)"));
  if (const std::string limit = cgroup_limit(); !limit.empty())
    limits.push_back(cat(limit, " of this cgroup (pids.max)"));
  if (const std::string limit = first_word("/proc/sys/kernel/threads-max"); !limit.empty())
    limits.push_back(cat(limit, " of this machine (kernel.threads-max)"));
  if (const std::string limit = first_word("/proc/sys/vm/max_map_count"); !limit.empty())
    limits.push_back(cat(limit, " memory maps, of which a thread takes two (vm.max_map_count)"));
  rlimit memory{};
  if (::getrlimit(RLIMIT_AS, &memory) == 0 && memory.rlim_cur != RLIM_INFINITY)
    limits.push_back(cat(memory.rlim_cur, " bytes of addresses (ulimit -v)"));
  if (::getrlimit(RLIMIT_DATA, &memory) == 0 && memory.rlim_cur != RLIM_INFINITY)
    limits.push_back(cat(memory.rlim_cur, " bytes of data and stacks (ulimit -d)"));
  std::string text;
  for (const std::string& limit : limits) text += cat(text.empty() ? "" : ", ", limit);
  return text.empty() ? "not known" : text;
}

}  // namespace athanor
