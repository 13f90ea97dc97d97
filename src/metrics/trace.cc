#include "metrics/trace.h"

#include "base/error.h"
#include "metrics/json_text.h"

namespace athanor {
namespace {

double microseconds(std::chrono::nanoseconds ns) { return double(ns.count()) * 1e-3; }

void append_field(std::string& out, std::string_view key, double value) {
  out += cat(",\"", key, "\":");
  append_json_number(out, value);
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path) : TraceWriter(path, Options{}) {}

TraceWriter::TraceWriter(const std::string& path, const Options& options)
    : file_(path, {.size = 0, .head = std::nullopt}), options_(options), closed_(!file_.append("[\n")) {}

TraceWriter::~TraceWriter() { close(); }

// Opens an event object; end() closes it.
void TraceWriter::begin(std::string_view name, char phase, Clock::time_point time) {
  event_ = "{\"name\":";
  append_json_string(event_, name);
  event_ += cat(",\"ph\":\"", phase, "\",\"pid\":", options_.pid);
  append_field(event_, "ts", microseconds(time - start_));
}

void TraceWriter::end() {
  event_ += '}';
  if (closed_ || failed_ || bytes_ + event_.size() > options_.max_bytes) {
    ++dropped_;
    return;
  }
  if (!empty_) buffer_ += ",\n";
  empty_ = false;
  buffer_ += event_;
  bytes_ += event_.size() + 2;
  if (buffer_.size() >= options_.buffer_bytes) flush();
}

void TraceWriter::flush() {
  failed_ |= !file_.append(buffer_);
  buffer_.clear();
}

void TraceWriter::process_name(std::string_view name) {
  const std::lock_guard lock(mutex_);
  begin("process_name", 'M', start_);
  event_ += ",\"args\":{\"name\":";
  append_json_string(event_, name);
  event_ += "}";
  end();
}

void TraceWriter::thread_name(int64_t tid, std::string_view name) {
  const std::lock_guard lock(mutex_);
  begin("thread_name", 'M', start_);
  event_ += cat(",\"tid\":", tid, ",\"args\":{\"name\":");
  append_json_string(event_, name);
  event_ += "}";
  end();
}

void TraceWriter::complete(const Span& span) {
  const std::lock_guard lock(mutex_);
  begin(span.name, 'X', span.begin);
  event_ += cat(",\"tid\":", span.tid);
  append_field(event_, "dur", microseconds(span.end - span.begin));
  if (!span.category.empty()) {
    event_ += ",\"cat\":";
    append_json_string(event_, span.category);
  }
  end();
}

void TraceWriter::counter(std::string_view name, double value) {
  const std::lock_guard lock(mutex_);
  begin(name, 'C', Clock::now());
  event_ += ",\"args\":{\"value\":";
  append_json_number(event_, value);
  event_ += "}";
  end();
}

void TraceWriter::close() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;
  buffer_ += "\n]\n";
  flush();
}

int64_t TraceWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace athanor
