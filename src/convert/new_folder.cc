#include "convert/new_folder.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "checkpoint/layout.h"

namespace athanor {
namespace fs = std::filesystem;
namespace {

bool is_number(std::string_view part) { return part.find_first_not_of("0123456789") == part.npos; }

// True for .NAME.MARK.tmp of NewFolder, .NAME.MARK.K.tmp of AtomicFile, .NAME.MARK.checked of `export --check` and its
// own temporary names, if all marks (process_mark()) are of processes of this host that have ended.
bool is_leftover(std::string_view entry, const std::string& name) {
  const std::string one = cat(".", name, "."), two = "." + one;
  const std::string& start = entry.starts_with(two) ? two : one;
  if (!entry.starts_with(start) || !(entry.ends_with(".tmp") || entry.ends_with(".checked"))) return false;
  bool marked = false;
  for (size_t at = start.size(); at < entry.size();) {
    const size_t dot = std::min(entry.find('.', at), entry.size());
    const std::string_view part = entry.substr(at, dot - at);
    at = dot + 1;
    if (part == "tmp" || part == "checked" || (marked && is_number(part))) continue;
    if (!is_of_ended_process(part)) return false;
    marked = true;
  }
  return marked;
}

}  // namespace

std::string without_slash(const std::string& path) {
  std::string plain = fs::path(path).lexically_normal().string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return plain;
}

void require_new_path(const std::string& path) {
  std::error_code ignored;
  const std::string plain = without_slash(path);
  if (plain.empty()) throw Error("expected the path of a new file or folder, got an empty one", Exit::usage);
  if (fs::exists(fs::symlink_status(plain, ignored)))
    throw Error(cat(path, ": exists already; give a new name"), Exit::usage);
  require_outside_checkpoints(plain);
}

void prepare_new_path(const std::string& path) {
  const std::string plain = without_slash(path), parent = parent_dir(plain);
  require_new_path(plain);
  make_dirs(parent);
  for (const std::string& name : folder_names(parent)) {
    if (!is_leftover(name, base_name(plain))) continue;
    log::info("removing ", parent, "/", name, ": left by a process that was killed before ", plain, " was complete");
    remove_tree(cat(parent, "/", name));
  }
  const AtomicFile can_be_created(plain);
}

NewFolder::NewFolder(const std::string& path) : final_(without_slash(path)) {
  prepare_new_path(final_);
  tmp_ = cat(parent_dir(final_), "/.", fs::path(final_).filename().string(), ".", process_mark(), ".tmp");
  remove_tree(tmp_);
  make_new_dir(tmp_);
}

NewFolder::~NewFolder() {
  if (committed_) return;
  try {
    remove_tree(tmp_);
  } catch (const Error& e) {
    log::warn("export: an unfinished folder was left behind, since it cannot be removed: ", e.what());
  }
}

void NewFolder::commit() {
  fsync_dir(tmp_);
  rename_path(tmp_, final_);
  committed_ = true;
  fsync_dir(parent_dir(final_));
}

}  // namespace athanor
