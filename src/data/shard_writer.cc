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

std::array<int32_t, 256> header_of(int64_t item_size, int64_t count) {
  std::array<int32_t, 256> header{};
  header[0] = item_size == 2 ? 20240520 : 20240801;  // [llm.c dev/data/data_common.py]
  header[1] = item_size == 2 ? 1 : 7;
  header[2] = narrow<int32_t>(count);
  return header;
}

std::string temporary(const std::string& path) { return path + ".tmp"; }

}  // namespace

ShardWriter::ShardWriter(const ShardOptions& options) : options_(options) {
  if (options.shard_tokens < 1 || options.shard_tokens > std::numeric_limits<int32_t>::max())
    throw Error(cat("shard tokens: expected 1 to ", std::numeric_limits<int32_t>::max(),
                    " (the header's count is an int32), got ", options.shard_tokens),
                Exit::usage);
  CHECK(options.vocab_size > 0, "vocabulary of ", options.vocab_size);
  item_size_ = options.vocab_size <= 65536 ? 2 : 4;
  const std::string folder = parent_dir(options.prefix);
  make_dirs(folder);
  const auto existing = existing_shards();
  if (!existing.empty() && !options.overwrite)
    throw Error(cat(existing.front(), ": exists already: choose another output prefix or ask for overwriting"),
                Exit::usage);
  buffer_.reserve(kBuffer);
}

ShardWriter::~ShardWriter() {
  if (finished_) return;
  for (size_t i = 0; i < shards_; ++i) ::unlink(temporary(shard_path(i)).c_str());
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
  CHECK(!finished_, "append after finish");
  for (int32_t id : ids) {
    if (id < 0 || id >= options_.vocab_size)
      throw Error(cat(options_.prefix, ": token ", tokens_, " is ", id, ", expected less than the vocabulary's size ",
                      options_.vocab_size));
    if (!file_) begin_shard();
    const auto bytes = std::as_bytes(std::span(&id, 1)).first(size_t(item_size_));  // little-endian: low bytes first
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    ++tokens_;
    if (++shard_tokens_ == options_.shard_tokens)
      end_shard();
    else if (buffer_.size() >= kBuffer)
      flush();
  }
}

std::vector<std::string> ShardWriter::finish() {
  CHECK(!finished_, "finish after finish");
  if (file_) end_shard();
  const auto existing = existing_shards();
  std::vector<std::string> paths;
  for (size_t i = 0; i < shards_; ++i) {
    paths.push_back(shard_path(i));
    rename_path(temporary(paths.back()), paths.back());
  }
  for (const std::string& old : existing)
    if (std::find(paths.begin(), paths.end(), old) == paths.end()) remove_tree(old);
  fsync_dir(parent_dir(options_.prefix));
  finished_ = true;
  return paths;
}

}  // namespace athanor
