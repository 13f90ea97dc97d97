// RunLock: one run per save folder, and the cleanup that only the lock's holder may do.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/layout.h"
#include "checkpoint/printable.h"
#include "checkpoint/store.h"

namespace athanor {
namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// A crash may leave a step that was moved aside while its replacement was renamed into place: keeps the complete one.
void settle_moved_aside(const std::string& root, const std::string& old_path, int64_t step) {
  const std::string target = cat(root, "/", step_folder(step));
  const Verification v = verify_checkpoint(target, Depth::sizes);
  if (v.unreadable)
    throw Error(cat(target, ": cannot be read, so that nothing says whether it or ", old_path,
                    " is to stay: ", v.problem, "; make it readable, or remove one of the two"));
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

}  // namespace

RunLock::RunLock(std::string root) : root_(std::move(root)) {
  make_dirs(root_);
  const std::string path = cat(root_, "/", kLockName);
  file_ = create_below(root_, std::string(kLockName), O_RDWR);
  if (!lock_file(file_, path, cat("two runs in ", root_))) {
    const std::string holder = read_all(file_, 4096, path);
    throw Error(cat("save folder ", root_, " is in use by another run (",
                    holder.empty() ? "unknown holder" : printable(holder.substr(0, holder.find('\n'))),
                    "): wait for it, stop it, or choose another save folder"));
  }
  if (ftruncate(file_.get(), 0) != 0) throw_io("writing", path, errno);
  const std::string holder = cat("host ", host_name(), ", process ", getpid(), "\n");
  write_all(file_, std::as_bytes(std::span(holder)), path);
  clear_leftovers(root_);
}

}  // namespace athanor
