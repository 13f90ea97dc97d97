// Translates split patterns to PCRE2. They are written for the regex engines of other programs, which read the same
// syntax differently: `\w`, `^`, `\h`, `\v`, `{,3}`, `&&`. The translation cuts a text into the same pieces; an
// untranslatable feature is an Error that names it.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

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

}  // namespace athanor
