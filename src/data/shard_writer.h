// Writes tokens as shards PREFIX000000.bin, PREFIX000001.bin, ...: llm.c's version 1 (uint16) if the vocabulary fits,
// else version 7 (uint32); or Megatron-LM shards, each with its .idx. Shards are written as *.tmp, synced, and all
// renamed in finish().
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace athanor {

enum class ShardFormat : uint8_t { llmc, megatron };

struct ShardOptions {
  std::string prefix;                  // path and start of the file names; missing folders are created
  int64_t vocab_size = 0;              // determines the token size
  int64_t shard_tokens = 100'000'000;  // maximum tokens per shard; a Megatron shard ends with the document that reaches
                                       // it
  bool overwrite = false;              // replace shards with this prefix; otherwise existing ones are an error
  ShardFormat format = ShardFormat::llmc;
  int32_t eod_id = -1;  // Megatron: end-of-document token
};

// Progress of a writer, from which a restarted program can continue.
struct ShardState {
  int64_t tokens = 0, shard_tokens = 0;  // tokens in all shards, and in the current one; 0: none
  int64_t shards = 0;                    // shards begun
  bool closed = false;                   // all shards are complete; some may have been renamed already
};

class ShardWriter {
 public:
  explicit ShardWriter(const ShardOptions& options);
  // Continues from the files that another writer with the same options left in this state.
  ShardWriter(const ShardOptions& options, const ShardState& state);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();  // removes what was written unless finish() or keep() was called

  void append(std::span<const int32_t> ids);  // throws an Error for an id outside the vocabulary
  int64_t tokens() const { return tokens_; }
  ShardState save();             // makes all tokens so far durable
  void close();                  // writes the last shard's header; no more tokens may follow
  void keep() { kept_ = true; }  // leaves unfinished shards for another writer

  // Removes unfinished shards of earlier writers with this prefix.
  static void discard(const std::string& prefix);

  // Publishes all shards and removes older shards of the prefix with higher numbers (overwrite). Returns their paths.
  std::vector<std::string> finish();

 private:
  std::string shard_path(size_t index) const;
  int64_t header_bytes() const;
  size_t fitting(std::span<const int32_t> ids) const;
  void publish(const std::string& path) const;
  // Opens a file left by another writer; it must hold at least this many tokens.
  Fd open_left_behind(const std::string& path, int64_t tokens) const;
  std::vector<std::string> existing_shards() const;
  void require_sane() const;
  void begin_shard();
  void flush();
  void end_shard();

  ShardOptions options_;
  int64_t item_size_ = 2;
  int64_t tokens_ = 0, shard_tokens_ = 0;  // tokens in all shards, and in the open one; 0: none is open
  size_t shards_ = 0;                      // shards begun
  bool closed_ = false, finished_ = false, kept_ = false;
  Fd file_;
  std::vector<std::byte> buffer_;
};

}  // namespace athanor
