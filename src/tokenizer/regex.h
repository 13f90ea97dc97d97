// Split patterns that patterns.h does not have, run by PCRE2 if the program was built with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex_dialect.h"

namespace athanor {

class Regex {
 public:
  struct Match {
    size_t begin, end;
  };
  // Throws Error(usage) with the position of a syntax error or the unsupported feature; in a build without PCRE2, with
  // a remedy.
  static std::shared_ptr<const Regex> compile(const std::string& pattern, RegexDialect dialect);
  virtual ~Regex() = default;
  // Appends the matches in order; some may be empty. Invalid UTF-8 bytes match nothing.
  virtual void match(std::string_view text, std::vector<Match>& matches) const = 0;
  // Appends the ends of the pieces of the text: the matches, and the text between them.
  void split(std::string_view text, std::vector<size_t>& ends) const;
  virtual std::string unicode_version() const = 0;  // Unicode version of the character class tables
  // Number of characters in all texts so far that are missing in these tables. Newer letters, marks and numbers do not
  // count: their classes are supplied to PCRE2.
  virtual int64_t unknown_characters() const = 0;
};

}  // namespace athanor
