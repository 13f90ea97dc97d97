// Files that runs of `athanor tokenize` share: PREFIX_progress.json holds the progress, so that the same call resumes
// after a kill; PREFIX.lock prevents concurrent runs.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "data/document_stream.h"
#include "data/shard_writer.h"

namespace athanor {

// Exclusive lock on the shards of a prefix; the kernel releases it when the process ends.
class TokenizeLock {
 public:
  explicit TokenizeLock(const std::string& prefix);  // creates missing folders; throws Error(usage) if another process
                                                     // has the lock
  TokenizeLock(const TokenizeLock&) = delete;
  TokenizeLock& operator=(const TokenizeLock&) = delete;
  ~TokenizeLock();

 private:
  std::string path_;
  Fd file_;
};

struct TokenizeState {
  StreamPosition position;
  std::array<ShardState, 2> parts;  // [Part]
  int64_t documents = 0;
  int64_t outside_utf8 = 0, outside_utf8_input = 0;  // bytes that are not UTF-8, and the first input that has one
};

class TokenizeJournal {
 public:
  // identity: names all that the output depends on. Only a run of the same identity is resumed.
  TokenizeJournal(std::string path, std::string identity) : path_(std::move(path)), identity_(std::move(identity)) {}
  const std::string& path() const { return path_; }
  // The state left by an interrupted run of this identity, if any. Throws Error(usage) if the file is damaged or from a
  // run of another identity.
  std::optional<TokenizeState> load() const;
  void save(const TokenizeState& state) const;
  void remove() const;

 private:
  std::string path_, identity_;
};

}  // namespace athanor
