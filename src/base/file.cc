// POSIX calls behind file.h; each result is checked and each error message contains a remedy.
#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/process_mark.h"

namespace athanor {
namespace {

// One write or read call moves at most 0x7ffff000 bytes [write(2)]; smaller pieces keep a failing disk responsive.
constexpr size_t kMaxTransfer = size_t{1} << 30;
// Starts writeback in pieces of this size while more is being written, so that the final fsync has little to do.
constexpr int64_t kFlushBytes = int64_t{64} << 20;

std::string space_left(const std::string& path) {
  const auto free = free_bytes(parent_dir(path));
  return free ? cat(", ", *free, " bytes are free") : "";
}

std::string remedy(int error, const std::string& path, int64_t bytes_needed) {
  if (error == ENOSPC || error == EDQUOT)
    return cat(bytes_needed > 0 ? cat(bytes_needed, " more bytes were needed") : "more space was needed",
               error == ENOSPC ? space_left(path) : ", the quota is used up", ": free some or choose another folder");
  if (error == EROFS) return "the file system is mounted read-only: remount it or choose another folder";
  if (error == EACCES || error == EPERM)
    return cat("user id ", geteuid(), " lacks the permission: check owner and mode, or choose another folder");
  if (error == ENOENT) return "check the path";
  if (error == ENOTDIR) return "a part of the path is a file, not a folder: remove it or choose another path";
  if (error == EISDIR) return "expected a file, found a folder";
  if (error == EEXIST) return "remove it or choose another name";
  if (error == EMFILE || error == ENFILE) return "too many open files: raise the limit (ulimit -n)";
  if (error == EFBIG)
    return cat(bytes_needed > 0 ? cat(bytes_needed, " more bytes were needed: ") : "",
               "raise the file size limit (ulimit -f) or choose another file system");
  if (error == EIO) return "the disk or network file system failed: see the kernel log";
  if (error == ESTALE) return "the network file system was lost: mount it again";
  return "";
}

// Retries a call that signals interrupt.
template <class Call>
auto retry(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

struct WriteCount {
  int64_t& written;  // bytes written so far, also when a later write fails
  int64_t total;     // planned file size; the rest is reported when the disk is full
};

void write_counted(const Fd& file, std::span<const std::byte> bytes, const std::string& path, WriteCount count) {
  while (!bytes.empty()) {
    const ssize_t n = retry([&] { return ::write(file.get(), bytes.data(), std::min(bytes.size(), kMaxTransfer)); });
    if (n <= 0) throw_io("writing", path, n < 0 ? errno : ENOSPC, count.total - count.written);
    bytes = bytes.subspan(size_t(n));
    count.written += n;
  }
}

void sync_fd(const Fd& file, const std::string& path) {
  if (retry([&] { return fsync(file.get()); }) < 0) throw_io("syncing", path, errno);
}

[[noreturn]] void throw_create(const Fd& folder, const std::string& name, const std::string& path, int error) {
  struct stat info;
  if (error != EEXIST && fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode))
    throw Error(cat("creating ", path,
                    ": it is a symbolic link, which is not followed: remove it, or give the path that it points to"));
  throw_io("creating", path, error);
}

// Refuses missing parents, which the temporary file's error would name by its hidden name. Refuses folders and devices:
// renaming a file over /dev/null or /dev/stdout would take it from the whole system.
void require_replaceable(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT || stat(parent_dir(path).c_str(), &info) != 0) throw_io("creating", path, errno);
    return;
  }
  if (S_ISDIR(info.st_mode)) throw_io("creating", path, EISDIR);
  std::error_code error;
  const bool leads_to_proc =  // as /dev/stdout does
      S_ISLNK(info.st_mode) && std::filesystem::read_symlink(path, error).native().starts_with("/proc/");
  if (leads_to_proc || S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))
    throw Error(cat("creating ", path,
                    ": expected a regular file or a new name, found a device, which the file would replace: choose "
                    "another name"),
                Exit::usage);
}

