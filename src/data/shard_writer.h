// Writes tokens as llm.c shards PREFIX000000.bin, PREFIX000001.bin, ...: version 1 (uint16) where the vocabulary fits,
// version 7 (uint32) otherwise. Shards are written as *.bin.tmp, synced, and get their names together in finish().
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace athanor {

struct ShardOptions {
  std::string prefix;                  // path and start of the names; missing folders are made
  int64_t vocab_size = 0;              // at most 65536: version 1
  int64_t shard_tokens = 100'000'000;  // a new shard begins after so many
  bool overwrite = false;              // replace shards of this prefix; otherwise they are an error
};

class ShardWriter {
 public:
  explicit ShardWriter(const ShardOptions& options);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();  // without finish(): removes what was written

  void append(std::span<const int32_t> ids);  // an id outside the vocabulary is an Error
  int64_t tokens() const { return tokens_; }

  // Publishes all shards; older shards of the prefix with higher numbers are removed (overwrite). Returns the paths.
  std::vector<std::string> finish();

 private:
  std::string shard_path(size_t index) const;
  std::vector<std::string> existing_shards() const;
  void begin_shard();
  void flush();
  void end_shard();

  ShardOptions options_;
  int64_t item_size_ = 2;
  int64_t tokens_ = 0, shard_tokens_ = 0;  // in all, in the open shard
  size_t shards_ = 0;                      // begun
  bool finished_ = false;
  Fd file_;
  std::vector<std::byte> buffer_;
};

}  // namespace athanor
