// Cuts the inputs of `athanor tokenize` into jobs of about a megabyte and decides which text is held out. The stream
// can restart at any job boundary.
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
  std::string format = "auto";  // of texts: "text", "jsonl"; "auto": by the file name
  std::string key = "text";     // JSON lines: the member that holds the text; parquet: the column
  std::string separator;        // text: separator of documents; "": a file is one document
  int64_t valid_every = 20;     // one of this many documents or blocks is held out; 0: none
  int64_t block = 4096;         // bytes per block if a file is one document; 0: hold out whole documents
};

// A document is held out by a hash of its first 64 KiB, so equal documents go to the same split.
bool is_held_out(std::string_view document, int64_t valid_every);

// Position in the inputs where the next job begins.
struct StreamPosition {
  int64_t input = 0;
  int64_t offset = 0;       // in the text of that input; of a parquet file, its rows
  int64_t total = 0;        // bytes of text before this input's text
  int64_t block_end = 0;    // end of the open block, as an offset in all text
  int64_t part = kTrain;    // part of the open block or document
  int64_t in_document = 0;  // bit p: the open document has text in part p; 0: none is open
};

// Text of a job that is encoded on its own, for one split; `ends` has bit p set if split p gets an end of document
// after it.
struct Segment {
  size_t begin = 0, end = 0;
  Part part = kTrain;
  uint8_t ends = 0;
  TextPlace place = TextPlace::document;
};

struct Job {
  std::string text;
  bool is_lines = false;  // JSON lines; else the segments
  std::vector<Segment> segments;
  std::string where;   // the input
  int64_t offset = 0;  // offset of the segments' text in that input, as in StreamPosition
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
  std::unique_ptr<TextInput> input_;     // the open input, or
  std::unique_ptr<ParquetColumn> rows_;  // a column of a parquet file
  bool is_lines_ = false;
  bool ended_ = false;  // the rest of the input is in buffer_
  std::string buffer_;  // text from at_.offset on
  int64_t finished_file_bytes_ = 0;
};

}  // namespace athanor
