#include "convert/new_folder.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "checkpoint/layout.h"

namespace athanor {
namespace fs = std::filesystem;

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
  remove_leftovers(plain);
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
