#include "metrics/jsonl.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "metrics/json_text.h"
#include "metrics/run_records.h"

namespace athanor {
namespace {

constexpr std::string_view kNonfinite = "_nonfinite";

void append_key(std::string& out, std::string_view name) {
  out += ", ";
  append_json_string(out, name);
  out += ": ";
}

void append_double(std::string& out, std::string_view name, bool nan_is_unknown, double value) {
  append_key(out, name);
  append_json_number(out, value);
  if (std::isfinite(value) || (nan_is_unknown && std::isnan(value))) return;
  append_key(out, cat(name, kNonfinite));
  append_json_string(out, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

void append_object(std::string& out, std::string_view name, const NamedValues& values) {
  append_key(out, name);
  out += '{';
  for (const auto& [key, value] : values) {
    if (out.back() != '{') out += ", ";
    append_json_string(out, key);
    out += ": ";
    append_json_number(out, value);
  }
  out += '}';
}

template <class Record>
std::string line_of(std::string_view event, const Record& record, std::span<const RecordField<Record>> fields) {
  std::string out = "{\"event\": ";
  append_json_string(out, event);
  for (const auto& field : fields) {
    std::visit(
        [&](auto member) {
          const auto& value = record.*member;
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double>) {
            append_double(out, field.name, field.nan_is_unknown, value);
          } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
            if (value) append_double(out, field.name, field.nan_is_unknown, *value);
          } else if constexpr (std::is_same_v<Value, std::optional<int64_t>>) {
            if (!value) return;
            append_key(out, field.name);
            append_json_number(out, *value);
          } else if constexpr (std::is_same_v<Value, NamedValues>) {
            if (!value.empty()) append_object(out, field.name, value);
          } else {
            append_key(out, field.name);
            if constexpr (std::is_same_v<Value, std::string>)
              append_json_string(out, value);
            else if constexpr (std::is_same_v<Value, bool>)
              out += value ? "true" : "false";
            else
              append_json_number(out, value);
          }
        },
        field.member);
  }
  return out + "}";
}

// The last step of the series, from the last valid line of `text`, whose first line may be truncated.
std::optional<int64_t> last_step_in(std::string_view text) {
  while (!text.empty()) {
    const size_t newline = text.rfind('\n', text.size() - 1);
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (RunRecords line; parse_record(text.substr(begin), line)) {
      if (!line.steps.empty()) return line.steps.back().step;
      if (!line.events.empty() && line.events.back().supersedes_from) return *line.events.back().supersedes_from - 1;
    }
    if (newline == std::string_view::npos) break;
    text = text.substr(0, newline);
  }
  return std::nullopt;
}

// Throws if the path is not a regular file: opening a pipe would block until somebody writes.
std::ifstream open_records(const std::string& path) {
  std::error_code ignored;
  std::ifstream in;
  if (!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored))
    in.open(path, std::ios::binary);
  else
    in.setstate(std::ios::failbit);
  return in;
}

// Reads the file from its end, doubling the range until a step is found, so that the size of the file does not matter.
JsonlTail find_tail(const std::string& path) {
  std::ifstream in = open_records(path);
  const int64_t size = in ? int64_t(in.seekg(0, std::ios::end).tellg()) : -1;
  if (size <= 0) return {};
  for (int64_t length = int64_t(1) << 16;; length *= 2) {
    const int64_t begin = std::max<int64_t>(0, size - length);
    std::string text(size_t(size - begin), '\0');
    in.seekg(begin);
    in.read(text.data(), std::streamsize(text.size()));
    if (!in) return {};
    const size_t newline = text.rfind('\n');
    if (newline == std::string::npos && begin > 0) continue;
    JsonlTail tail;
    tail.size = newline == std::string::npos ? 0 : begin + int64_t(newline) + 1;
    const auto last = last_step_in(std::string_view(text).substr(0, size_t(tail.size - begin)));
    if (!last && begin > 0) continue;
    tail.last_step = last.value_or(-1);
    return tail;
  }
}

}  // namespace

std::string json_line(const StepMetrics& m) { return line_of("step", m, step_fields()); }
std::string json_line(const EvalMetrics& m) { return line_of("eval", m, eval_fields()); }
std::string json_line(const RoutingMetrics& m) { return line_of("routing", m, routing_fields()); }
std::string json_line(const PrunedMetrics& m) { return line_of("pruned", m, pruned_fields()); }
std::string json_line(const QuantizedMetrics& m) { return line_of("quantized", m, quantized_fields()); }
std::string json_line(const CommunicationMetrics& m) { return line_of("communication", m, communication_fields()); }
std::string json_line(const EventRecord& e) { return line_of(to_string(e.kind), e, event_fields()); }

JsonlSink::JsonlSink(const std::string& path) : tail_(find_tail(path)), file_(path, {.size = tail_.size}) {}

void JsonlSink::write(std::string line) {
  line += '\n';
  file_.append(line);
}

void JsonlSink::step(const StepMetrics& m) {
  if (m.step <= tail_.last_step) event({.kind = EventKind::resume, .step = m.step - 1, .time = m.time});
  tail_.last_step = m.step;
  write(json_line(m));
}

void JsonlSink::eval(const EvalMetrics& m) { write(json_line(m)); }
void JsonlSink::routing(const RoutingMetrics& m) { write(json_line(m)); }
void JsonlSink::pruned(const PrunedMetrics& m) { write(json_line(m)); }
void JsonlSink::quantized(const QuantizedMetrics& m) { write(json_line(m)); }

void JsonlSink::communication(const CommunicationMetrics& m) { write(json_line(m)); }

void JsonlSink::event(const EventRecord& record) {
  EventRecord e = record;
  if (e.kind == EventKind::resume && e.step < tail_.last_step) {
    e.supersedes_from = e.step + 1;
    tail_.last_step = e.step;
  }
  write(json_line(e));
}

std::map<std::string, double> evaluations_after(const std::string& path, int64_t step) {
  std::ifstream in = open_records(path);
  std::map<std::string, double> found;
  for (std::string line; std::getline(in, line);) {
    const bool eval = line.find("\"eval\"") != line.npos;  // most lines need not be parsed
    if (!eval && line.find("\"supersedes_from\"") == line.npos) continue;
    RunRecords record;
    if (!parse_record(line, record)) continue;
    for (const EventRecord& e : record.events)
      if (e.supersedes_from && *e.supersedes_from <= step) found.clear();
    for (const EvalMetrics& e : record.evals)
      if (e.step == step) found[e.name] = e.loss;
  }
  return found;
}

}  // namespace athanor
