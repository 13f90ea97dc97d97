// JSON text as a small tree in which every value knows its source, for messages that name file and line.
// Strict: duplicate keys, non-finite numbers, comments, deep nesting and huge inputs are errors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

inline constexpr size_t kMaxConfigBytes = 1 << 20;  // configurations are kilobytes; a larger file is the wrong file

struct Json {
  enum class Kind { null, boolean, integer, real, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;              // also set for integers
  std::string text;               // a string's value, or a number as written
  std::vector<std::string> keys;  // keys of an object, one per item, in the order of the text
  std::vector<Json> items;        // items of an array or object
  std::string where;              // "file:line", or the override that set it

  static Json of(bool);
  static Json of(int64_t);
  static Json of(double);
  static Json of(std::string_view);
  static Json of(const std::string& text) { return of(std::string_view(text)); }
  static Json of(const char* text) { return of(std::string_view(text)); }
  static Json array() { return of_kind(Kind::array); }
  static Json object() { return of_kind(Kind::object); }

  Json* find(std::string_view key);  // nullptr if absent or not an object
  const Json* find(std::string_view key) const { return const_cast<Json*>(this)->find(key); }
  Json& set(std::string key, Json value);  // replaces or appends
  void erase(std::string_view key);

  bool is(Kind k) const { return kind == k; }
  bool is_number() const { return kind == Kind::integer || kind == Kind::real; }

 private:
  static Json of_kind(Kind k);
};

// Throws Error(..., Exit::usage) that opens with "name:line:column".
Json parse_json(std::string_view text, const std::string& name);

std::string json_string(std::string_view);  // as a JSON string literal; invalid UTF-8 is replaced
std::string number_text(double);            // shortest text that parses back to the same value, always with a point or
                                            // exponent
std::string to_line(const Json&);
std::string to_pretty(const Json&);  // two spaces per level, a newline at the end

}  // namespace athanor
