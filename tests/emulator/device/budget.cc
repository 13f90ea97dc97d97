// Counted accesses against a budget file.
#include "emulator/budget.h"

#include <fstream>
#include <iomanip>
#include <sstream>

namespace emu {
namespace {

struct Ratios {
  double global, shared;
};
double ratio(uint64_t used, uint64_t least) { return least ? double(used) / double(least) : 0; }

std::map<std::string, Ratios> read_budget(const std::string& path) {
  std::map<std::string, Ratios> budget;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    Ratios r{};
    std::string name;
    if (words >> r.global >> r.shared >> std::ws && std::getline(words, name)) budget[name] = r;
  }
  return budget;
}

std::string listed(const Ratios& r, const std::string& name) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << r.global << " " << r.shared << " " << name;
  return out.str();
}
bool differs(double got, double allowed) { return got > allowed + 0.01 || got < 0.95 * allowed - 0.01; }
}  // namespace

std::string compare_with_budget(const std::string& path, const std::map<std::string, KernelCounters>& counters) {
  const auto budget = read_budget(path);
  std::string text;
  for (const auto& [name, c] : counters) {
    const Ratios got{ratio(c.global_sectors, c.global_sectors_min), ratio(c.shared_passes, c.shared_passes_min)};
    const auto entry = budget.find(name);
    if (entry == budget.end()) {
      text += path + " does not list a kernel; its line would be\n" + listed(got, name) + "\n";
    } else if (differs(got.global, entry->second.global) || differs(got.shared, entry->second.shared)) {
      text += path + ": expected " + listed(entry->second, name) + "\n  counted  " + listed(got, name) + "\n";
    }
  }
  return text;
}
}  // namespace emu
