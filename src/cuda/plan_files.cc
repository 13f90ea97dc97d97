#include "cuda/plan_files.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"
#include "base/log.h"
namespace athanor::cuda {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMostBytes = 4 << 20;
constexpr const char* kPrefix = "attention-";

void remove_oldest(const std::string& folder, size_t most) {
  std::error_code gone;  // errors are ignored: other ranks remove files at the same time
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(folder, gone))
    if (entry.path().filename().string().starts_with(kPrefix))
      files.emplace_back(entry.last_write_time(gone), entry.path());
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + most < files.size(); ++i) fs::remove(files[i].second, gone);
}

}  // namespace

PlanFiles::PlanFiles(std::string folder, std::string key) : folder_(std::move(folder)), key_(std::move(key)) {}

std::string PlanFiles::path(const std::string& graph) const {
  return cat(folder_, "/", kPrefix, xxh3_hex(cat(key_, "; ", graph)), ".plan");
}

std::string PlanFiles::first_line(const std::string& graph, const std::string& plan) const {
  return cat("athanor attention plan, version 1; ", key_, "; graph ", xxh3_hex(graph), "; plan ", xxh3_hex(plan));
}

std::string PlanFiles::load(const std::string& graph) const {
  if (folder_.empty()) return "";
  try {
    if (!fs::exists(path(graph))) return "";
    const std::string text = read_file(path(graph), kMostBytes);
    const size_t line = std::min(text.find('\n'), text.size());
    std::string plan = text.substr(std::min(line + 1, text.size()));
    if (text.substr(0, line) == first_line(graph, plan)) return plan;
    log::warn("tuning_cache: ", path(graph), " is not used: it is damaged or belongs to another problem");
  } catch (const std::exception& error) {
    log::warn("tuning_cache: ", path(graph), " is not used: ", error.what());
  }
  return "";
}

void PlanFiles::store(const std::string& graph, const std::string& plan) const {
  if (folder_.empty() || plan.empty() || static_cast<int64_t>(plan.size()) > kMostBytes / 2) return;
  try {
    make_dirs(folder_);
    write_file(path(graph), cat(first_line(graph, plan), "\n", plan));
    remove_oldest(folder_, kMost);
  } catch (const std::exception& error) {
    log::warn("tuning_cache: ", path(graph), " was not written: ", error.what());
  }
}
}  // namespace athanor::cuda
