#include "comm/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "base/crypto.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

namespace athanor {
namespace {

constexpr int64_t kMaxSecret = 4096;
constexpr size_t kLeast = 16;  // bytes: shorter ones can be guessed

std::string checked(std::string secret, const std::string& where) {
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kLeast)
    throw Error(cat(where, ": a secret of ", secret.size(), " characters can be guessed; take ", kLeast,
                    " or more, as from `head -c 32 /dev/urandom | base64`"),
                Exit::usage);
  return secret;
}

void require_private(const struct stat& s, const std::string& path) {
  if (s.st_uid != geteuid() || (s.st_mode & 077) != 0)
    throw Error(cat(path, ": others may read or own it (owner ", s.st_uid, ", mode 0", (s.st_mode & 0700) >> 6,
                    (s.st_mode & 070) >> 3, s.st_mode & 07,
                    "); chown it to yourself and chmod it so that only you can read it"),
                Exit::usage);
}

bool is_private_folder(const std::string& path) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 077) == 0;
}

// A folder that only this user can enter. In a shared parent folder another user may own the name; then the next name
// is tried. All ranks on the machine find the same one.
std::string private_folder(const EnvironmentVariables& environment) {
  constexpr int kMostTaken = 100;
  const std::string run_time = value_of(environment, "XDG_RUNTIME_DIR"), temporary = value_of(environment, "TMPDIR");
  const std::string folder =
      run_time.empty() ? cat(temporary.empty() ? "/tmp" : temporary, "/athanor-", geteuid()) : run_time + "/athanor";
  for (int k = 0; k < kMostTaken; ++k) {
    std::string path = k == 0 ? folder : cat(folder, "-", k);
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw_io("creating the folder", path, errno);
    if (is_private_folder(path)) return path;
  }
  throw Error(cat(folder, ": it and the folders ", folder, "-1 to -", kMostTaken - 1,
                  " are not private to this user; set XDG_RUNTIME_DIR or TMPDIR to a folder that only you may write"),
              Exit::usage);
}

// A network file system remembers that a name was absent until it detects that the folder has changed; opening the
// folder makes it check.
Fd open_to_read(const std::string& path) {
  const Fd folder(open(parent_dir(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Returns "" if the file does not exist.
std::string read_private(const std::string& path) {
  const Fd file = open_to_read(path);
  if (!file && errno == ENOENT) return "";
  if (!file) throw_io("opening", path, errno);
  struct stat s {};
  if (fstat(file.get(), &s) != 0) throw_io("reading owner and mode of", path, errno);
  if (!S_ISREG(s.st_mode)) throw Error(cat(path, ": expected a regular file with a secret"), Exit::usage);
  require_private(s, path);
  return read_all(file, kMaxSecret, path);
}

}  // namespace

JobSecret::JobSecret(const RankInfo& ranks, const EnvironmentVariables& environment, const std::string& save_folder)
    : value_(value_of(environment, "ATHANOR_SECRET")) {
  if (!value_.empty()) {
    value_ = checked(value_, "ATHANOR_SECRET");
    return;
  }
  path_ = value_of(environment, "ATHANOR_SECRET_FILE");
  if (!path_.empty()) {
    struct stat s {};
    if (lstat(path_.c_str(), &s) != 0) throw_io("opening", path_, errno);
    value_ = checked(read_private(path_), path_);
    return;
  }
  const bool one_machine = is_loopback(ranks.host);
  if (!one_machine && save_folder.empty())
    throw Error(cat("ranks on several machines (rendezvous at ", ranks.host,
                    ") need a shared secret to authenticate each other: rank 0 writes one to the `save` folder, but "
                    "this run has none; write one to a file of mode 0600 that all ranks can read, `head -c 32 "
                    "/dev/urandom | base64 > FILE`, and set ATHANOR_SECRET_FILE to it"),
                Exit::usage);
  if (!one_machine && ranks.rank == 0) make_dirs(save_folder);
  // The name is hidden, since the save folder belongs to a run.
  path_ = cat(one_machine ? private_folder(environment) + "/" : save_folder + "/.", "job-", ranks.port, "-",
              to_hex(cat(stream_of(ranks.job))));
  if (ranks.rank != 0) {
    awaited_ = path_;
    return;
  }
  value_ = to_hex(random_bytes(32));
  ours_ = true;
}

void JobSecret::publish(int port) {
  if (!ours_) return;
  const std::string fresh = cat(path_, ".", getpid());
  unlink(fresh.c_str());  // left by an earlier process with this id
  {
    const Fd file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) throw_io("creating", fresh, errno);
    const std::string text = cat(value_, "\n", port, "\n");
    write_all(file, std::as_bytes(std::span(text)), fresh);
  }
  rename_path(fresh, path_);
  try {
    (void)read_private(path_);
  } catch (const Error& e) {  // a file system that keeps neither mode nor owner
    unlink(path_.c_str());
    throw Error(cat(e.what(), "; where the file system of `save` cannot keep a secret, set ATHANOR_SECRET_FILE"),
                Exit::usage);
  }
}

void JobSecret::remove() {
  try {
    // A file without the prefix is another job's.
    if (std::exchange(ours_, false) && read_private(path_).starts_with(value_)) unlink(path_.c_str());
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the file is no longer ours
  }
}

JobSecret::~JobSecret() { remove(); }

JobKey JobSecret::read() const {
  if (!value_.empty()) return {value_, 0};
  const std::string text = read_private(path_);
  if (text.empty()) return {};
  const size_t line = text.find('\n');
  JobKey key{checked(text.substr(0, line), path_), 0};
  if (line != std::string::npos) std::from_chars(text.data() + line + 1, text.data() + text.size(), key.port);
  return key;
}

}  // namespace athanor
