// Tokenizes texts into shards with a validation split: `athanor tokenize`. Streams, so the text may exceed memory; uses
// all cores, and the output does not depend on their number; resumes where a killed run stopped.
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
          file_bytes = 0;              // bytes of the input files before decompression; file_bytes 0: standard input
  int64_t text_bytes = 0, tokens = 0;  // so far
  double seconds = 0;                  // run time of this process
  int64_t seconds_text_bytes = 0, seconds_read_bytes = 0;  // amount processed in `seconds`
};

struct TokenizeOptions {
  DocumentOptions documents;
  std::string output_prefix;            // PREFIX_train_000000.bin..., PREFIX_val_000000.bin...
  std::string output_format = "llm.c";  // or "megatron"
  TokenizerOptions tokenizer;
  int64_t shard_tokens = 100'000'000;                     // maximum tokens per shard
  int64_t threads = 0;                                    // 0: all cores this process may use
  bool overwrite = false;                                 // replace existing shards with this prefix, and unfinished
                                                          // ones
  double save_seconds = 30;                               // interval between saves of the progress
  std::function<void(const TokenizeProgress&)> progress;  // called after every job; may be empty
};

struct TokenizeResult {
  int64_t input_bytes = 0, documents = 0, train_tokens = 0, valid_tokens = 0;
  std::vector<std::string> train_shards, valid_shards;
  std::string summary;  // a few lines of text
  std::string warning;  // about text that is not UTF-8; empty: no warning
};

// A document ends with the end-of-document token in every split that contains some of it. No shard gets its final name
// before all are written and the tokenizer is stored next to them. After a kill, the same call resumes from the
// unfinished shards and PREFIX_progress.json. A second concurrent run with the same prefix is an Error.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace athanor
