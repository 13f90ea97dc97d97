// Split patterns that patterns.h does not have, through PCRE2 where the program was built with it.
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
  // An Error(usage) with the place of the mistake or what is not supported, or with the remedy when there is no PCRE2
  // in this program.
  static std::shared_ptr<const Regex> compile(const std::string& pattern, RegexDialect dialect);
  virtual ~Regex() = default;
  // Appends the matches in order, some of them empty. Bytes that are no UTF-8 match nothing.
  virtual void match(std::string_view text, std::vector<Match>& matches) const = 0;
  // Appends the ends of the pieces that text falls into: the matches, and what lies between them.
  void split(std::string_view text, std::vector<size_t>& ends) const;
  virtual std::string unicode_version() const = 0;  // Unicode version of the tables of character classes
  // How many characters of all texts so far these tables do not have, but for letters, marks and numbers: those are
  // added.
  virtual int64_t unknown_characters() const = 0;
};

}  // namespace athanor
