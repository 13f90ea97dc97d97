// The largest logits of a teacher at every position of every window of a data set, in a folder: manifest.json and
// shards logits-00000.bin, ... of equal records, so that any window is read at once, in any order. A record of window
// w, with k logits at each of T positions, little-endian and without gaps:
//   ids     [T, k]  u16, or u32 for a vocabulary above 65,536: of the largest logit first
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

// The teacher and the data that a cache was made of; equal for equal ones.
struct LogitCacheInfo {
  std::string teacher, teacher_fingerprint;  // its folder, and weights_fingerprint()
  std::string data_fingerprint;              // Dataset::fingerprint()
  std::string documents;                     // how tokens of a window see each other
  std::string compute;                       // dtype that the teacher computed in
  // The teacher's own tokens, if they are others than the run's (data/token_alignment.h); "": the same. With others,
  // ids are 0 to k - 1, and a position without text in common has values and rest of -inf.
  std::string teacher_tokens;
  int64_t seq_length = 0;
  int64_t vocab_size = 0, teacher_vocab_size = 0;  // of the run, and of the teacher; ids are below both
  int64_t top_k = 0, windows = 0;
  double temperature = 1;
  DType dtype = DType::f16;  // of values

  int64_t record_bytes() const;
  int64_t shard_windows() const;  // of every shard but the last
  int64_t shards() const;
  int64_t windows_in(int64_t shard) const;
  std::string text() const;  // as in manifest.json
  bool operator==(const LogitCacheInfo&) const = default;
};

// The largest logits at consecutive positions.
struct TopLogitRow {
  std::span<int32_t> ids;         // [T, k]
  std::span<float> values, rest;  // [T, k], [T]
};

std::string logit_shard(const std::string& folder, int64_t shard);  // its path

// Throws Error(usage) where there is no such manifest.
LogitCacheInfo read_logit_cache_info(const std::string& folder);
// Begins a cache, or goes on with one that was begun. Throws Error(usage) where the folder has a cache of something
// else, naming what differs, or other files.
void begin_logit_cache(const std::string& folder, const LogitCacheInfo&);
// Whether the shard is there, as long as it should be.
bool has_logit_shard(const std::string& folder, const LogitCacheInfo&, int64_t shard);

// Writes one shard, window by window, which appears when it is complete.
class LogitShardWriter {
 public:
  LogitShardWriter(const std::string& folder, const LogitCacheInfo&, int64_t shard);
  // The next window. Throws Error if a logit is no number.
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
  // Opens all shards. Throws Error(usage) where some are missing or have another length.
  explicit LogitCache(const std::string& folder);
  const LogitCacheInfo& info() const { return info_; }
  const std::string& folder() const { return folder_; }
  // tokens: [T], of the window. Throws Error where the record is damaged, or of other tokens.
  void read(int64_t window, std::span<const int32_t> tokens, const TopLogitRow&) const;

 private:
  std::string folder_;
  LogitCacheInfo info_;
  std::vector<StableFile> shards_;
};

}  // namespace athanor
