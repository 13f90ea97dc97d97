// Formats and parses the names in a save folder; parsing accepts only names that formatting produces.
#include "checkpoint/layout.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace athanor {
namespace {

constexpr std::string_view kStep = "step-", kDiverged = "diverged-", kTmp = ".tmp", kAside = ".old";

std::string numbered(std::string_view prefix, int64_t step) {
  CHECK(step >= 0, "step ", step);
  char digits[32];
  std::snprintf(digits, sizeof digits, "%08lld", static_cast<long long>(step));
  return cat(prefix, digits);
}

std::optional<int64_t> parse_numbered(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || numbered(prefix, step) != name) return std::nullopt;
  return step;
}

std::optional<int64_t> parse_hidden(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix)) return std::nullopt;
  return parse_step_folder(name.substr(1, name.size() - 1 - suffix.size()));
}

bool is_checkpoint_name(std::string_view name) {
  return parse_step_folder(name) || parse_diverged_folder(name) || parse_tmp_folder(name) || parse_aside_folder(name);
}

}  // namespace

std::string step_folder(int64_t step) { return numbered(kStep, step); }
std::string diverged_folder(int64_t step) { return numbered(kDiverged, step); }
std::string tmp_folder(int64_t step) { return cat(".", step_folder(step), kTmp); }
std::string aside_folder(int64_t step) { return cat(".", step_folder(step), kAside); }

std::optional<int64_t> parse_step_folder(std::string_view name) { return parse_numbered(name, kStep); }
std::optional<int64_t> parse_diverged_folder(std::string_view name) { return parse_numbered(name, kDiverged); }
std::optional<int64_t> parse_tmp_folder(std::string_view name) { return parse_hidden(name, kTmp); }
std::optional<int64_t> parse_aside_folder(std::string_view name) { return parse_hidden(name, kAside); }

void require_outside_checkpoints(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path at = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  for (; at.has_relative_path(); at = at.parent_path())
    if (is_checkpoint_name(at.filename().string()) && fs::exists(at.parent_path() / kLockName, ignored))
      throw Error(cat(path, ": ", at.string(), " has the name of a checkpoint of the run in ",
                      at.parent_path().string(), ", which may delete it; give another path"),
                  Exit::usage);
}

}  // namespace athanor
