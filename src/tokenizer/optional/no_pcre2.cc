// Replaces pcre2.cc in builds without PCRE2.
#include "base/error.h"
#include "tokenizer/regex.h"

namespace athanor {

std::shared_ptr<const Regex> Regex::compile(const std::string& pattern, RegexDialect) {
  throw Error(cat("split pattern ", pattern,
                  " is none of the built-in ones, and this program was built without PCRE2: install libpcre2-dev "
                  "(scripts/setup.sh) and build again"),
              Exit::usage);
}

}  // namespace athanor
