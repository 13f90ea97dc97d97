// Definitions that override libc's in this program; each performs the real call by syscall(2).
#include "tests/checkpoint/faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <fstream>
#include <mutex>
#include <sstream>

namespace athanor::test::faults {
namespace {

// The interposed functions have no argument for this state, so this test program keeps it in globals.
struct State {
  bool active = false;
  Plan plan;
  std::vector<Call> calls;
  int reads = 0;
  bool reached = false;
  bool interrupt = false;
  int log = -1;
};
State& state() {
  static State s;
  return s;
}

// Verification calls these functions from several threads. A scope begins and ends only while those threads do not run.
std::mutex& calls_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string path_of(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path);
  return n > 0 ? std::string(path, size_t(n)) : "?";
}

// Notes the call; true if it is to fail (errno is set).
bool enter(const char* name, const std::string& path, const std::string& to = "") {
  State& s = state();
  if (!s.active) return false;
  const std::lock_guard lock(calls_mutex());
  const int number = int(s.calls.size());
  s.calls.push_back({name, path, to});
  if (number == s.plan.die_at) _exit(77);
  if (s.log >= 0) {
    const std::string line = std::string(name) + "\t" + path + "\t" + to + "\n";
    (void)!syscall(SYS_write, s.log, line.data(), line.size());
  }
  if (number != s.plan.fail_at) return false;
  s.reached = true;
  errno = s.plan.error;
  return true;
}

// True for the read that is bad, whose result is set.
bool bad_read(ssize_t& result) {
  State& s = state();
  if (!s.active) return false;
  const std::lock_guard lock(calls_mutex());
  if (s.reads++ != s.plan.bad_read) return false;
  s.reached = true;
  errno = s.plan.error;
  result = s.plan.error == 0 ? 0 : -1;
  return true;
}

// Cuts a transfer short and interrupts every second one; true if this one is interrupted.
bool hinder(size_t& bytes) {
  State& s = state();
  if (!s.active || !s.plan.short_writes) return false;
  const std::lock_guard lock(calls_mutex());
  bytes = std::min<size_t>(bytes, 7);
  s.interrupt = !s.interrupt;
  errno = EINTR;
  return s.interrupt;
}

}  // namespace

Scope::Scope(const Plan& plan) {
  State& s = state();
  s = {};
  s.plan = plan;
  if (!plan.log.empty())
    s.log = int(syscall(SYS_openat, AT_FDCWD, plan.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  s.active = true;
}

Scope::~Scope() {
  state().active = false;
  if (state().log >= 0) syscall(SYS_close, state().log);
}

const std::vector<Call>& calls() { return state().calls; }
bool fault_reached() { return state().reached; }

std::vector<Call> read_log(const std::string& path) {
  std::vector<Call> calls;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    Call& c = calls.emplace_back();
    std::getline(fields, c.name, '\t');
    std::getline(fields, c.path, '\t');
    std::getline(fields, c.to, '\t');
  }
  return calls;
}

}  // namespace athanor::test::faults

namespace faults = athanor::test::faults;

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  if (faults::state().active && faults::enter("write", faults::path_of(fd))) return -1;
  if (faults::hinder(bytes)) return -1;
  return syscall(SYS_write, fd, data, bytes);
}

ssize_t read(int fd, void* data, size_t bytes) {
  ssize_t result = 0;
  return faults::bad_read(result) ? result : syscall(SYS_read, fd, data, bytes);
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  ssize_t result = 0;
  if (faults::bad_read(result)) return result;
  if (faults::hinder(bytes)) return -1;
  return syscall(SYS_pread64, fd, data, bytes, offset);
}

int fsync(int fd) {
  if (faults::state().active && faults::enter("fsync", faults::path_of(fd))) return -1;
  return int(syscall(SYS_fsync, fd));
}

int close(int fd) {
  // The descriptor is closed even if the call is to fail, as on Linux.
  const bool fails = faults::state().active && faults::enter("close", faults::path_of(fd));
  const int error = errno, result = int(syscall(SYS_close, fd));
  if (!fails) return result;
  errno = error;
  return -1;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (faults::state().active && faults::enter("fallocate", faults::path_of(fd))) return -1;
  return int(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  if (faults::enter("open", path)) return -1;
  return int(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (faults::enter("mkdir", path)) return -1;
  return int(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int rename(const char* from, const char* to) noexcept {
  if (faults::enter("rename", from, to)) return -1;
  return int(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  if (faults::state().active && faults::state().plan.no_exchange) {
    errno = EINVAL;
    return -1;
  }
  if (faults::enter("exchange", from, to)) return -1;
  return int(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}

int unlinkat(int dir, const char* path, int flags) noexcept {  // std::filesystem removes by it
  if (faults::state().active && faults::enter("unlink", dir == AT_FDCWD ? path : faults::path_of(dir) + "/" + path))
    return -1;
  return int(syscall(SYS_unlinkat, dir, path, flags));
}

}  // extern "C"