OutputFile open_tmp_for(const std::string& path) {
  require_replaceable(path);
  const std::string stem = cat(parent_dir(path), "/.", base_name(path), ".", process_mark(), ".");
  // A crashed process with the same id may have left a file of this name: try the next number.
  for (int k = 0;; ++k) {
    std::string tmp = cat(stem, k, ".tmp");
    if (k == 1000 || access(tmp.c_str(), F_OK) != 0) return OutputFile(std::move(tmp));
  }
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

void throw_io(std::string_view doing, const std::string& path, int error, int64_t bytes_needed) {
  const std::string help = remedy(error, path, bytes_needed);
  throw Error(cat(doing, " ", path, ": ", std::generic_category().message(error), help.empty() ? "" : ": ", help));
}

std::string parent_dir(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

Fd open_file(const std::string& path, int flags) {
  const int fd = retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC); });
  if (fd < 0) throw_io("opening", path, errno);
  return Fd(fd);
}

Fd create_below(const std::string& folder, const std::string& name, int flags) {
  Fd at(retry([&] { return ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (!at) throw_io("creating", cat(folder, "/", name), errno);
  std::string path = folder == "/" ? "" : folder;
  for (size_t begin = 0;;) {
    const size_t slash = name.find('/', begin);
    const std::string part = name.substr(begin, slash - begin);
    if (part.empty() || part == "." || part == "..")
      throw Error(cat("creating ", folder, "/", name, ": expected a path that ends in the name of a file"),
                  Exit::usage);
    path += "/" + part;
    const bool last = slash == std::string::npos;
    if (!last && mkdirat(at.get(), part.c_str(), 0777) != 0 && errno != EEXIST)
      throw_io("creating the folder", path, errno);
    // O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
    const int how = (last ? flags | O_CREAT | O_NONBLOCK : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC;
    const int fd = retry([&] { return ::openat(at.get(), part.c_str(), how, 0666); });
    if (fd < 0) throw_create(at, part, path, errno);
    at = Fd(fd);
    if (last) return at;
    begin = slash + 1;
  }
}

Fd create_anew(const std::string& path, int flags) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_io("removing", path, errno);
  return create_below(parent_dir(path), base_name(path), flags | O_EXCL);
}

Fd open_regular(const std::string& path) {
  Fd file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);  // O_NONBLOCK: a pipe does not block
  struct stat info;
  if (fstat(file.get(), &info) != 0) throw_io("reading the size of", path, errno);
  if (!S_ISREG(info.st_mode))
    throw Error(cat("opening ", path, ": expected a regular file, found ",
                    S_ISDIR(info.st_mode) ? "a folder" : "a pipe, socket or device"));
  return file;
}

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void require_file_descriptors(int64_t more, std::string_view what) {
  raise_file_limit();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::error_code failed;
  int64_t open = 0;
  for (std::filesystem::directory_iterator fd("/proc/self/fd", failed), end; !failed && fd != end; fd.increment(failed))
    ++open;
  if (failed && failed != std::errc::too_many_files_open) return;  // without /proc, open() reports a limit
  if (!failed && open + more <= int64_t(limit.rlim_cur)) return;
  throw Error(cat(what, " need ", more, " more file descriptors, but this process may have ", limit.rlim_cur, " in all",
                  failed ? "" : cat(" and has ", open), ": raise the limit (ulimit -n)"));
}

int64_t file_bytes(const Fd& file, const std::string& path) {
  struct stat info;
  if (fstat(file.get(), &info) != 0) throw_io("reading the size of", path, errno);
  return int64_t(info.st_size);
}

void write_all(const Fd& file, std::span<const std::byte> bytes, const std::string& path) {
  int64_t written = 0;
  write_counted(file, bytes, path, {.written = written, .total = int64_t(bytes.size())});
}

std::optional<int64_t> free_bytes(const std::string& folder) {
  struct statvfs fs;
  if (statvfs(folder.c_str(), &fs) != 0 || fs.f_blocks == 0) return std::nullopt;
  return int64_t(fs.f_bavail) * int64_t(fs.f_frsize);
}

bool lock_file(const Fd& file, const std::string& path, std::string_view what) {
  if (retry([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  if (errno != ENOSYS && errno != ENOLCK && errno != EOPNOTSUPP) throw_io("locking", path, errno);
  log::warn("locking ", path, ": ", std::generic_category().message(errno),
            ": this file system does not support file locks, so nothing prevents ", what,
            ": make sure that only one of them runs");
  return true;
}

void pread_all(const Fd& file, std::span<std::byte> bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const size_t want = std::min(bytes.size(), kMaxTransfer);
    const ssize_t n = retry([&] { return ::pread(file.get(), bytes.data(), want, offset); });
    if (n < 0) throw_io("reading", path, errno);
    if (n == 0)
      throw Error(cat("reading ", path, ": it ends at byte ", offset, ", ", bytes.size(),
                      " more bytes were expected: the file was truncated"));
    bytes = bytes.subspan(size_t(n));
    offset += n;
  }
}

std::string read_all(const Fd& file, int64_t max_bytes, const std::string& path) {
  struct stat info;
  const bool has_size = fstat(file.get(), &info) == 0 && info.st_size > 0;
  // One byte more than the size, to see the end without growing; one more than the limit, to distinguish "exactly
  // max_bytes" from "more".
  const size_t limit = size_t(max_bytes) + 1;
  std::string text(std::min(limit, has_size ? size_t(info.st_size) + 1 : size_t{1} << 16), '\0');
  for (size_t have = 0;;) {
    if (have == text.size()) text.resize(std::min(limit, 2 * have));
    const ssize_t n = retry([&] { return ::read(file.get(), text.data() + have, text.size() - have); });
    if (n < 0) throw_io("reading", path, errno);
    have += size_t(n);
    if (have == limit) throw Error(cat("reading ", path, ": it holds more than the ", max_bytes, " bytes allowed"));
    if (n > 0) continue;
    text.resize(have);
    return text;
  }
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  return read_all(open_regular(path), max_bytes, path);
}

void make_new_dir(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) throw_io("creating the folder", path, errno);
  fsync_dir(parent_dir(path));
}

void make_dirs(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return;
  // The path comes from a source that no shell has expanded, and hardly anyone wants a folder named "~".
  if (path == "~" || path.starts_with("~/"))
    throw Error(cat("creating the folder ", path,
                    ": the shell did not expand ~ (it does not in --option=~/x): write $HOME, or ./", path,
                    " for a folder of that name"),
                Exit::usage);
  const std::string clean = path.size() > 1 && path.back() == '/' ? path.substr(0, path.size() - 1) : path;
  const std::string parent = parent_dir(clean);
  if (parent != clean) make_dirs(parent);
  if (mkdir(clean.c_str(), 0777) != 0) {
    if (errno != EEXIST) throw_io("creating the folder", clean, errno);
    // Either another process created it first, which is fine, or it is not a folder.
    if (stat(clean.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return;
    if (lstat(clean.c_str(), &info) == 0 && S_ISLNK(info.st_mode))
      throw Error(cat("creating the folder ", clean,
                      ": it is a symbolic link to a folder that does not exist: remove it, or create that folder"));
    throw_io("creating the folder", clean, ENOTDIR);
  }
  fsync_dir(parent);
}

void fsync_dir(const std::string& path) {
  const Fd dir = open_file(path, O_RDONLY | O_DIRECTORY);
  // EINVAL: some network file systems cannot sync folders; they order metadata themselves.
  if (retry([&] { return fsync(dir.get()); }) < 0 && errno != EINVAL) throw_io("syncing the folder", path, errno);
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_io(cat("renaming ", from, " to"), to, errno);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_io("removing", path, error.value());
}

std::vector<std::string> folder_names(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(path, error), end;
  for (; !error && it != end; it.increment(error)) names.push_back(it->path().filename().string());
  if (error && error.value() != ENOENT) throw_io("listing the folder", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), file_(create_below(parent_dir(path_), base_name(path_), O_WRONLY | O_EXCL)) {}

void OutputFile::reserve(int64_t total_bytes) {
  total_ = total_bytes;
  if (total_bytes <= 0) return;
  // Checked first: a failing fallocate may have filled the disk before it noticed.
  struct statvfs fs;
  if (fstatvfs(file_.get(), &fs) == 0 && fs.f_blocks > 0 && uint64_t(total_bytes) / fs.f_frsize > fs.f_bfree)
    throw_io("reserving space for", path_, ENOSPC, total_bytes);
  // KEEP_SIZE: the size still tells how much was written. Ignored by file systems without fallocate.
  if (retry([&] { return fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, total_bytes); }) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw_io("reserving space for", path_, errno, total_bytes);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  const int64_t total = std::max(total_, written_ + int64_t(bytes.size()));
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), size_t(kFlushBytes)));
    write_counted(file_, piece, path_, {.written = written_, .total = total});
    bytes = bytes.subspan(piece.size());
    if (written_ - flushed_ < kFlushBytes) continue;
    // Only starts the writeback; its errors are reported by fsync.
    sync_file_range(file_.get(), flushed_, written_ - flushed_, SYNC_FILE_RANGE_WRITE);
    flushed_ = written_;
  }
}

void OutputFile::finish() {
  sync_fd(file_, path_);
  // Network file systems may report a full disk only here. The descriptor is closed even on failure.
  if (::close(file_.release()) != 0 && errno != EINTR) throw_io("closing", path_, errno);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), out_(open_tmp_for(path_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(out_.path().c_str());
}

void AtomicFile::commit() {
  out_.finish();
  rename_path(out_.path(), path_);
  committed_ = true;
  fsync_dir(parent_dir(path_));
}

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.out().write(content);
  file.commit();
}

namespace {

bool is_number(std::string_view part) { return part.find_first_not_of("0123456789") == part.npos; }

// True for .NAME.MARK.tmp, .NAME.MARK.K.tmp, .NAME.MARK.checked and their own temporary names, if all marks
// (process_mark()) are of processes of this host that have ended.
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

void remove_leftovers(const std::string& path) {
  const std::string folder = parent_dir(path);
  for (const std::string& name : folder_names(folder)) {
    if (!is_leftover(name, base_name(path))) continue;
    log::info("removing ", folder, "/", name, ": left by a process that was killed before ", path, " was complete");
    remove_tree(cat(folder, "/", name));
  }
}

MappedFile::MappedFile(const std::string& path) : MappedFile(open_regular(path), path) {}

MappedFile::MappedFile(const Fd& file, const std::string& path) {
  const int64_t size = file_bytes(file, path);
  if (size == 0) return;  // an empty mapping is EINVAL
  void* data = mmap(nullptr, size_t(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw_io("mapping", path, errno);
  bytes_ = {static_cast<const std::byte*>(data), size_t(size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t slash = path.find('/');
  if (slash == std::string::npos && path.size() > 1) return path;  // "~file": a file name that starts with ~
  const char* home = std::getenv("HOME");
  if (slash > 1 && path.size() > 1)
    throw Error(cat(path, ": expected ~/ for the home folder, since ~USER is not expanded: write the full path, or ./",
                    path, " for a folder of that name"),
                Exit::usage);
  if (!home || !*home)
    throw Error(cat(path, ": ~ stands for the folder in HOME, which is not set: set HOME or write the full path"),
                Exit::usage);
  return home + path.substr(1);
}

}  // namespace athanor
