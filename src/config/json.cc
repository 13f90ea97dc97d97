// JSON reading and writing: nlohmann's parser drives a handler that builds the tree and keeps track of lines.
#include "config/json.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace athanor {
namespace {

constexpr size_t kMaxDepth = 32;         // the deepest valid configuration has 4
constexpr size_t kMaxMembers = 4096;     // per object; limits the quadratic search for duplicates
constexpr size_t kMaxMessageText = 160;  // maximum bytes of input quoted in a message

// Position of the parser. Lines are counted only on request.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  void consumed(size_t bytes) { consumed_ = bytes; }
  // Line of the last byte consumed; a newline belongs to the line it ends.
  size_t line() {
    const size_t end = consumed_ > 0 ? consumed_ - 1 : 0;
    for (; counted_ < end; ++counted_) line_ += text_[counted_] == '\n';
    return line_;
  }

 private:
  std::string_view text_;
  size_t consumed_ = 0, counted_ = 0, line_ = 1;
};

// Iterator over the text that reports each byte to the cursor.
struct TrackedByte {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* begin = nullptr;
  const char* at = nullptr;
  Cursor* cursor = nullptr;

  reference operator*() const { return *at; }
  TrackedByte& operator++() {
    ++at;
    cursor->consumed(size_t(at - begin));
    return *this;
  }
  TrackedByte operator++(int) {
    TrackedByte before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackedByte& other) const { return at == other.at; }
  bool operator!=(const TrackedByte& other) const { return at != other.at; }
};

std::string shortened(std::string text) {
  if (text.size() > kMaxMessageText) text = text.substr(0, kMaxMessageText) + "...";
  return text;
}

// "name:line:column" of a byte; `position` counts from 1.
std::string place(const std::string& name, std::string_view text, size_t position) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i + 1 < position && i < text.size(); ++i) {
    line += text[i] == '\n';
    column = text[i] == '\n' ? 1 : column + 1;
  }
  return cat(name, ":", line, ":", column);
}

// Called by nlohmann's parser for every token.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const std::string& name, std::string_view text, Cursor& cursor)
      : name_(name), text_(text), cursor_(cursor) {}
  Json take() { return std::move(root_); }

  bool null() override { return value(Json()); }
  bool boolean(bool v) override { return value(Json::of(v)); }
  bool number_integer(int64_t v) override { return value(Json::of(v)); }
  bool number_unsigned(uint64_t v) override {
    if (v <= uint64_t(INT64_MAX)) return value(Json::of(int64_t(v)));
    Json big = Json::of(double(v));
    big.text = cat(v);
    return value(std::move(big));
  }
  bool number_float(double v, const std::string& token) override {
    Json number = Json::of(v);
    number.text = shortened(token);
    return value(std::move(number));
  }
  bool string(std::string& v) override { return value(Json::of(std::string_view(v))); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& v) override {
    Json& object = open_.back();
    for (size_t i = 0; i < object.keys.size(); ++i) {
      if (object.keys[i] != v) continue;
      fail("key ", shortened(json_string(v)), " is given twice, first at ", object.items[i].where,
           "; keep one of them");
    }
    if (object.keys.size() >= kMaxMembers) fail("an object has more than ", kMaxMembers, " keys");
    object.keys.push_back(v);
    key_where_ = here();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    if (e.id == 406) throw Error(cat(here(), ": a number is too large to be finite"), Exit::usage);
    // nlohmann's text is "[json...] parse error at line L, column C: what"; the position is replaced by ours.
    std::string what = e.what();
    const size_t colon = what.find(": ");
    if (colon != std::string::npos) what = what.substr(colon + 2);
    throw Error(cat(place(name_, text_, position), ": not valid JSON: ", shortened(what)), Exit::usage);
  }

 private:
  template <class... A>
  [[noreturn]] void fail(const A&... parts) {
    throw Error(cat(here(), ": ", parts...), Exit::usage);
  }
  std::string here() { return cat(name_, ":", cursor_.line()); }

  bool open(Json container) {
    if (open_.size() >= kMaxDepth) fail("nested deeper than ", kMaxDepth, " levels");
    container.where = in_object() ? key_where_ : here();
    open_.push_back(std::move(container));
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    attach(std::move(done));
    return true;
  }
  bool value(Json v) {
    v.where = in_object() ? key_where_ : here();
    attach(std::move(v));
    return true;
  }
  bool in_object() const { return !open_.empty() && open_.back().is(Json::Kind::object); }
  void attach(Json v) {
    if (open_.empty()) {
      root_ = std::move(v);
    } else {
      open_.back().items.push_back(std::move(v));
    }
  }

  const std::string& name_;
  std::string_view text_;
  Cursor& cursor_;
  std::vector<Json> open_;  // containers whose end has not been read
  std::string key_where_;
  Json root_;
};

