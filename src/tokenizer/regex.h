// Split patterns that patterns.h does not have, run by PCRE2 if the program was built with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Translates split patterns to PCRE2. They are written for the regex engines of other programs, which read the same
// syntax differently: `\w`, `^`, `\h`, `\v`, `{,3}`, `&&`. The translation cuts a text into the same pieces; an
// untranslatable feature is an Error that names it.

enum class RegexDialect {
  oniguruma,  // tokenizer.json: Oniguruma with Ruby's syntax, as used by the tokenizers package
  rust,       // rank files: fancy-regex, as used by tiktoken
};

// Characters missing in PCRE2's tables, by class, in the syntax of a set: they are added to PCRE2's classes.
struct NewerCharacters {
  std::string upper, lower, modifier, other_letter, nonspacing_mark, spacing_mark, digit, other_number;
  std::string letters() const { return upper + lower + modifier + other_letter; }
  std::string marks() const { return nonspacing_mark + spacing_mark; }
};

// The result is for PCRE2 with PCRE2_UTF, PCRE2_UCP and LF as the newline. Throws Error(..., Exit::usage).
std::string to_pcre2(std::string_view pattern, RegexDialect dialect, const NewerCharacters& newer = {});

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
