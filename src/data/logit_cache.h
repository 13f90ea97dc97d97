// A teacher's top-k logits at every position of every window of a data set, stored in a folder: manifest.json and
// shards logits-00000.bin, ... of fixed-size records, so that any window can be read at random. A record of window w,
// with k logits at each of T positions, little-endian and without padding:
//   ids     [T, k]  u16, or u32 for a vocabulary above 65,536: largest logit first
//   values  [T, k]  f16 or f32: the logit minus the largest one
//   rest    [T]     f32: log of the sum over all other tokens of exp((logit - largest) / temperature)
//   32 hex digits   XXH3-128 of the window's number (i64), its T tokens (i32), and all of the above
// Readers are thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/stable_file.h"
#include "tensor/dtype.h"

namespace athanor {

// The teacher and the data that a cache was computed from; caches of the same teacher and data compare equal.
struct LogitCacheInfo {
  std::string teacher, teacher_fingerprint;  // folder and weights_fingerprint() of the teacher
  std::string data_fingerprint;              // Dataset::fingerprint()
  std::string documents;                     // attention mask between documents of a window
  std::string compute;                       // dtype that the teacher computed in
  // Tokenizer of the teacher, if it differs from the run's (data/token_alignment.h); "": the same tokenizer. With
  // another tokenizer, ids are 0 to k - 1, and positions without an aligned teacher position have values and rest of
  // -inf.
  std::string teacher_tokens;
  int64_t seq_length = 0;
  int64_t vocab_size = 0, teacher_vocab_size = 0;  // run's and teacher's; ids are smaller than both
  int64_t top_k = 0, windows = 0;
  double temperature = 1;
  DType dtype = DType::f16;  // dtype of the values

  int64_t record_bytes() const;
  int64_t shard_windows() const;  // windows per shard, except the last
  int64_t shards() const;
  int64_t windows_in(int64_t shard) const;
  std::string text() const;  // content of manifest.json
  bool operator==(const LogitCacheInfo&) const = default;
};

// Top-k logits at consecutive positions.
struct TopLogitRow {
  std::span<int32_t> ids;         // [T, k]
  std::span<float> values, rest;  // [T, k], [T]
};

std::string logit_shard(const std::string& folder, int64_t shard);  // path of a shard

// Throws Error(usage) if the folder has no logit cache manifest.
LogitCacheInfo read_logit_cache_info(const std::string& folder);
// Creates a cache, or continues an unfinished one. Throws Error(usage) if the folder has a cache with other settings,
// naming the differences, or other files.
void begin_logit_cache(const std::string& folder, const LogitCacheInfo&);
// True if the shard exists and has the expected length.
bool has_logit_shard(const std::string& folder, const LogitCacheInfo&, int64_t shard);

// Writes one shard, window by window; the file appears under its name only when it is complete.
class LogitShardWriter {
 public:
  LogitShardWriter(const std::string& folder, const LogitCacheInfo&, int64_t shard);
  // Appends the next window. Throws Error if a logit is NaN.
  void append(std::span<const int32_t> tokens, const TopLogitRow&);
  void commit();

 private:
  const LogitCacheInfo info_;
  AtomicFile file_;
  int64_t window_;
  std::vector<std::byte> record_;
};

class LogitCache {
 public:
  // Opens all shards. Throws Error(usage) if some are missing or have the wrong length.
  explicit LogitCache(const std::string& folder);
  const LogitCacheInfo& info() const { return info_; }
  const std::string& folder() const { return folder_; }
  // tokens: the window's [T] tokens. Throws Error if the record is damaged or belongs to other tokens.
  void read(int64_t window, std::span<const int32_t> tokens, const TopLogitRow&) const;

 private:
  std::string folder_;
  LogitCacheInfo info_;
  std::vector<StableFile> shards_;
};

}  // namespace athanor
