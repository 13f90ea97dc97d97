// Cuts the inputs of `athanor tokenize` into jobs of about a megabyte and decides which text goes to the validation
// split. The stream can restart at any job boundary.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/parquet_column.h"
#include "data/text_input.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

enum Part : uint8_t { kTrain = 0, kValid = 1 };

struct DocumentOptions {
  std::vector<std::string> inputs;
  std::string format = "auto";  // text format: "text", "jsonl"; "auto": by the file name
  std::string key = "text";     // JSON lines: the key that holds the text; parquet: the column
  std::string separator;        // text: separator between documents; "": each file is one document
  int64_t valid_every = 20;     // one in this many documents or blocks goes to the validation split; 0: none
  int64_t block = 4096;         // bytes per block if each file is one document; 0: split by whole documents
};

// The split of a document is chosen by a hash of its first 64 KiB, so equal documents go to the same split.
bool is_held_out(std::string_view document, int64_t valid_every);

// Throws Error(usage), naming the verb, for a prefix that ends in no name and for a number that no split can have.
void require_output(std::string_view verb, const std::string& prefix, int64_t valid_every);

// Position in the inputs where the next job begins.
struct StreamPosition {
  int64_t input = 0;
  int64_t offset = 0;       // bytes into the text of that input; for a parquet file, rows
  int64_t total = 0;        // bytes of text in all earlier inputs
  int64_t block_end = 0;    // end of the current block, as an offset into the text of all inputs
  int64_t part = kTrain;    // split of the current block or document
  int64_t in_document = 0;  // bit p: the current document has text in split p; 0: no document is open
};

// A part of a job's text that is encoded separately and goes to one split. Bit p of `ends`: split p gets an
// end-of-document token after it.
struct Segment {
  size_t begin = 0, end = 0;
  Part part = kTrain;
  uint8_t ends = 0;
  TextPlace place = TextPlace::document;
};

struct Job {
  std::string text;
  bool is_lines = false;  // the text is JSON lines; otherwise `segments` apply
  std::vector<Segment> segments;
  std::string where;          // path of the input
  int64_t offset = 0;         // offset of the segments' text in that input, as in StreamPosition
  std::string_view encoding;  // that the input seems to have instead of UTF-8; empty: none is known
  StreamPosition after;
};

class DocumentStream {
 public:
  DocumentStream(const DocumentOptions& options, const Tokenizer& tokenizer, const StreamPosition& from = {});
  std::optional<Job> next();
  const StreamPosition& position() const { return at_; }
  int64_t file_bytes_read() const { return finished_file_bytes_ + open_file_offset(); }

 private:
  bool open();
  int64_t open_file_offset() const { return input_ ? input_->file_offset() : rows_ ? rows_->file_offset() : 0; }
  void judge_encoding(const std::string& path);
  void close();
  void fill(size_t bytes);
  bool in_blocks() const { return options_.separator.empty() && options_.block > 0 && options_.valid_every > 0; }
  std::optional<Job> next_lines();
  std::optional<Job> next_rows();
  std::optional<Job> next_text();
  bool add_segment(Job& job, size_t& pos, size_t limit);
  Part part_of_block(int64_t begin) const;
  void begin_block(size_t pos);
  size_t segment_end(size_t pos, size_t limit, size_t document_end);
  Job take(Job job, size_t bytes, int64_t advance);
  Job take_text(Job job, size_t bytes) { return take(std::move(job), bytes, int64_t(bytes)); }

  const DocumentOptions& options_;
  const Tokenizer& tokenizer_;
  StreamPosition at_;
  std::unique_ptr<TextInput> input_;     // set if the open input is a text
  std::unique_ptr<ParquetColumn> rows_;  // set if the open input is a parquet file
  bool is_lines_ = false;
  std::string_view encoding_;  // Job::encoding of the open input
  bool ended_ = false;         // buffer_ holds all the remaining input
  std::string buffer_;         // text that starts at at_.offset
  int64_t finished_file_bytes_ = 0;
};

}  // namespace athanor
