// Scalars and errors of the option tables: exact types, ranges, and the nearest name for a misspelled key.
#include "config/fields.h"

#include <algorithm>
#include <cmath>

#include "base/edit_distance.h"
#include "base/error.h"
#include "base/file.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

constexpr size_t kMaxShown = 80;      // maximum bytes of a wrong value quoted in a message
constexpr size_t kMaxCompared = 100;  // longer keys are not looked up as misspellings

std::string shown(const Json& value) {
  if (value.is(Json::Kind::array)) return "a list";
  if (value.is(Json::Kind::object)) return "an object";
  if (!value.is(Json::Kind::string)) return to_line(value);
  const bool long_text = value.text.size() > kMaxShown;
  return cat("the string ", json_string(value.text.substr(0, kMaxShown)), long_text ? "..." : "");
}

std::string plain(double v) {  // integers without a point: 2147483648, not 2147483648.0
  std::string text = number_text(v);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

bool is_shared_bound(double high) { return high == kMaxInteger || high == kMaxReal; }

// An upper bound that many options share is mentioned only if the value exceeds it.
std::string bounds_for(const Range& range, const Json& value) {
  std::string text = to_text(range);
  if (is_shared_bound(range.high) && value.is_number() && value.real > range.high)
    text += cat(text.empty() ? "<= " : " and <= ", plain(range.high));
  return text;
}

std::string expectation(std::string_view what, const Range& range, const Word& word, const Json& value) {
  const std::string bounds = bounds_for(range, value);
  std::string text = cat(what, bounds.empty() ? "" : " ", bounds);
  if (word.text == "null") return text + " or null";
  if (!word.text.empty()) text += cat(" or \"", word.text, "\"");
  return text;
}

bool is_word(const Json& value, std::string_view word) {
  if (word.empty()) return false;
  return word == "null" ? value.is(Json::Kind::null) : value.is(Json::Kind::string) && value.text == word;
}

bool in_range(double v, const Range& range) {
  const bool above_low = range.open_low ? float(v) > float(range.low) : v >= range.low;  // ops take floats
  const bool below_high = range.open_high ? v < range.high : v <= range.high;
  return std::isfinite(v) && above_low && below_high;
}

// Calls fn(item, path) for the items of a list; null is an empty list.
template <class Fn>
void for_each_item(const Json& value, const std::string& path, const std::string& expected, const Fn& fn) {
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array)) bad_value(value, path, expected);
  for (size_t i = 0; i < value.items.size(); ++i) fn(value.items[i], cat(path, "[", i, "]"));
}

}  // namespace

std::string to_text(const Range& range) {
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high) && !is_shared_bound(range.high);
  if (low && high && !range.open_low && !range.open_high) return cat(plain(range.low), " ... ", plain(range.high));
  std::string text;
  if (low) text = cat(range.open_low ? "> " : ">= ", plain(range.low));
  if (high) text += cat(low ? " and " : "", range.open_high ? "< " : "<= ", plain(range.high));
  return text;
}

std::string joined(std::span<const std::string_view> words, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += cat(i > 0 ? separator : "", words[i]);
  return text;
}

std::string dotted(const std::string& prefix, std::string_view key) {
  const std::string shown_key(key.substr(0, kMaxShown));
  return prefix.empty() ? shown_key : cat(prefix, ".", shown_key);
}

void bad_value(const Json& value, const std::string& path, const std::string& expected) {
  throw Error(cat(value.where, ": ", path, ": expected ", expected, ", got ", shown(value)), Exit::usage);
}

bool read_bool(const Json& value, const std::string& path) {
  if (!value.is(Json::Kind::boolean)) bad_value(value, path, "true or false");
  return value.boolean;
}

std::string read_string(const Json& value, const std::string& path) {
  if (!value.is(Json::Kind::string)) bad_value(value, path, "a string");
  if (value.text.find('\0') != std::string::npos) bad_value(value, path, "a string without a zero byte");
  return value.text;
}

std::string read_path(const Json& value, const std::string& path) {
  const std::string text = read_string(value, path);
  return with_context(cat(value.where, ": ", path), [&] { return expand_home(text); });
}

int64_t read_integer(const Json& value, const std::string& path, const Range& range, const Word& word) {
  if (is_word(value, word.text)) return word.value;
  if (!value.is(Json::Kind::integer) || !in_range(value.real, range)) {
    bad_value(value, path, expectation("an integer", range, word, value));
  }
  return value.integer;
}

