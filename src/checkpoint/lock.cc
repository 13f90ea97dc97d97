// RunLock: one run per save folder, and the cleanup that only the lock's holder may do.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "checkpoint/layout.h"
#include "checkpoint/printable.h"
#include "checkpoint/store.h"

namespace athanor {
namespace {

// A crash may leave a step that was moved aside while its replacement was renamed into place: keeps the complete one of
// the two.
void settle_moved_aside(const std::string& root, const std::string& old_path, int64_t step) {
  const std::string target = cat(root, "/", step_folder(step));
  const Verification v = verify_checkpoint(target, Depth::sizes);
  if (v.unreadable)
    throw Error(cat(target, ": cannot be read, so it is unknown whether it or its earlier version ", old_path,
                    " is complete: ", v.problem, "; make it readable, or remove one of the two"));
  if (v.ok) {
    remove_tree(old_path);
    return;
  }
  remove_tree(target);
  rename_path(old_path, target);
  fsync_dir(root);
}

void clear_leftovers(const std::string& root) {
  for (const std::string& name : folder_names(root)) {
    const std::string path = cat(root, "/", name);
    if (parse_tmp_folder(name)) {
      log::info("removing ", path, ": left by a run that was stopped in the middle of a save");
      remove_tree(path);
    } else if (const auto step = parse_aside_folder(name)) {
      settle_moved_aside(root, path, *step);
    } else if (name.starts_with(cat(".", kLatestName, ".")) && name.ends_with(".tmp")) {
      remove_tree(path);
    }
  }
}

// True if `path` still refers to the open file. A stat() error other than a missing path counts as true.
bool names(const std::string& path, const Fd& file) {
  struct stat held {};
  struct stat there {};
  if (!file || fstat(file.get(), &held) != 0) return false;
  if (stat(path.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;
  return held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

}  // namespace

RunLock::RunLock(std::string root)
    : root_(std::move(root)), holder_(cat("host ", host_name(), ", process ", getpid())) {
  require_outside_checkpoints(root_);
  make_dirs(root_);
  if (const std::string other = take(); !other.empty())
    throw Error(cat("save folder ", root_, " is in use by another run (", other,
                    "): wait for it, stop it, or choose another save folder"));
  clear_leftovers(root_);
}

std::string RunLock::take() {
  const std::string path = cat(root_, "/", kLockName);
  Fd file = create_below(root_, std::string(kLockName), O_RDWR);
  if (!lock_file(file, path, cat("two runs in ", root_))) {
    const std::string text = read_all(file, 4096, path);
    const std::string other = text.substr(0, text.find('\n'));
    return other.empty() ? "unknown holder" : printable(other);
  }
  if (!names(root_, folder_)) {  // network file systems refuse to lock folders
    Fd folder(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      return cat("unknown holder: it locks the folder itself, as a run does after its ", kLockName, " was removed");
    folder_ = std::move(folder);
  }
  if (ftruncate(file.get(), 0) != 0) throw_io("writing", path, errno);
  const std::string line = cat(holder_, "\n");
  write_all(file, std::as_bytes(std::span(line)), path);
  file_ = std::move(file);
  return "";
}

void RunLock::keep() {
  if (names(cat(root_, "/", kLockName), file_)) return;
  std::string other;
  try {
    make_dirs(root_);
    other = take();
    if (other.empty())
      log::warn("save folder ", root_, ": ", kLockName,
                " was removed while this run uses the folder: it was created again");
  } catch (const Error& e) {  // training needs the folder only when it saves
    if (!std::exchange(told_, true))
      log::warn("save folder ", root_, ": ", kLockName, " was removed and cannot be created again: ", e.what());
    return;
  }
  if (!other.empty() && other != printable(holder_))
    throw Error(cat("save folder ", root_, " is in use by another run (", other, ") since its ", kLockName,
                    " was removed: this run ends and saves nothing more there; to run both, give one of "
                    "them another save folder"));
}

}  // namespace athanor
