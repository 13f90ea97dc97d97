#include "data/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/int.h"
#include "data/glob.h"

namespace athanor {
namespace {

constexpr size_t kBuffer = 1 << 20;
constexpr int64_t kHeader = 1024;  // bytes

std::array<int32_t, 256> header_of(int64_t item_size, int64_t count) {
  std::array<int32_t, 256> header{};
  header[0] = item_size == 2 ? 20240520 : 20240801;  // [llm.c dev/data/data_common.py]
  header[1] = item_size == 2 ? 1 : 7;
  header[2] = narrow<int32_t>(count);
  return header;
}

std::string temporary(const std::string& path) { return path + ".tmp"; }

}  // namespace

void ShardWriter::require_sane() const {
  if (options_.shard_tokens < 1 || options_.shard_tokens > std::numeric_limits<int32_t>::max())
    throw Error(cat("shard tokens: expected 1 to ", std::numeric_limits<int32_t>::max(),
                    " (the header's count is an int32), got ", options_.shard_tokens),
                Exit::usage);
  CHECK(options_.vocab_size > 0, "vocabulary of ", options_.vocab_size);
}

ShardWriter::ShardWriter(const ShardOptions& options)
    : options_(options), item_size_(options.vocab_size <= 65536 ? 2 : 4) {
  require_sane();
  make_dirs(parent_dir(options.prefix));
  const auto existing = existing_shards();
  if (!existing.empty() && !options.overwrite)
    throw Error(cat(existing.front(), ": exists already: choose another output prefix or ask for overwriting"),
                Exit::usage);
  buffer_.reserve(kBuffer);
}

ShardWriter::ShardWriter(const ShardOptions& options, const ShardState& state)
    : options_(options),
      item_size_(options.vocab_size <= 65536 ? 2 : 4),
      tokens_(state.tokens),
      shard_tokens_(state.shard_tokens),
      shards_(size_t(state.shards)),
      closed_(state.closed),
      kept_(true) {
  require_sane();
  buffer_.reserve(kBuffer);
  for (size_t i = 0; i < shards_ && !closed_; ++i) {
    const std::string path = temporary(shard_path(i));
    const bool whole = i + 1 < shards_ || shard_tokens_ == options.shard_tokens;
    const int64_t bytes = kHeader + item_size_ * (whole ? options.shard_tokens : shard_tokens_);
    Fd file = open_file(path, O_WRONLY);
    if (file_bytes(file, path) < bytes)
      throw Error(cat(path, ": has ", file_bytes(file, path), " bytes, expected ", bytes,
                      ": it is not what the interrupted run left; start anew with --overwrite"));
    if (::ftruncate(file.get(), off_t(bytes)) != 0) throw_io("truncating", path, errno);
    if (whole) continue;
    if (::lseek(file.get(), 0, SEEK_END) != off_t(bytes)) throw_io("seeking in", path, errno);
    file_ = std::move(file);
  }
}

ShardWriter::~ShardWriter() {
  if (finished_ || kept_) return;
  for (size_t i = 0; i < shards_; ++i) ::unlink(temporary(shard_path(i)).c_str());
}

void ShardWriter::discard(const std::string& prefix) {
  for (const std::string& path : match_glob(escape_glob(prefix) + "[0-9][0-9][0-9][0-9][0-9][0-9].bin.tmp"))
    remove_tree(path);
}

ShardState ShardWriter::save() {
  if (file_) {
    flush();
    if (::fsync(file_.get()) != 0) throw_io("syncing", temporary(shard_path(shards_ - 1)), errno);
  }
  return {.tokens = tokens_, .shard_tokens = shard_tokens_, .shards = int64_t(shards_), .closed = closed_};
}

void ShardWriter::close() {
  if (file_) end_shard();
  closed_ = true;
}

std::string ShardWriter::shard_path(size_t index) const {
  std::ostringstream out;
  out << options_.prefix << std::setw(6) << std::setfill('0') << index << ".bin";
  return out.str();
}

std::vector<std::string> ShardWriter::existing_shards() const {
  return match_glob(escape_glob(options_.prefix) + "[0-9][0-9][0-9][0-9][0-9][0-9].bin");
}

void ShardWriter::begin_shard() {
  file_ = open_file(temporary(shard_path(shards_++)), O_WRONLY | O_CREAT | O_TRUNC);
  shard_tokens_ = 0;
  const auto header = header_of(item_size_, 0);
  write_all(file_, std::as_bytes(std::span(header)), temporary(shard_path(shards_ - 1)));
}

void ShardWriter::flush() {
  write_all(file_, buffer_, temporary(shard_path(shards_ - 1)));
  buffer_.clear();
}

void ShardWriter::end_shard() {
  const std::string path = temporary(shard_path(shards_ - 1));
  flush();
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) throw_io("seeking in", path, errno);
  const auto header = header_of(item_size_, shard_tokens_);
  write_all(file_, std::as_bytes(std::span(header)), path);
  if (::fsync(file_.get()) != 0) throw_io("syncing", path, errno);
  if (::close(file_.release()) != 0) throw_io("closing", path, errno);
}

void ShardWriter::append(std::span<const int32_t> ids) {
  CHECK(!closed_, "append after close or finish");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= options_.vocab_size)
      throw Error(cat(options_.prefix, ": token ", tokens_ + int64_t(i), " is ", ids[i],
                      ", expected less than the vocabulary's size ", options_.vocab_size));
  while (!ids.empty()) {
    if (!file_) begin_shard();
    const size_t count =
        size_t(std::min({int64_t(ids.size()), options_.shard_tokens - shard_tokens_, int64_t(kBuffer)}));
    const size_t before = buffer_.size();
    buffer_.resize(before + count * size_t(item_size_));
    for (size_t i = 0; i < count; ++i)  // little-endian: low bytes first
      std::memcpy(&buffer_[before + i * size_t(item_size_)], &ids[i], size_t(item_size_));
    ids = ids.subspan(count);
    tokens_ += int64_t(count);
    shard_tokens_ += int64_t(count);
    if (shard_tokens_ == options_.shard_tokens)
      end_shard();
    else if (buffer_.size() >= kBuffer)
      flush();
  }
}

std::vector<std::string> ShardWriter::finish() {
  CHECK(!finished_, "finish after finish");
  close();
  const auto existing = existing_shards();
  std::vector<std::string> paths;
  for (size_t i = 0; i < shards_; ++i) {
    paths.push_back(shard_path(i));
    // A run that was killed here has renamed some of them already.
    if (!kept_ || ::access(temporary(paths.back()).c_str(), F_OK) == 0)
      rename_path(temporary(paths.back()), paths.back());
  }
  for (const std::string& old : existing)
    if (std::find(paths.begin(), paths.end(), old) == paths.end()) remove_tree(old);
  fsync_dir(parent_dir(options_.prefix));
  finished_ = true;
  return paths;
}

}  // namespace athanor
