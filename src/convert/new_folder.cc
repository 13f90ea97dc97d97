#include "convert/new_folder.h"

#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace athanor {
namespace fs = std::filesystem;

std::string without_slash(const std::string& path) {
  std::string plain = fs::path(path).lexically_normal().string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return plain;
}

NewFolder::NewFolder(const std::string& path) : final_(without_slash(path)) {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(final_, ignored)))
    throw Error(cat(final_, ": exists already; give a new folder"), Exit::usage);
  make_dirs(parent_dir(final_));
  tmp_ = cat(parent_dir(final_), "/.", fs::path(final_).filename().string(), ".", getpid(), ".tmp");
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
