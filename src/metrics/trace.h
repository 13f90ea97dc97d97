// Timeline of the run for chrome://tracing and ui.perfetto.dev (--profile): streamed to a file in the JSON array form
// of the Trace Event Format. The viewers accept the array without its end, too, so the file of a killed run can be
// opened. Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "metrics/append_file.h"

namespace athanor {

class TraceWriter {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    int64_t pid = 0;                         // rank
    uint64_t max_bytes = uint64_t(1) << 30;  // size limit of the file; later events are dropped and counted
    size_t buffer_bytes = size_t(1) << 16;   // buffered in memory between writes
  };

  // Overwrites the file. A write failure warns once and ends the trace.
  explicit TraceWriter(const std::string& path);
  TraceWriter(const std::string& path, const Options&);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void process_name(std::string_view name);
  void thread_name(int64_t tid, std::string_view name);

  struct Span {
    std::string_view name, category;
    int64_t tid = 0;
    Clock::time_point begin, end;
  };
  void complete(const Span&);
  void counter(std::string_view name, double value);  // at the current time

  // Ends the JSON array; later events are ignored. The destructor calls it, too.
  void close();
  int64_t dropped() const;

 private:
  void begin(std::string_view name, char phase, Clock::time_point time);
  void end();
  void flush();

  AppendFile file_;
  Options options_;
  Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  std::string buffer_;
  std::string event_;  // the event being built
  uint64_t bytes_ = 0;
  int64_t dropped_ = 0;
  bool empty_ = true, failed_ = false, closed_ = false;
};

// Records a span from construction to the end of the scope. Does nothing without a writer.
class TraceScope {
 public:
  TraceScope(TraceWriter* writer, std::string_view name, int64_t tid = 0)
      : writer_(writer), name_(name), tid_(tid), begin_(TraceWriter::Clock::now()) {}
  ~TraceScope() {
    if (writer_)
      writer_->complete(
          {.name = name_, .category = "", .tid = tid_, .begin = begin_, .end = TraceWriter::Clock::now()});
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceWriter* writer_;
  std::string_view name_;  // must outlive the scope, for example a literal
  int64_t tid_;
  TraceWriter::Clock::time_point begin_;
};

}  // namespace athanor
