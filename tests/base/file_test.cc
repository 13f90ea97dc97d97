// Laws of files: replacement is all or nothing, limits hold before memory is taken, errors name path, reason and
// remedy.
#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "tests/expect_error.h"
#include "tests/temp_dir.h"

namespace {
int no_locks = 0;  // errno of flock() on a file system without locks; 0: it has some
}

// Linked in the place of libc's function; the name in C++ differs from that of libc's struct.
extern "C" int fake_flock(int fd, int operation) noexcept __asm__("flock");
extern "C" int fake_flock(int fd, int operation) noexcept {
  if (no_locks == 0) return int(syscall(SYS_flock, fd, operation));
  errno = no_locks;
  return -1;
}

namespace athanor {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view s) { return std::as_bytes(std::span(s)); }

class File : public ::testing::Test {
 protected:
  testing::TempDir folder;
  const std::string& dir = folder.path();
  std::string at(std::string_view name) const { return cat(dir, "/", name); }
  int count() const { return int(std::distance(fs::directory_iterator(dir), fs::directory_iterator())); }
};

TEST_F(File, LocksAreExclusive) {
  const Fd first = create_below(dir, "lock", O_RDWR), second = create_below(dir, "lock", O_RDWR);
  EXPECT_TRUE(lock_file(first, at("lock"), "two runs"));
  EXPECT_FALSE(lock_file(second, at("lock"), "two runs"));
}

// Lustre without -o flock, NFS without its lock service, some FUSE.
TEST_F(File, FileSystemWithoutLocksOnlyWarns) {
  const Fd file = create_below(dir, "lock", O_RDWR);
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP, EIO}) {
    no_locks = error;
    ::testing::internal::CaptureStderr();
    if (error == EIO)
      EXPECT_ERROR((void)lock_file(file, at("lock"), "two runs"), "locking", "lock", "Input/output error");
    else
      EXPECT_TRUE(lock_file(file, at("lock"), "two runs")) << error;
    no_locks = 0;
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("does not support file locks") != said.npos && said.find("two runs") != said.npos, error != EIO)
        << said;
  }
}

// Other users with write access to a folder must not redirect our writes through links.
TEST_F(File, PlantedLinksAreNotFollowed) {
  write_file(at("victim"), "precious");
  fs::create_directory(at("run"));
  fs::create_directory(at("elsewhere"));
  fs::create_symlink(at("victim"), at("run/log"));
  fs::create_symlink(at("elsewhere"), at("run/sub"));
  fs::create_symlink(at("nowhere"), at("run/dangling"));
  EXPECT_ERROR(create_below(at("run"), "log", O_WRONLY | O_APPEND), "run/log", "symbolic link", "remove it");
  EXPECT_ERROR(create_below(at("run"), "sub/file", O_WRONLY), "run/sub", "symbolic link");
  EXPECT_ERROR(create_below(at("run"), "dangling", O_WRONLY), "run/dangling", "symbolic link");
  EXPECT_ERROR(create_below(at("run"), "../victim", O_WRONLY), "expected a path");
  EXPECT_ERROR(OutputFile(at("run/log")), "run/log", "File exists");
  EXPECT_ERROR(make_dirs(at("run/dangling")), "run/dangling", "link to a folder that does not exist");
  EXPECT_ERROR(make_new_dir(at("run/sub")), "run/sub", "File exists");
  ASSERT_EQ(mkfifo(at("run/pipe").c_str(), 0600), 0);
  EXPECT_ERROR(create_below(at("run"), "pipe", O_WRONLY), "run/pipe");
  EXPECT_ERROR(read_file(at("run/pipe"), 10), "run/pipe", "regular file");
  write_all(create_anew(at("run/log"), O_WRONLY), bytes_of("new"), "log");
  EXPECT_EQ(read_file(at("run/log"), 100), "new");
  EXPECT_EQ(read_file(at("victim"), 100), "precious");
  EXPECT_FALSE(fs::exists(at("nowhere")));
  EXPECT_TRUE(fs::is_empty(at("elsewhere")));
  write_all(create_below(dir, "a/b/c", O_WRONLY), bytes_of("deep"), "c");
  EXPECT_EQ(read_file(at("a/b/c"), 100), "deep");
  fs::create_symlink(dir, at("link"));  // the folder itself may be reached through a link: the user named it
  write_all(create_below(at("link"), "through", O_WRONLY), bytes_of("x"), "through");
  EXPECT_EQ(read_file(at("through"), 100), "x");
}

