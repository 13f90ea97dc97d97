// Texts to token shards with a held-out part: what `athanor tokenize` does. Streams, so the text may exceed memory;
// uses all cores, with the same bytes for any number of them; goes on where a killed run stopped.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/document_stream.h"
#include "tokenizer/load.h"

namespace athanor {

struct TokenizeProgress {
  int64_t read_bytes = 0, file_bytes = 0;  // of the input files, compressed as they are; 0 of standard input
  int64_t text_bytes = 0, tokens = 0;      // so far
  double seconds = 0;                      // of this process
  int64_t seconds_text_bytes = 0, seconds_read_bytes = 0;  // done in these seconds
};

struct TokenizeOptions {
  DocumentOptions documents;
  std::string key = "text";             // JSON lines: the member that holds the text
  std::string output_prefix;            // PREFIX_train_000000.bin..., PREFIX_val_000000.bin...
  std::string output_format = "llm.c";  // or "megatron"
  TokenizerOptions tokenizer;
  int64_t shard_tokens = 100'000'000;  // tokens per shard at most
  int64_t threads = 0;                 // 0: all cores this process may use
  bool overwrite = false;              // replace existing shards of this prefix, and what another run left unfinished
  double save_seconds = 30;            // between notes of how far it came
  std::function<void(const TokenizeProgress&)> progress;  // called after every job; empty: nobody asks
};

struct TokenizeResult {
  int64_t input_bytes = 0, documents = 0, train_tokens = 0, valid_tokens = 0;
  std::vector<std::string> train_shards, valid_shards;
  std::string summary;  // some lines for people
};

// A document ends with the end-of-document token, in every part that got some of it. No file has its final name before
// all are written; then the tokenizer lies beside them. Unfinished shards and PREFIX_progress.json, left by a kill, let
// the same call go on. Of two runs with one prefix at once the second is an Error.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace athanor
