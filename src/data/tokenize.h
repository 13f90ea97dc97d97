// Text files to token shards with a held-out part: what `athanor tokenize` does. Streams, so the text may exceed
// memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

struct TokenizeOptions {
  std::vector<std::string> inputs;     // plain text files, each one document, in this order
  std::string output_prefix;           // PREFIX_train_000000.bin..., PREFIX_valid_000000.bin...
  std::string tokenizer = "byte";      // see make_tokenizer
  int64_t valid_every = 20;            // every so many-th block is held out for validation; 0: none
  int64_t block = 4096;                // bytes
  int64_t shard_tokens = 100'000'000;  // tokens per shard at most
  bool overwrite = false;              // replace existing shards of this prefix
};

struct TokenizeResult {
  int64_t input_bytes = 0, train_tokens = 0, valid_tokens = 0;
  std::vector<std::string> train_shards, valid_shards;
  std::string summary;  // some lines for people
};

// Block b of the concatenated inputs is held out when (b + 1) % valid_every == 0, so the split depends on byte offsets
// alone. A document ends with the end-of-document token in every part that got some of it. No file has its final name
// before all are written.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace athanor
