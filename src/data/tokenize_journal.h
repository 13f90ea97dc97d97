// Files shared by runs of `athanor tokenize`: PREFIX_progress.json holds the progress, so that the same call continues
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

// Exclusive right to write shards of a prefix; released by the kernel when the process ends.
class TokenizeLock {
 public:
  explicit TokenizeLock(const std::string& prefix);  // creates missing folders; Error(usage) if another process has it
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
  int64_t outside_utf8 = 0, outside_utf8_input = 0;  // bytes that are no UTF-8, and the first input with one
};

class TokenizeJournal {
 public:
  // identity: names everything the output depends on. Runs with another identity are not continued.
  TokenizeJournal(std::string path, std::string identity) : path_(std::move(path)), identity_(std::move(identity)) {}
  const std::string& path() const { return path_; }
  // The state left by an interrupted run of this identity, if any. A damaged file, or one of another identity, is an
  // Error(usage).
  std::optional<TokenizeState> load() const;
  void save(const TokenizeState& state) const;
  void remove() const;

 private:
  std::string path_, identity_;
};

}  // namespace athanor
