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

// For PCRE2 with PCRE2_UTF, PCRE2_UCP and LF as the newline. Throws Error(..., Exit::usage).
std::string to_pcre2(std::string_view pattern, RegexDialect dialect);

}  // namespace athanor
