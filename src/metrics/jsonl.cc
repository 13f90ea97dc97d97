#include "metrics/jsonl.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "metrics/json_text.h"

namespace athanor {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kNonfinite = "_nonfinite";

// ---- writing ----

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

// ---- reading ----

double read_double(const Json& object, std::string_view name) {
  const auto it = object.find(name);
  if (it == object.end()) return kUnknown;
  if (it->is_number()) return it->get<double>();
  const auto word = object.find(cat(name, kNonfinite));
  if (word == object.end() || !word->is_string() || *word == "nan") return kUnknown;
  return *word == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

std::optional<int64_t> read_int(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  return value.get<int64_t>();
}

// The value of a field that counts steps: not negative.
std::optional<int64_t> read_step(const Json& object, std::string_view name) {
  const auto it = object.find(name);
  if (it == object.end()) return std::nullopt;
  const auto value = read_int(*it);
  return value && *value >= 0 ? value : std::nullopt;
}

// A field of the wrong type keeps its default: a log is read as far as possible.
template <class Record>
Record record_of(const Json& object, std::span<const RecordField<Record>> fields) {
  Record record;
  for (const auto& field : fields) {
    const auto it = object.find(field.name);
    if (it == object.end()) continue;
    std::visit(
        [&](auto member) {
          auto& value = record.*member;
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::optional<double>>) {
            value = read_double(object, field.name);
          } else if constexpr (std::is_same_v<Value, std::string>) {
            if (it->is_string()) value = it->template get<std::string>();
          } else if constexpr (std::is_same_v<Value, bool>) {
            if (it->is_boolean()) value = it->template get<bool>();
          } else if constexpr (std::is_same_v<Value, uint64_t>) {
            if (it->is_number_unsigned()) value = it->template get<uint64_t>();
          } else {
            if (const auto number = read_int(*it)) value = *number;
          }
        },
        field.member);
  }
  return record;
}

// The object of a line if it is a record: it has an event name and a step.
std::optional<Json> parse_line(std::string_view line) {
  Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto event = object.find("event");
  if (event == object.end() || !event->is_string() || !read_step(object, "step")) return std::nullopt;
  return object;
}

// Drops the records with step >= `from`; returns how many.
template <class Record>
int64_t drop_from(std::vector<Record>& records, int64_t from) {
  return int64_t(std::erase_if(records, [&](const Record& r) { return r.step >= from; }));
}

void supersede(MetricHistory& history, int64_t from) {
  history.superseded += drop_from(history.steps, from) + drop_from(history.evals, from);
}

void add_line(MetricHistory& history, std::string_view line) {
  const auto object = parse_line(line);
  if (!object) {
    ++history.bad_lines;
    return;
  }
  const std::string name = object->at("event");
  if (name == "step") {
    const StepMetrics m = record_of(*object, step_fields());
    if (!history.steps.empty() && history.steps.back().step >= m.step) supersede(history, m.step);
    history.steps.push_back(m);
  } else if (name == "eval") {
    EvalMetrics m = record_of(*object, eval_fields());
    history.superseded += int64_t(
        std::erase_if(history.evals, [&](const EvalMetrics& r) { return r.name == m.name && r.step >= m.step; }));
    history.evals.push_back(std::move(m));
  } else if (const auto kind = event_kind(name)) {
    EventRecord e = record_of(*object, event_fields());
    e.kind = *kind;
    if (const auto from = read_step(*object, "supersedes_from")) supersede(history, *from);
    history.events.push_back(std::move(e));
  }
}

// ---- continuing a file ----

// The step at the end of the series, from the last usable line of `text`; its first line may be cut.
std::optional<int64_t> last_step_in(std::string_view text) {
  while (!text.empty()) {
    const size_t newline = text.rfind('\n', text.size() - 1);
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (const auto object = parse_line(text.substr(begin))) {
      if (object->at("event") == "step") return read_step(*object, "step");
      if (const auto from = read_step(*object, "supersedes_from")) return *from - 1;
    }
    if (newline == std::string_view::npos) break;
    text = text.substr(0, newline);
  }
  return std::nullopt;
}

// Fails where something else than a file has that name: opening a pipe would wait until somebody writes.
std::ifstream open_records(const std::string& path) {
  std::error_code ignored;
  std::ifstream in;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    errno = EINVAL;
    in.setstate(std::ios::failbit);
  } else {
    in.open(path, std::ios::binary);
  }
  return in;
}

// Reads the file from its end, twice as far each time, until a step is found: a long file costs nothing at start.
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
std::string json_line(const EventRecord& e) { return line_of(to_string(e.kind), e, event_fields()); }

JsonlSink::JsonlSink(const std::string& path) : tail_(find_tail(path)), file_(path, tail_.size) {}

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

void JsonlSink::event(const EventRecord& record) {
  EventRecord e = record;
  if (e.kind == EventKind::resume && e.step < tail_.last_step) {
    e.supersedes_from = e.step + 1;
    tail_.last_step = e.step;
  }
  write(json_line(e));
}

std::set<std::string> evaluations_after(const std::string& path, int64_t step) {
  std::ifstream in = open_records(path);
  std::set<std::string> found;
  for (std::string line; std::getline(in, line);) {
    const bool eval = line.find("\"eval\"") != line.npos;  // most lines need not be parsed
    if (!eval && line.find("\"supersedes_from\"") == line.npos) continue;
    const auto object = parse_line(line);
    if (!object) continue;
    if (const auto from = read_step(*object, "supersedes_from"); from && *from <= step) found.clear();
    if (object->at("event") != "eval" || read_step(*object, "step") != step) continue;
    if (const auto name = object->find("name"); name != object->end() && name->is_string())
      found.insert(name->get<std::string>());
  }
  return found;
}

MetricHistory read_metrics(const std::string& path) {
  std::ifstream in = open_records(path);
  if (!in)
    throw Error(cat("metrics: cannot open ", path, ": ",
                    errno == EINVAL ? "expected a file, found a folder, pipe or device" : std::strerror(errno)));
  MetricHistory history;
  for (std::string line; std::getline(in, line);) {
    if (in.eof())
      ++history.bad_lines;  // a record ends with its newline
    else if (!line.empty())
      add_line(history, line);
  }
  if (in.bad()) throw Error(cat("metrics: cannot read ", path, ": ", std::strerror(errno)));
  return history;
}

}  // namespace athanor