TEST_F(File, WriteFileReplacesAndLeavesNothingElse) {
  write_file(at("x"), "old");
  EXPECT_EQ(read_file(at("x"), 100), "old");
  write_file(at("x"), "new content");
  EXPECT_EQ(read_file(at("x"), 100), "new content");
  write_file(at("empty"), "");
  EXPECT_EQ(read_file(at("empty"), 0), "");
  EXPECT_EQ(count(), 2);
}

TEST_F(File, UncommittedWriteKeepsTheOldContent) {
  write_file(at("x"), "old");
  {
    AtomicFile f(at("x"));
    f.out().write("half of the ne");
    EXPECT_EQ(read_file(at("x"), 100), "old");
    EXPECT_EQ(count(), 2);
  }
  EXPECT_EQ(read_file(at("x"), 100), "old");
  EXPECT_EQ(count(), 1);
}

TEST_F(File, AtomicFilesToOnePathDoNotDisturbEachOther) {
  AtomicFile a(at("x")), b(at("x"));
  a.out().write("from a");
  b.out().write("from b, longer");
  a.commit();
  EXPECT_EQ(read_file(at("x"), 100), "from a");
  b.commit();
  EXPECT_EQ(read_file(at("x"), 100), "from b, longer");
  EXPECT_EQ(count(), 1);
}

