#include "metrics/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/process_mark.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// The part of protobuf's wire format that events need; field numbers are those of tensorboard's event.proto and
// summary.proto.

enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  out += char(value);
}

void append_key(std::string& out, uint64_t field, Wire wire) { append_varint(out, field << 3 | wire); }

void append_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// Encodes Event{wall_time = 1, step = 2, <what> = 3 file_version, 5 summary or 7 session_log}.
std::string event_record(double time, int64_t step, uint64_t what, std::string_view content) {
  std::string out;
  append_key(out, 1, kFixed64);
  append_raw(out, time);
  append_key(out, 2, kVarint);
  append_varint(out, uint64_t(step));
  append_bytes(out, what, content);
  return out;
}

// Appends Summary.Value{tag = 1, simple_value = 2} to a Summary.
void append_scalar(std::string& summary, std::string_view tag, double value) {
  std::string entry;
  append_bytes(entry, 1, tag);
  append_key(entry, 2, kFixed32);
  append_raw(entry, float(value));
  append_bytes(summary, 1, entry);
}

std::string tag_of(std::string_view pattern, std::string_view name) {
  std::string tag(pattern);
  if (const size_t at = tag.find("{name}"); at != std::string::npos) tag.replace(at, 6, name);
  return tag;
}

template <class Record>
std::string summary_of(const Record& record, std::span<const RecordField<Record>> fields, std::string_view name = {}) {
  std::string summary;
  for (const auto& field : fields) {
    if (field.tag.empty()) continue;
    const std::string tag = tag_of(field.tag, name);
    std::visit(
        [&](auto member) {
          const auto& value = record.*member;
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, NamedValues>)
            for (const auto& [key, number] : value) append_scalar(summary, tag_of(field.tag, key), number);
          if constexpr (requires { value.has_value(); })
            if (value) append_scalar(summary, tag, double(*value));
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
            if (!(field.nan_is_unknown && std::isnan(double(value)))) append_scalar(summary, tag, double(value));
        },
        field.member);
  }
  return summary;
}

std::string host_in_names() {
  std::string host = host_name();
  if (host.empty()) return "host";
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return !std::isalnum(c) && c != '-'; }, '_');
  return host;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

std::string new_name(const std::string& folder) {
  int64_t seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kPrefix)) {
      const int64_t other = std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10);
      if (other < 9'999'999'999) seconds = std::max(seconds, other + 1);  // ten digits, so that names sort like numbers
    }
  }
  return cat(kPrefix, seconds, ".", host_in_names(), ".", ::getpid(), ".0");
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

uint32_t masked_crc(std::string_view data) {
  const uint32_t crc = crc32c(data.data(), data.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;  // masked, as TFRecord requires, so that CRCs of data that contains
                                                     // CRCs stay useful
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string out;
  append_raw(out, uint64_t(data.size()));
  append_raw(out, masked_crc(out));
  out += data;
  append_raw(out, masked_crc(data));
  return out;
}

namespace {

// The record that states the file's format version.
std::string first_record() { return tfrecord(event_record(now(), 0, 3, "brain.Event:2")); }

}  // namespace

TensorboardSink::TensorboardSink(const std::string& folder, int64_t interval)
    : file_(parent_dir(folder), cat(base_name(folder), "/", new_name(folder)), {.head = first_record()}),
      interval_(std::max<int64_t>(1, interval)) {
  file_.append(first_record());
}

void TensorboardSink::start_at(int64_t step, double time) {
  std::string log;  // SessionLog{status = 1: START = 1}
  append_key(log, 1, kVarint);
  append_varint(log, 1);
  file_.append(tfrecord(event_record(time, step, 7, log)));
  next_step_ = step;
}

void TensorboardSink::step(const StepMetrics& m) {
  if (m.step < next_step_ || next_step_ < 0) start_at(m.step, m.time);
  next_step_ = m.step + 1;
  if (m.step % interval_ == 0 || m.step == m.total_steps)
    file_.append(tfrecord(event_record(m.time, m.step, 5, summary_of(m, step_fields()))));
}

void TensorboardSink::eval(const EvalMetrics& m) {
  if (next_step_ < 0) start_at(m.step + 1, m.time);
  file_.append(tfrecord(event_record(m.time, m.step, 5, summary_of(m, eval_fields(), m.name))));
}

void TensorboardSink::event(const EventRecord& e) {
  if (e.kind == EventKind::resume) start_at(e.step + 1, e.time);
}

}  // namespace athanor
