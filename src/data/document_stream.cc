#include "data/document_stream.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/text_encoding.h"

namespace athanor {
namespace {

constexpr size_t kJob = 1 << 20;      // approximate bytes of text per job
constexpr size_t kHead = 64 << 10;    // bytes of a document that are hashed to choose its split
constexpr size_t kAhead = 2 * kHead;  // lookahead for the head of a job's last document, separators and special tokens
// Memory use is about 8 times these limits: a few hundred kilobytes of gzip can expand to a line of gigabytes.
constexpr size_t kMostLine = 64 << 20;   // longest JSON line
constexpr size_t kMostText = 256 << 20;  // longest text without a place to cut

bool is_lines_name(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}

bool is_parquet_file(const std::string& path) {
  if (path == "-") return false;
  const Fd file = open_regular(path);
  std::string start(size_t(std::min<int64_t>(4, file_bytes(file, path))), '\0');
  pread_all(file, std::as_writable_bytes(std::span(start)), 0, path);
  return is_parquet(start);
}

}  // namespace

bool is_held_out(std::string_view document, int64_t valid_every) {
  if (valid_every <= 0) return false;
  return philox(stream_of(document.substr(0, kHead)), 0, 0)[0] % uint64_t(valid_every) == 0;
}

void require_output(std::string_view verb, const std::string& prefix, int64_t valid_every) {
  if (prefix.empty() || prefix.back() == '/')
    throw Error(
        cat(verb, ": output prefix: expected a path that ends in the start of a name, such as data/mine, got \"",
            prefix, "\""),
        Exit::usage);
  if (valid_every < 0 || valid_every == 1)
    throw Error(cat(verb, ": valid-every: expected 0 (hold out nothing) or at least 2, got ", valid_every),
                Exit::usage);
}

DocumentStream::DocumentStream(const DocumentOptions& options, const Tokenizer& tokenizer, const StreamPosition& from)
    : options_(options), tokenizer_(tokenizer), at_(from) {}

bool DocumentStream::open() {
  if (at_.input >= int64_t(options_.inputs.size())) return false;
  const std::string& path = options_.inputs[size_t(at_.input)];
  if (is_parquet_file(path)) {
    encoding_ = {};
    rows_ = std::make_unique<ParquetColumn>(path, options_.key);
    rows_->skip(at_.offset);
    return true;
  }
  input_ = std::make_unique<TextInput>(path);
  is_lines_ = options_.format == "auto" ? is_lines_name(path) : options_.format == "jsonl";
  ended_ = false;
  encoding_ = {};
  if (at_.offset > 0) {
    input_->skip(at_.offset);
  } else {
    judge_encoding(path);
    at_.offset += int64_t(drop_byte_order_mark(buffer_, path));
  }
  return true;
}

// Refuses texts in other encodings: they would become tokens of meaningless bytes, or JSON lines that cannot be parsed.
void DocumentStream::judge_encoding(const std::string& path) {
  constexpr size_t kLookedAt = 4096;
  fill(kLookedAt);
  encoding_ = wide_encoding(std::string_view(buffer_).substr(0, kLookedAt));
  if (encoding_.empty()) return;
  const std::string text =
      cat(path, ": looks like ", encoding_, ", expected UTF-8; convert it first: iconv -f ", encoding_, " -t UTF-8");
  if (is_lines_) throw Error(text, Exit::usage);
  log::warn(text, " (its bytes are tokenized as they are)");
}

void DocumentStream::close() {
  finished_file_bytes_ += open_file_offset();
  input_.reset();
  rows_.reset();
  ++at_.input;
  at_.offset = 0;
}

void DocumentStream::fill(size_t bytes) {
  if (ended_ || buffer_.size() >= bytes) return;
  input_->read(buffer_, bytes - buffer_.size());
  ended_ = buffer_.size() < bytes;
}

std::optional<Job> DocumentStream::next() {
  for (;;) {
    if (!input_ && !rows_ && !open()) return {};
    if (auto job = rows_ ? next_rows() : is_lines_ ? next_lines() : next_text()) return job;
    close();
  }
}

// Moves the first `bytes` bytes of the buffer into the job; the position in the input advances by `advance`.
Job DocumentStream::take(Job job, size_t bytes, int64_t advance) {
  job.text = buffer_.substr(0, bytes);
  job.where = options_.inputs[size_t(at_.input)];
  job.offset = at_.offset;
  job.encoding = encoding_;
  buffer_.erase(0, bytes);
  at_.offset += advance;
  at_.total += int64_t(bytes);
  job.after = at_;
  return job;
}

std::optional<Job> DocumentStream::next_lines() {
  for (size_t wanted = kJob;; wanted *= 4) {
    fill(wanted);
    if (buffer_.empty()) return {};
    const size_t newline = buffer_.rfind('\n');
    if (newline != buffer_.npos || ended_)
      return take_text({.is_lines = true}, newline == buffer_.npos ? buffer_.size() : newline + 1);
    if (wanted >= kMostLine)
      throw Error(
          cat(options_.inputs[size_t(at_.input)], ": byte ", at_.offset, ": a line longer than ", kMostLine >> 20,
              " MiB, too long for a document; split it, or give --format text if these are no JSON lines"),
          Exit::usage);
  }
}

// Each row is a document, like a line of JSON; rows without text are skipped.
std::optional<Job> DocumentStream::next_rows() {
  Job job;
  int64_t rows = 0;
  while (buffer_.size() < kJob) {
    const auto text = rows_->next();
    if (!text) break;
    ++rows;
    if (text->empty()) continue;
    if (text->size() > kMostLine)
      throw Error(cat(options_.inputs[size_t(at_.input)], ": row ", at_.offset + rows - 1, ": a text longer than ",
                      kMostLine >> 20, " MiB, too long for a document; split it"),
                  Exit::usage);
    const Part part = is_held_out(*text, options_.valid_every) ? kValid : kTrain;
    const size_t begin = buffer_.size();
    buffer_ += *text;
    job.segments.push_back({.begin = begin, .end = buffer_.size(), .part = part, .ends = uint8_t(1 << part)});
  }
  if (rows == 0) return {};
  return take(std::move(job), buffer_.size(), rows);
}

std::optional<Job> DocumentStream::next_text() {
  for (size_t wanted = kJob;; wanted *= 4) {
    fill(wanted + kAhead);
    Job job;
    if (buffer_.empty()) {
      if (at_.in_document == 0) return {};
      job.segments.push_back({.ends = uint8_t(at_.in_document)});  // the previous job has the last text of the document
      at_.in_document = 0;
      return take_text(std::move(job), 0);
    }
    const size_t limit = ended_ ? buffer_.size() : wanted;
    size_t pos = 0;
    while (pos < limit && add_segment(job, pos, limit)) {
    }
    if (pos > 0) return take_text(std::move(job), pos);
    if (wanted >= kMostText)
      throw Error(cat(
          options_.inputs[size_t(at_.input)], ": byte ", at_.offset, ": no place to cut the text within ",
          kMostText >> 20, " MiB",
          tokenizer_.cuts() ? "" : " (with this tokenizer only documents can be cut); split the text into documents"));
  }
}

// Adds the next segment of the buffer, up to `limit` or the document's end; false: there is no place to cut.
bool DocumentStream::add_segment(Job& job, size_t& pos, size_t limit) {
  const std::string& separator = options_.separator;
  const size_t found = separator.empty() ? buffer_.npos : buffer_.find(separator, pos);
  const size_t document_end = found == buffer_.npos && ended_ ? buffer_.size() : found;
  size_t end = pos;
  if (document_end != pos) {
    if (in_blocks())
      begin_block(pos);
    else if (at_.in_document == 0)
      at_.part = is_held_out(std::string_view(buffer_).substr(pos, document_end - pos), options_.valid_every);
    const auto part = Part(at_.part);
    end = segment_end(pos, limit, document_end);
    if (end == pos) return false;
    const auto place = at_.in_document == 0 ? TextPlace::document : TextPlace::inside;
    job.segments.push_back({.begin = pos, .end = end, .part = part, .place = place});
    at_.in_document |= int64_t{1} << part;
  }
  if (end == document_end) {
    if (at_.in_document != 0 && job.segments.empty()) job.segments.emplace_back();
    if (at_.in_document != 0) job.segments.back().ends = uint8_t(at_.in_document);
    at_.in_document = 0;
    if (found != buffer_.npos) end += separator.size();
  }
  pos = end;
  return true;
}

Part DocumentStream::part_of_block(int64_t begin) const {
  return (begin / options_.block + 1) % options_.valid_every == 0 ? kValid : kTrain;
}

// Begins the first block, or the first block after text that was not cut into blocks.
void DocumentStream::begin_block(size_t pos) {
  const int64_t here = at_.total + int64_t(pos);
  if (here < at_.block_end) return;
  const int64_t begin = here / options_.block * options_.block;
  at_.part = part_of_block(begin);
  at_.block_end = begin + options_.block;
}

// Where to cut text[pos...]: at the document's end, before the block's end, or before `limit`. A block ends at the last
// position before its nominal end where the tokenizer allows a cut; without one, the next block is appended to it.
size_t DocumentStream::segment_end(size_t pos, size_t limit, size_t document_end) {
  const std::string_view document = std::string_view(buffer_).substr(0, document_end);
  size_t from = pos;
  while (in_blocks()) {
    const int64_t nominal = at_.block_end - at_.total;
    if (nominal >= int64_t(std::min(limit, document_end))) break;
    const size_t cut = tokenizer_.last_cut(document, from, size_t(nominal));
    if (cut > from) {
      at_.part = part_of_block(at_.block_end);
      at_.block_end += options_.block;
      return cut;
    }
    from = size_t(nominal);
    at_.block_end += options_.block;
  }
  if (document_end <= std::max(limit, pos) || (document_end != buffer_.npos && !options_.separator.empty()))
    return document_end;
  return tokenizer_.last_cut(document, pos, limit);
}

}  // namespace athanor
