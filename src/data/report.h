// What is in these shards, and are they whole: the texts of `athanor data info` and `athanor data verify`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

struct ReportOptions {
  std::vector<std::string> path_globs;  // files or patterns
  std::string dtype = "auto";           // of all of them: see TokenFile::open
  std::string tokenizer;                // a tokenizer file or folder; "": by the descriptor beside the shards, if any
  int64_t vocab_size = 0;               // 0: the tokenizer's
  int64_t eod_id = -1;                  // info: ends a document, where no index says it; -1: the tokenizer's
  bool ngram = false;                   // info: n-gram losses too; the last twentieth of the tokens is validation
  std::string ngram_valid_glob;         // info: or these shards are
};

// Shards, token counts, lengths of documents, a summary of the token frequencies (of a spread-out sample where there is
// much), an excerpt in plain text where the tokenizer is known, and problems. Bad shards are reported in the text, not
// thrown.
struct DataInfo {
  std::string text;
  bool sound;  // no problem was found
};
DataInfo data_info(const ReportOptions& options);

// Reads every token. Returns a report when all is well; throws an Error that lists every bad file and token range.
std::string data_verify(const ReportOptions& options);

}  // namespace athanor
