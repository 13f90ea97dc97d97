// What runs of `athanor tokenize` tell each other: PREFIX_progress.json says how far one came, so that the same call
// goes on there after a kill; PREFIX.lock says that one is at work.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "data/document_stream.h"
#include "data/shard_writer.h"

namespace athanor {

// The right to write shards of a prefix; the system frees it when the process ends, however it does.
class TokenizeLock {
 public:
  explicit TokenizeLock(const std::string& prefix);  // makes missing folders; an Error(usage) when another has it
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
};

class TokenizeJournal {
 public:
  // identity: of everything that the output depends on. Runs of another identity are not gone on with.
  TokenizeJournal(std::string path, std::string identity) : path_(std::move(path)), identity_(std::move(identity)) {}
  const std::string& path() const { return path_; }
  // What an interrupted run of this identity left; nothing when there is none. One of another identity, or a damaged
  // file, is an Error(usage).
  std::optional<TokenizeState> load() const;
  void save(const TokenizeState& state) const;
  void remove() const;

 private:
  std::string path_, identity_;
};

}  // namespace athanor
