#include "data/json_line.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr int kDepth = 512;  // maximum nesting; deeper input is malicious

class Scanner {
 public:
  explicit Scanner(std::string_view line) : line_(line) {}

  bool find(std::string_view key, std::string& text) {
    bool found = false;
    std::string name;
    skip_space();
    if (const char* kind = kind_of_value(); kind && peek() != '{') throw Error(cat("expected an object, got ", kind));
    expect('{', "an object");
    for (bool first = true; !take('}'); first = false) {
      if (!first) expect(',', "\",\" or \"}\"");
      skip_space();
      string(&name);
      skip_space();
      expect(':', "\":\"");
      skip_space();
      if (name == key) {
        if (const char* kind = kind_of_value(); kind && peek() != '"')
          throw Error(cat("\"", key, "\": expected a string, got ", kind));
        string(&text);
        found = true;
      } else {
        value(0);
      }
      skip_space();
    }
    skip_space();
    if (at_ < line_.size()) fail("the end of the line");
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(at_ < line_.size() ? cat("not JSON: expected ", expected, " at byte ", at_, " of the line")
                                   : cat("not JSON: the line ends where ", expected, " is expected"));
  }
  // Name of the kind of value that begins here, by its first character; nullptr: not JSON.
  const char* kind_of_value() const {
    const char c = peek();
    const std::string_view rest = line_.substr(at_);
    return c == '{'                                                ? "an object"
           : c == '['                                              ? "an array"
           : c == '"'                                              ? "a string"
           : c == '-' || (c >= '0' && c <= '9')                    ? "a number"
           : rest.starts_with("true") || rest.starts_with("false") ? "true or false"
           : rest.starts_with("null")                              ? "null"
                                                                   : nullptr;
  }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  bool take(char c) {
    if (at_ == line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!take(c)) fail(what);
  }
  void skip_space() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (digit < 0) fail("four hexadecimal digits");
      code = code << 4 | uint32_t(digit);
    }
    return code;
  }

  // Parses the rest of \uXXXX, and the second escape of a surrogate pair.
  void unicode(std::string* out) {
    uint32_t code = hex4();
    if (code >= 0xd800 && code < 0xdc00 && line_.substr(at_, 2) == "\\u") {
      const size_t second = at_;
      at_ += 2;
      const uint32_t low = hex4();
      if (low >= 0xdc00 && low < 0xe000)
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      else
        at_ = second;
    }
    if (out) append_utf8(*out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
  }

  void string(std::string* out) {
    expect('"', "a string");
    if (out) out->clear();
    for (;;) {
      const size_t begin = at_;
      while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' && uint8_t(line_[at_]) >= 0x20) ++at_;
      if (out) out->append(line_.substr(begin, at_ - begin));
      if (take('"')) return;
      if (!take('\\')) fail("the end of a string, or an escape for a control character,");
      constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
      if (take('u')) {
        unicode(out);
      } else if (const size_t i = kEscapes.find(peek()); at_ < line_.size() && i != kEscapes.npos) {
        if (out) *out += kMeanings[i];
        ++at_;
      } else {
        fail("an escape");
      }
    }
  }

  void value(int depth) {
    if (depth == kDepth) fail(cat("at most ", kDepth, " nested values"));
    skip_space();
    if (peek() == '"') return string(nullptr);
    if (take('{')) {
      skip_space();
      for (bool first = true; !take('}'); first = false) {
        if (!first) expect(',', "\",\" or \"}\"");
        skip_space();
        string(nullptr);
        skip_space();
        expect(':', "\":\"");
        value(depth + 1);
        skip_space();
      }
    } else if (take('[')) {
      skip_space();
      for (bool first = true; !take(']'); first = false) {
        if (!first) expect(',', "\",\" or \"]\"");
        value(depth + 1);
        skip_space();
      }
    } else {
      plain();
    }
  }

  // Numbers are not validated: their values are not used.
  void plain() {
    for (const std::string_view word : {"true", "false", "null"})
      if (line_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return;
      }
    const size_t end = std::min(line_.find_first_not_of("+-.0123456789eE", at_), line_.size());
    if (end == at_) fail("a value");
    at_ = end;
  }

  std::string_view line_;
  size_t at_ = 0;
};

}  // namespace

bool json_line_text(std::string_view line, std::string_view key, std::string& text) {
  return Scanner(line).find(key, text);
}

}  // namespace athanor
