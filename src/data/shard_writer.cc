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
#include "data/megatron_index.h"
#include "data/token_format.h"

namespace athanor {
namespace {

constexpr size_t kBuffer = 1 << 20;
constexpr const char* kSixDigits = "[0-9][0-9][0-9][0-9][0-9][0-9]";

std::array<int32_t, 256> header_of(int64_t item_size, int64_t count) {
  std::array<int32_t, 256> header{};
  header[0] = item_size == 2 ? 20240520 : 20240801;  // [llm.c dev/data/data_common.py]
  header[1] = item_size == 2 ? 1 : 7;
  header[2] = narrow<int32_t>(count);
  return header;
}

// Token size as in Megatron's DType.optimal_dtype [megatron/core/datasets/indexed_dataset.py]: int32 from 65500 on.
int64_t item_size_of(const ShardOptions& o) {
  return o.vocab_size < (o.format == ShardFormat::megatron ? 65500 : 65537) ? 2 : 4;
}

std::string temporary(const std::string& path) { return path + ".tmp"; }

}  // namespace

void ShardWriter::require_sane() const {
  if (options_.shard_tokens < 1 || options_.shard_tokens > std::numeric_limits<int32_t>::max())
    throw Error(cat("shard tokens: expected 1 to ", std::numeric_limits<int32_t>::max(),
                    " (the header's count is an int32), got ", options_.shard_tokens),
                Exit::usage);
  CHECK(options_.vocab_size > 0, "vocabulary of ", options_.vocab_size);
  CHECK(options_.format != ShardFormat::megatron || options_.eod_id >= 0, "Megatron shards need documents");
}

ShardWriter::ShardWriter(const ShardOptions& options) : options_(options), item_size_(item_size_of(options)) {
  require_sane();
  make_dirs(parent_dir(options.prefix));
  const auto existing = existing_shards();
  if (!existing.empty() && !options.overwrite)
    throw Error(cat(existing.front(), ": exists already: choose another output prefix, or give --overwrite"),
                Exit::usage);
  buffer_.reserve(kBuffer);
}

ShardWriter::ShardWriter(const ShardOptions& options, const ShardState& state)
    : options_(options),
      item_size_(item_size_of(options)),
      tokens_(state.tokens),
      shard_tokens_(state.shard_tokens),
      shards_(size_t(state.shards)),
      closed_(state.closed),
      kept_(true) {
  require_sane();
  buffer_.reserve(kBuffer);
  if (closed_) return;
  const size_t complete = shards_ - (shard_tokens_ > 0);
  for (size_t i = 0; i < complete; ++i)
    open_left_behind(temporary(shard_path(i)), options.format == ShardFormat::llmc ? options.shard_tokens : 0);
  if (complete == shards_) return;
  const std::string path = temporary(shard_path(complete));
  file_ = open_left_behind(path, shard_tokens_);
  const int64_t bytes = header_bytes() + item_size_ * shard_tokens_;
  if (::ftruncate(file_.get(), off_t(bytes)) != 0) throw_io("truncating", path, errno);
  if (::lseek(file_.get(), 0, SEEK_END) != off_t(bytes)) throw_io("seeking in", path, errno);
}

Fd ShardWriter::open_left_behind(const std::string& path, int64_t tokens) const {
  Fd file = open_file(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  const int64_t bytes = header_bytes() + item_size_ * tokens;
  if (file_bytes(file, path) < bytes)
    throw Error(cat(path, ": has ", file_bytes(file, path), " bytes, expected ", bytes,
                    ": it is not what the interrupted run left; start again with --overwrite"));
  return file;
}

ShardWriter::~ShardWriter() {
  if (finished_ || kept_) return;
  for (size_t i = 0; i < shards_; ++i)
    for (const std::string& path : {shard_path(i), index_path(shard_path(i))}) ::unlink(temporary(path).c_str());
}

void ShardWriter::discard(const std::string& prefix) {
  for (const char* end : {".bin.tmp", ".idx.tmp"})
    for (const std::string& path : match_glob(cat(escape_glob(prefix), kSixDigits, end))) remove_tree(path);
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
  return match_glob(cat(escape_glob(options_.prefix), kSixDigits, ".bin"));
}

int64_t ShardWriter::header_bytes() const { return options_.format == ShardFormat::llmc ? kLlmcHeaderBytes : 0; }

void ShardWriter::begin_shard() {
  file_ = create_anew(temporary(shard_path(shards_++)), O_RDWR);
  shard_tokens_ = 0;
  if (options_.format == ShardFormat::megatron) return;
  const auto header = header_of(item_size_, 0);
  write_all(file_, std::as_bytes(std::span(header)), temporary(shard_path(shards_ - 1)));
}

void ShardWriter::flush() {
  write_all(file_, buffer_, temporary(shard_path(shards_ - 1)));
  buffer_.clear();
  // Starts writeback, so that the final fsync has little to do; it also reports errors.
  ::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void ShardWriter::end_shard() {
  const std::string path = temporary(shard_path(shards_ - 1));
  flush();
  if (options_.format == ShardFormat::megatron) {
    write_megatron_index(index_path(shard_path(shards_ - 1)) + ".tmp",
                         {.tokens = file_, .path = path, .item_size = item_size_, .eod_id = options_.eod_id});
  } else {
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) throw_io("seeking in", path, errno);
    const auto header = header_of(item_size_, shard_tokens_);
    write_all(file_, std::as_bytes(std::span(header)), path);
  }
  if (::fsync(file_.get()) != 0) throw_io("syncing", path, errno);
  if (::close(file_.release()) != 0) throw_io("closing", path, errno);
  shard_tokens_ = 0;
}

// How many of the ids fit into the open shard.
size_t ShardWriter::fitting(std::span<const int32_t> ids) const {
  const size_t most = std::min(ids.size(), kBuffer);
  const int64_t left = options_.shard_tokens - shard_tokens_;
  if (left > int64_t(most)) return most;
  if (options_.format == ShardFormat::llmc) return size_t(left);
  const auto last = ids.begin() + std::max<int64_t>(left, 1) - 1;  // the first position where the shard may end
  return size_t(std::min(std::find(last, ids.end(), options_.eod_id) - ids.begin() + 1, std::ptrdiff_t(most)));
}

void ShardWriter::append(std::span<const int32_t> ids) {
  CHECK(!closed_, "append after close or finish");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= options_.vocab_size)
      throw Error(cat(options_.prefix, ": token ", tokens_ + int64_t(i), " is ", ids[i],
                      ", expected less than the vocabulary's size ", options_.vocab_size));
  while (!ids.empty()) {
    if (!file_) begin_shard();
    const size_t count = fitting(ids);
    const bool ends_document = ids[count - 1] == options_.eod_id;
    const size_t before = buffer_.size();
    buffer_.resize(before + count * size_t(item_size_));
    for (size_t i = 0; i < count; ++i)  // little-endian: the low bytes come first
      std::memcpy(&buffer_[before + i * size_t(item_size_)], &ids[i], size_t(item_size_));
    ids = ids.subspan(count);
    tokens_ += int64_t(count);
    shard_tokens_ += int64_t(count);
    if (shard_tokens_ >= options_.shard_tokens && (options_.format == ShardFormat::llmc || ends_document))
      end_shard();
    else if (buffer_.size() >= kBuffer)
      flush();
  }
}

// Renames a finished shard. A run that was killed while renaming may have renamed it already.
void ShardWriter::publish(const std::string& path) const {
  if (!kept_ || ::access(temporary(path).c_str(), F_OK) == 0) rename_path(temporary(path), path);
}

std::vector<std::string> ShardWriter::finish() {
  CHECK(!finished_, "finish after finish");
  close();
  const auto existing = existing_shards();
  std::vector<std::string> paths;
  for (size_t i = 0; i < shards_; ++i) {
    paths.push_back(shard_path(i));
    if (options_.format == ShardFormat::megatron)
      publish(index_path(paths.back()));  // the index is renamed first: no
                                          // .bin is ever without its index
    publish(paths.back());
  }
  for (const std::string& old : existing)
    if (std::find(paths.begin(), paths.end(), old) == paths.end()) {
      remove_tree(old);
      remove_tree(index_path(old));
    } else if (options_.format == ShardFormat::llmc) {
      remove_tree(index_path(old));  // index of an earlier Megatron shard with this name
    }
  fsync_dir(parent_dir(options_.prefix));
  finished_ = true;
  return paths;
}

}  // namespace athanor
