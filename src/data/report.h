// Summary and integrity check of token shards: the output of `athanor data info` and `athanor data verify`.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace athanor {

struct ShardReportOptions {
  std::vector<std::string> path_globs;  // files or patterns
  std::string dtype = "auto";           // token type of all files: see TokenFile::open
  std::string tokenizer;                // file or folder; "": from the descriptor next to the shards, if any
  int64_t vocab_size = 0;               // 0: the vocabulary size of the tokenizer
  int64_t eod_id = -1;                  // info: end-of-document token for shards without an index; -1: that of the
                                        // tokenizer
  bool ngram = false;                   // info: also computes n-gram losses, with the last twentieth of the tokens as
                                        // validation
  std::string ngram_valid_glob;         // info: these shards are the validation data instead
};

// Reports shards, token counts, document lengths, token frequencies (of a sample if there is much data), an excerpt as
// text if the tokenizer is known, and problems. Bad shards are reported in the text, not thrown.
struct DataInfo {
  std::string text;
  bool sound;  // no problem was found
};
DataInfo data_info(const ShardReportOptions& options);

// Reads every token. Returns a report if all is well; otherwise throws an Error listing all bad files and token ranges.
std::string data_verify(const ShardReportOptions& options);

// The part of `athanor data info` and `data verify` for shards of images (image_report.cc).

// True if the file begins like a shard of images; false also if it cannot be read.
bool is_image_shard(const std::string& path);
// Reports formats, counts, images per class, mean and standard deviation of pixels, and problems. Reads all images.
DataInfo image_info(std::span<const std::string> paths);

}  // namespace athanor
