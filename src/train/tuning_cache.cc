#include "train/tuning_cache.h"

#include <cstdlib>
#include <filesystem>

#include "base/checksum.h"
#include "base/file.h"
#include "base/log.h"

namespace athanor {
namespace {

constexpr int64_t kMaxBytes = 16 << 20;

std::string users_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/') return cat(cache, "/athanor");
  if (const char* home = std::getenv("HOME"); home && *home == '/') return cat(home, "/.cache/athanor");
  return "";
}

}  // namespace

std::string tuning_folder(const std::string& option) {
  return option == "auto" ? users_folder() : option == "none" ? "" : option;
}

TuningCache::TuningCache(const std::string& folder, const std::string& key) {
  if (!folder.empty()) path_ = cat(folder, "/gemms-", xxh3_hex(key), ".json");
}

void TuningCache::load(Tuning& tuning) const {
  if (path_.empty() || !std::filesystem::exists(path_)) return;
  try {
    if (const std::string why = tuning.import_choices(read_file(path_, kMaxBytes)); !why.empty())
      log::info("tuning_cache: ", path_, " is not used: ", why);
  } catch (const Error& error) {
    log::warn("tuning_cache: ", path_, " is not used: ", error.what());
  }
}

void TuningCache::store(const Tuning& tuning) const {
  if (path_.empty()) return;
  try {
    make_dirs(parent_dir(path_));
    write_file(path_, tuning.export_choices());
  } catch (const Error& error) {
    log::warn("tuning_cache: ", path_, " was not written: ", error.what());
  }
}

}  // namespace athanor
