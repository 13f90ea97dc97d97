// Tokenizes texts into shards with a held-out split: `athanor tokenize`. Streams, so the text may exceed memory; uses
// all cores, with identical output for any number of them; continues where a killed run stopped.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/document_stream.h"
#include "tokenizer/load.h"

namespace athanor {

struct TokenizeProgress {
  int64_t read_bytes = 0,
          file_bytes = 0;              // bytes of the input files, before decompression; file_bytes 0: standard input
  int64_t text_bytes = 0, tokens = 0;  // so far
  double seconds = 0;                  // run time of this process
  int64_t seconds_text_bytes = 0, seconds_read_bytes = 0;  // done in these seconds
};

struct TokenizeOptions {
  DocumentOptions documents;
  std::string output_prefix;            // PREFIX_train_000000.bin..., PREFIX_val_000000.bin...
  std::string output_format = "llm.c";  // or "megatron"
  TokenizerOptions tokenizer;
  int64_t shard_tokens = 100'000'000;                     // tokens per shard at most
  int64_t threads = 0;                                    // 0: all cores this process may use
  bool overwrite = false;                                 // replace existing shards of this prefix and unfinished ones
  double save_seconds = 30;                               // between saves of the progress
  std::function<void(const TokenizeProgress&)> progress;  // called after every job; may be empty
};

struct TokenizeResult {
  int64_t input_bytes = 0, documents = 0, train_tokens = 0, valid_tokens = 0;
  std::vector<std::string> train_shards, valid_shards;
  std::string summary;  // a few lines of text
  std::string warning;  // about text that is no UTF-8; empty: there is none
};

// A document ends with the end-of-document token in every split that contains some of it. No file gets its final name
// before all are written; then the tokenizer is stored beside them. After a kill the same call continues from the
// unfinished shards and PREFIX_progress.json. A second concurrent run with the same prefix is an Error.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace athanor