double read_real(const Json& value, const std::string& path, const Range& range, const Word& word) {
  if (is_word(value, word.text)) return double(word.value);
  if (!value.is_number() || !in_range(value.real, range)) {
    bad_value(value, path, expectation("a number", range, word, value));
  }
  return value.real;
}

int read_choice(const Json& value, const std::string& path, std::span<const std::string_view> names) {
  for (size_t i = 0; i < names.size() && value.is(Json::Kind::string); ++i) {
    if (names[i] == value.text) return int(i);
  }
  refuse_removed_value(value, path);
  const std::string expected = cat(names.size() > 1 ? "one of " : "", joined(names, ", "));
  const std::string near = value.is(Json::Kind::string) ? nearest(value.text, names) : "";
  if (near.empty()) bad_value(value, path, expected);
  throw Error(
      cat(value.where, ": ", path, ": expected ", expected, ", got ", shown(value), "; did you mean \"", near, "\"?"),
      Exit::usage);
}

void require_object(const Json& value, const std::string& path) {
  if (!value.is(Json::Kind::object)) bad_value(value, path.empty() ? "configuration" : path, "an object");
}

void unknown_key(const Json& value, const std::string& path, std::string_view key, const std::string& near) {
  const std::string remedy = near.empty() ? "configs/README.md lists all keys" : cat("did you mean \"", near, "\"?");
  throw Error(cat(value.where, ": unknown key ", json_string(dotted(path, key)), "; ", remedy), Exit::usage);
}

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.empty() || word.size() > kMaxCompared) return "";
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (auto candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return std::string(best);
}

Json number_schema(std::string_view type, const Range& range, const Word& word) {
  Json number = Json::object();
  number.set("type", Json::of(type));
  const auto bound = [&](double v) { return type == "integer" ? Json::of(int64_t(v)) : Json::of(v); };
  if (std::isfinite(range.low)) number.set(range.open_low ? "exclusiveMinimum" : "minimum", bound(range.low));
  if (std::isfinite(range.high)) number.set(range.open_high ? "exclusiveMaximum" : "maximum", bound(range.high));
  if (word.text.empty()) return number;
  Json constant = Json::object();
  constant.set("const", word.text == "null" ? Json() : Json::of(word.text));
  return any_of({std::move(number), std::move(constant)});
}

std::vector<double> read_numbers(const Json& value, const std::string& path, const Range& range,
                                 const std::string& expected) {
  std::vector<double> numbers;
  for_each_item(value, path, expected,
                [&](const Json& item, const std::string& at) { numbers.push_back(read_real(item, at, range)); });
  return numbers;
}

std::vector<int64_t> read_integers(const Json& value, const std::string& path, const Range& range,
                                   const std::string& expected, const Word& word) {
  std::vector<int64_t> numbers;
  for_each_item(value, path, expected, [&](const Json& item, const std::string& at) {
    numbers.push_back(read_integer(item, at, range, word));
  });
  return numbers;
}

Json write_numbers(std::span<const double> numbers) {
  if (numbers.empty()) return Json();
  Json list = Json::array();
  for (const double x : numbers) list.items.push_back(Json::of(x));
  return list;
}

Json write_integers(std::span<const int64_t> numbers) {
  if (numbers.empty()) return Json();
  Json list = Json::array();
  for (const int64_t i : numbers) list.items.push_back(i < 0 ? Json() : Json::of(i));
  return list;
}

Json schema_from(std::string_view text) { return parse_json(text, "schema"); }

Json any_of(std::vector<Json> schemas) {
  Json either = Json::object(), any = Json::array();
  any.items = std::move(schemas);
  either.set("anyOf", std::move(any));
  return either;
}

Json null_or(Json schema) { return any_of({std::move(schema), schema_from(R"({"type": "null"})")}); }

Json list_schema(Json item) {
  Json list = Json::object();
  list.set("type", Json::of("array"));
  list.set("items", std::move(item));
  return null_or(std::move(list));
}

Json numbers_schema() { return list_schema(number_schema("number", {}, {})); }

Json choice_schema(std::span<const std::string_view> names) {
  Json words = Json::array(), schema = Json::object();
  for (auto name : names) words.items.push_back(Json::of(name));
  schema.set("enum", std::move(words));
  return schema;
}

}  // namespace athanor
