// Verification: the manifest, then file sizes, then a checksum per file. If a file fails, checks its tensors one by one
// to locate the damage.
#include "checkpoint/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"
#include "checkpoint/layout.h"
#include "checkpoint/printable.h"
#include "checkpoint/safetensors.h"

namespace athanor {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kMostThreads = 16;

std::string hash_range(const Fd& file, int64_t begin, int64_t end, const std::string& path) {
  std::vector<std::byte> buffer(size_t(std::min(int64_t(kReadBytes), end - begin)));
  Xxh3 hash;
  while (begin < end) {
    const auto part = std::span(buffer).first(size_t(std::min(int64_t(buffer.size()), end - begin)));
    pread_all(file, part, begin, path);
    hash.update(part);
    begin += int64_t(part.size());
  }
  return hash.hex();
}

// True if the file exists and the system refuses to read it; false if it is missing or not a file.
bool is_unreadable(const std::string& path) {
  int fd = -1;
  do fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  const Fd file(fd);
  if (!file) return errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO;
  std::vector<char> buffer(kReadBytes);
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && errno != EISDIR && errno != EAGAIN;
  }
}

struct Damage {
  std::string tensor;
  int64_t begin = 0, end = 0;
  std::string reason;
};

// Locates the difference between a safetensors file of the right size and the manifest.
Damage locate(const Manifest& manifest, const std::string& name, const std::string& path) {
  try {
    const SafetensorsFile file(path);
    const Fd fd = open_regular(path);
    for (const ManifestTensor& t : manifest.tensors) {
      if (t.file != name) continue;
      const TensorEntry* entry = file.find(t.name);
      if (!entry)
        return {.tensor = t.name,
                .begin = 0,
                .end = file.header().data_begin(),
                .reason = "the header of the file does not list the tensor"};
      const int64_t end = entry->offset + entry->bytes;
      if (hash_range(fd, entry->offset, end, path) != t.xxh3)
        return {.tensor = t.name, .begin = entry->offset, .end = end, .reason = "the data differs from what was saved"};
    }
    return {.tensor = "",
            .begin = 0,
            .end = file.header().data_begin(),
            .reason = "the header differs from what was saved"};
  } catch (const Error& e) {
    // The header is unreadable and its length unknown; it ended where the first tensor began.
    int64_t data = 0, total = manifest.find_file(name)->bytes;
    for (const ManifestTensor& t : manifest.tensors)
      if (t.file == name) data += t.piece_shape().numel() * int64_t(size_of(t.dtype));
    return {.tensor = "", .begin = 0, .end = std::max(int64_t{0}, total - data), .reason = e.what()};
  }
}

void report(Verification& v, const std::string& file, const Damage& damage) {
  v.tensor = damage.tensor;
  v.begin = damage.begin;
  v.end = damage.end;
  v.problem = cat(file, damage.tensor.empty() ? "" : cat(", tensor ", printable(damage.tensor)), ", bytes ",
                  damage.begin, " to ", damage.end, ": ", damage.reason);
}

// The damage of one file, if any.
std::optional<Damage> check_file(const Manifest& manifest, const std::string& dir, const ManifestFile& f, Depth depth) {
  const std::string path = cat(dir, "/", f.name);
  const Fd file = open_regular(path);
  const int64_t bytes = file_bytes(file, path);
  if (bytes != f.bytes)
    return Damage{.tensor = "",
                  .begin = std::min(bytes, f.bytes),
                  .end = std::max(bytes, f.bytes),
                  .reason = cat("it has ", bytes, " bytes, the manifest says ", f.bytes,
                                bytes < f.bytes ? ": truncated" : ": it grew after it was saved")};
  if (depth == Depth::sizes || hash_range(file, 0, bytes, path) == f.xxh3) return std::nullopt;
  if (f.name.ends_with(".safetensors")) return locate(manifest, f.name, path);
  return Damage{.tensor = "", .begin = 0, .end = bytes, .reason = "the content differs from what was saved"};
}

struct Checked {
  std::optional<Damage> damage;
  std::exception_ptr error;
};

// Uses several threads, since one core hashes more slowly than many disks read. No thread starts another file after the
// first damaged one, but all files before it are checked.
std::vector<Checked> check_files(const Manifest& manifest, const std::string& dir, Depth depth, ShareOfFiles share) {
  std::vector<Checked> all(manifest.files.size());
  std::atomic<size_t> next{0};  // next file of the subset
  std::atomic<bool> stop{false};
  const auto work = [&] {
    for (size_t i = 0; !stop && (i = share.first + share.every * next++) < all.size();) {
      try {
        all[i].damage = check_file(manifest, dir, manifest.files[i], depth);
      } catch (...) {
        all[i].error = std::current_exception();
      }
      if (all[i].damage || all[i].error) stop = true;
    }
  };
  const size_t most = depth == Depth::sizes ? 1 : std::min<size_t>(kMostThreads, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min(most, all.size()); ++i)
    threads.push_back(start_thread<std::jthread>("verifying a checkpoint", work));
  work();
  threads.clear();  // joins them
  return all;
}

// repeat: set if an exception might be transient.
Verification verify_once(const std::string& dir, Depth depth, ShareOfFiles share, bool& repeat) {
  Verification v;
  v.file = kManifestName;
  try {
    v.manifest = read_manifest(dir);
    const auto named = parse_step_folder(std::filesystem::path(dir).filename().string());
    if (named && *named != v.manifest.step)
      throw Error(cat(dir, "/", kManifestName, ": is of step ", v.manifest.step, ", the folder's name says ", *named));
    const std::vector<Checked> checked = check_files(v.manifest, dir, depth, share);
    for (size_t i = 0; i < checked.size(); ++i) {
      v.file = v.manifest.files[i].name;
      if (checked[i].error) std::rethrow_exception(checked[i].error);
      if (!checked[i].damage) continue;
      report(v, v.file, *checked[i].damage);
      return v;
    }
    v.file.clear();
    v.ok = true;
  } catch (const Error& e) {
    v.problem = e.what();
    v.unreadable = is_unreadable(cat(dir, "/", v.file));
    repeat = !v.unreadable;
  }
  return v;
}

}  // namespace

// A failed read that succeeds on retry is no evidence about the file's content: only a failure that repeats is reported
// as damage.
Verification verify_checkpoint(const std::string& dir, Depth depth, ShareOfFiles share) {
  bool repeat = false;
  Verification v = verify_once(dir, depth, share, repeat);
  return repeat ? verify_once(dir, depth, share, repeat) : v;
}

}  // namespace athanor