void write(const Json& value, int indent, std::string& out) {  // indent < 0: everything on one line
  if (value.is(Json::Kind::null)) out += "null";
  if (value.is(Json::Kind::boolean)) out += value.boolean ? "true" : "false";
  if (value.is_number()) out += value.text;
  if (value.is(Json::Kind::string)) out += json_string(value.text);
  if (!value.is(Json::Kind::array) && !value.is(Json::Kind::object)) return;
  const bool object = value.is(Json::Kind::object);
  out += object ? "{" : "[";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += indent < 0 ? ", " : ",";
    if (indent >= 0) out += "\n" + std::string(size_t(indent) + 2, ' ');
    if (object) out += json_string(value.keys[i]) + ": ";
    write(value.items[i], indent < 0 ? indent : indent + 2, out);
  }
  if (indent >= 0 && !value.items.empty()) out += "\n" + std::string(size_t(indent), ' ');
  out += object ? "}" : "]";
}

}  // namespace

Json Json::of_kind(Kind k) {
  Json v;
  v.kind = k;
  return v;
}

Json Json::of(bool value) {
  Json v = of_kind(Kind::boolean);
  v.boolean = value;
  return v;
}

Json Json::of(int64_t value) {
  Json v = of_kind(Kind::integer);
  v.integer = value;
  v.real = double(value);
  v.text = cat(value);
  return v;
}

Json Json::of(double value) {
  Json v = of_kind(Kind::real);
  v.real = value;
  v.text = number_text(value);
  return v;
}

Json Json::of(std::string_view value) {
  Json v = of_kind(Kind::string);
  v.text = value;
  return v;
}

Json* Json::find(std::string_view key) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

Json& Json::set(std::string key, Json value) {
  CHECK(is(Kind::object), "only objects have keys: ", key);
  if (Json* old = find(key)) return *old = std::move(value);
  keys.push_back(std::move(key));
  items.push_back(std::move(value));
  return items.back();
}

void Json::erase(std::string_view key) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != key) continue;
    keys.erase(keys.begin() + std::ptrdiff_t(i));
    items.erase(items.begin() + std::ptrdiff_t(i));
    return;
  }
}

Json parse_json(std::string_view text, const std::string& name) {
  if (text.size() > kMaxConfigBytes) {
    throw Error(
        cat(name, ": ", text.size(), " bytes are more than the ", kMaxConfigBytes, " that a configuration may have"),
        Exit::usage);
  }
  Cursor cursor(text);
  TreeBuilder builder(name, text, cursor);
  const char* begin = text.data();
  TrackedByte first{begin, begin, &cursor}, last{begin, begin + text.size(), &cursor};
  nlohmann::json::sax_parse(first, last, &builder);
  return builder.take();
}

std::string json_string(std::string_view text) { return json_text(nlohmann::json(std::string(text))); }

std::string number_text(double value) {
  CHECK(std::isfinite(value), "JSON has no text for ", value);
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string to_line(const Json& value) {
  std::string out;
  write(value, -1, out);
  return out;
}

std::string to_pretty(const Json& value) {
  std::string out;
  write(value, 0, out);
  return out + "\n";
}

}  // namespace athanor