TEST_F(File, AtomicFileReplacesNeitherFoldersNorDevices) {
  EXPECT_ERROR(write_file(dir, "x"), dir, "expected a file, found a folder");
  fs::create_symlink("/proc/self/fd/1", at("stdout"));  // as /dev/stdout is
  EXPECT_ERROR(write_file(at("stdout"), "x"), at("stdout"), "expected a regular file or a new name", "a device");
  EXPECT_TRUE(fs::is_symlink(at("stdout")));
  EXPECT_EQ(count(), 1);
  if (mknod(at("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) return;  // needs root
  EXPECT_ERROR(write_file(at("null"), "x"), at("null"), "a device", "another name");
  EXPECT_TRUE(fs::is_character_file(at("null")));
}

TEST_F(File, ConcurrentReadersNeverSeeAMixture) {
  const std::string old_text(10000, 'o'), new_text(20000, 'n');
  write_file(at("x"), old_text);
  std::jthread writer([&](std::stop_token stop) {
    for (bool even = true; !stop.stop_requested(); even = !even) write_file(at("x"), even ? new_text : old_text);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read_file(at("x"), 100000);
    ASSERT_TRUE(seen == old_text || seen == new_text) << seen.size();
  }
}

TEST_F(File, ReadFileRefusesMoreThanItsLimit) {
  for (int64_t size : {0, 1, 65535, 65536, 65537, 300000}) {
    write_file(at("x"), std::string(size_t(size), 'q'));
    EXPECT_EQ(int64_t(read_file(at("x"), size).size()), size);
    if (size > 0) EXPECT_ERROR(read_file(at("x"), size - 1), at("x"), "more than", std::to_string(size - 1));
  }
  EXPECT_ERROR(read_all(open_file("/dev/zero", O_RDONLY), 1000, "/dev/zero"), "/dev/zero",
               "1000 bytes allowed");  // endless
}

TEST_F(File, ErrorsNamePathReasonAndRemedy) {
  EXPECT_ERROR(read_file(at("none"), 10), "opening", at("none"), "No such file", "check the path");
  EXPECT_ERROR(read_file(dir, 10), dir, "found a folder");
  write_file(at("file"), "x");
  EXPECT_ERROR(write_file(at("file/below"), "x"), "creating", "file/below: Not a directory", "is a file, not a folder");
  EXPECT_ERROR(make_dirs(at("file/a/b")), at("file"), "Not a directory");
  EXPECT_ERROR(make_dirs(at("file")), at("file"), "Not a directory", "is a file, not a folder");
  EXPECT_ERROR(OutputFile(at("file")), at("file"), "File exists", "another name");
  EXPECT_ERROR(make_dirs("/proc/nothing"), "/proc/nothing");
  EXPECT_ERROR(write_file("/proc/self/athanor", "x"), "creating", "/proc/self/");
  EXPECT_ERROR(write_file(at("none/x"), "x"), at("none/x: No such file"));
  EXPECT_ERROR(throw_io("writing", at("x"), ENOSPC, 12345), at("x"), "No space left", "12345 more bytes were needed",
               "bytes are free");
  EXPECT_ERROR(throw_io("writing", at("x"), EDQUOT, 5), "5 more bytes", "quota");
  EXPECT_ERROR(throw_io("writing", at("x"), EROFS), "Read-only", "mounted read-only");
  EXPECT_ERROR(throw_io("writing", at("x"), EACCES), "Permission denied", "user id", "owner and mode");
  EXPECT_ERROR(throw_io("reading", at("x"), EIO), "Input/output error", "kernel log");
}

TEST_F(File, OpenRegularNeverHangsOnAPipeAndRefusesFolders) {
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(open_regular(at("pipe")), at("pipe"), "expected a regular file", "pipe");
  EXPECT_ERROR(open_regular(dir), dir, "expected a regular file", "a folder");
  EXPECT_ERROR(open_regular("/dev/null"), "expected a regular file");
}

TEST_F(File, PreadAllSaysWhereATruncatedFileEnds) {
  write_file(at("x"), "0123456789");
  const Fd f = open_regular(at("x"));
  EXPECT_EQ(file_bytes(f, at("x")), 10);
  char buffer[8];
  pread_all(f, std::as_writable_bytes(std::span(buffer, 4)), 6, at("x"));
  EXPECT_EQ(std::string_view(buffer, 4), "6789");
  EXPECT_ERROR(pread_all(f, std::as_writable_bytes(std::span(buffer, 5)), 6, at("x")), at("x"), "ends at byte 10",
               "1 more bytes", "truncated");
}

TEST_F(File, WriteAllSurvivesSignalsAndShortWrites) {
  // A slow reader on a pipe and a 1 ms timer without SA_RESTART: writes are cut short and interrupted many times.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Fd in(ends[0]), out(ends[1]);
  struct sigaction act = {}, before;
  act.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &act, &before), 0);
  std::string sent(3'000'000, 0), got;
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = char(i * 2654435761u >> 13);
  std::jthread reader([&] {
    sigset_t block;  // the writer is the one to be interrupted
    sigemptyset(&block);
    sigaddset(&block, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &block, nullptr);
    char piece[30000];
    for (ssize_t n; (n = read(in.get(), piece, sizeof piece)) > 0;) got.append(piece, size_t(n)), usleep(200);
  });
  const itimerval fast = {{0, 1000}, {0, 1000}}, off = {};
  setitimer(ITIMER_REAL, &fast, nullptr);
  write_all(out, bytes_of(sent), "pipe");
  setitimer(ITIMER_REAL, &off, nullptr);
  out = Fd();
  reader.join();
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_TRUE(got == sent);
}

TEST_F(File, FileSizeLimitIsAnErrorWithTheBytesNeededAndLeavesTheOldFile) {
  write_file(at("x"), "old");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string m = error_of([&] { write_file(at("x"), std::string(5000, 'n')); });
    const bool told = m.find("File too large") != m.npos && m.find("4000 more bytes were needed") != m.npos &&
                      m.find("ulimit -f") != m.npos;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(at("x"), 100), "old");
  EXPECT_EQ(count(), 1);
}

TEST_F(File, AFullDiskIsAnError) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "this system has no /dev/full";
  const Fd full = open_file("/dev/full", O_WRONLY);
  EXPECT_ERROR(write_all(full, bytes_of("abc"), "/dev/full"), "No space left", "3 more bytes were needed");
}

TEST_F(File, OutputFileWritesMoreThanOneFlushChunk) {
  std::string big((size_t{65} << 20) + 3, 'b');
  OutputFile f(at("big"));
  f.reserve(int64_t(big.size()) + 2);
  f.write(big);
  f.write("ok");
  EXPECT_EQ(f.written(), int64_t(big.size()) + 2);
  f.finish();
  EXPECT_EQ(fs::file_size(at("big")), big.size() + 2);
  char tail[3];
  pread_all(open_regular(at("big")), std::as_writable_bytes(std::span(tail)), int64_t(big.size()) - 1, at("big"));
  EXPECT_EQ(std::string_view(tail, 3), "bok");
}

