// Split patterns are written for other programs' engines, which read the same signs differently: `\w`, `^`, `\h`, `\v`,
// `{,3}`, `&&`. Here a pattern is read as its program reads it and written anew for PCRE2, so that it cuts a text into
// the same pieces. What cannot be said the same way is an Error that names it.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

enum class RegexDialect {
  oniguruma,  // tokenizer.json: Oniguruma with Ruby's syntax, as the tokenizers package has it
  rust,       // rank files: fancy-regex, as tiktoken has it
};

// Characters that PCRE2's tables do not have yet, by class, as the inside of a set: they are added to its classes.
struct NewerCharacters {
  std::string upper, lower, caseless, mark, digit, other_number;
  std::string letters() const { return upper + lower + caseless; }
};

// For PCRE2 with PCRE2_UTF, PCRE2_UCP and LF as the newline. Throws Error(..., Exit::usage).
std::string to_pcre2(std::string_view pattern, RegexDialect dialect, const NewerCharacters& newer = {});

}  // namespace athanor
