// PREFIX_progress.json: how far a run of `athanor tokenize` came, so that the same call goes on there after a kill.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "data/document_stream.h"
#include "data/shard_writer.h"

namespace athanor {

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