TEST_F(File, ReservedButUnwrittenSpaceIsNotPartOfTheFile) {
  OutputFile f(at("x"));
  f.reserve(1 << 20);
  f.write("abc");
  f.finish();
  EXPECT_EQ(fs::file_size(at("x")), 3u);
}

TEST_F(File, ReservingMoreThanTheFreeSpaceFailsAtOnceAndAllocatesNothing) {
  OutputFile f(at("x"));
  EXPECT_ERROR(f.reserve(int64_t{1} << 60), at("x"), "No space left", std::to_string(int64_t{1} << 60),
               "bytes are free");
  struct stat info;
  ASSERT_EQ(stat(at("x").c_str(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
}

TEST_F(File, MakeDirsIsIdempotentAndNested) {
  make_dirs(at("a/b/c"));
  make_dirs(at("a/b/c/"));
  make_dirs(at("a//d/"));
  make_dirs(at("a"));
  EXPECT_TRUE(fs::is_directory(at("a/b/c")) && fs::is_directory(at("a/d")));
  make_dirs("/");
  EXPECT_ERROR(make_dirs(""), "creating the folder");
}

TEST(ExpandHome, ExpandsOnlyTheOwnHome) {
  const char* before = std::getenv("HOME");
  const std::string kept = before ? before : "";
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(expand_home("~/runs/a"), "/home/me/runs/a");
  EXPECT_EQ(expand_home("~"), "/home/me");
  for (const char* path : {"", "runs/~/a", "./~/a", "/x", "~backup.bin"}) EXPECT_EQ(expand_home(path), path);
  expect_error([] { expand_home("~other/a"); }, {"~other/a", "expected ~/"});
  unsetenv("HOME");
  expect_error([] { expand_home("~/a"); }, {"~/a", "HOME, which is not set"});
  if (before) setenv("HOME", kept.c_str(), 1);
}

TEST(MakeDirs, NeverMakesAFolderNamedTilde) {
  for (const char* path : {"~", "~/a/b"}) expect_error([&] { make_dirs(path); }, {path, "the shell did not expand ~"});
  EXPECT_FALSE(std::filesystem::exists("~"));
}

TEST_F(File, RemoveTreeDoesNotFollowLinks) {
  make_dirs(at("keep"));
  write_file(at("keep/x"), "x");
  make_dirs(at("gone/deep"));
  fs::create_directory_symlink(at("keep"), at("gone/link"));
  remove_tree(at("gone"));
  remove_tree(at("gone"));
  EXPECT_FALSE(fs::exists(at("gone")));
  EXPECT_EQ(read_file(at("keep/x"), 9), "x");
}

TEST_F(File, MappingShowsTheBytesAndMayBeEmpty) {
  write_file(at("x"), "mapped");
  write_file(at("empty"), "");
  MappedFile m(at("x"));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(m.bytes().data()), m.bytes().size()), "mapped");
  MappedFile moved = std::move(m);
  EXPECT_TRUE(m.bytes().empty());
  EXPECT_EQ(moved.bytes().size(), 6u);
  EXPECT_TRUE(MappedFile(at("empty")).bytes().empty());
  EXPECT_ERROR(MappedFile(at("none")), at("none"), "No such file");
}

TEST_F(File, FdClosesOnceAndMoves) {
  write_file(at("x"), "x");
  Fd a = open_regular(at("x"));
  const int raw = a.get();
  Fd b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(b.get(), raw);
  EXPECT_NE(fcntl(raw, F_GETFD) & FD_CLOEXEC, 0);
  b = Fd();
  EXPECT_EQ(fcntl(raw, F_GETFD), -1);
}

TEST(ParentDir, StopsAtTheRootAndTheWorkingFolder) {
  EXPECT_EQ(parent_dir("a"), ".");
  EXPECT_EQ(parent_dir("/a"), "/");
  EXPECT_EQ(parent_dir("/a/b"), "/a");
  EXPECT_EQ(parent_dir("a/b"), "a");
}

}  // namespace
}  // namespace athanor
