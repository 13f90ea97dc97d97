// Regex on PCRE2. Its tables are Unicode 14's in Debian 12 and 15's in Ubuntu 24.04, which is why well-known patterns
// do not come here.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "tokenizer/regex.h"

namespace athanor {
namespace {

constexpr size_t kStackStart = 32 << 10, kStackMost = 64 << 20;  // bytes for backtracking in machine code

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

class Pcre2 final : public Regex {
 public:
  explicit Pcre2(const std::string& pattern) : pattern_(pattern) {
    int code = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &at, nullptr));
    if (!code_) throw Error(cat("split pattern ", pattern, ": ", message_of(code), " at character ", at), Exit::usage);
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without a compiler for this machine it is only slower
  }

  void split(std::string_view text, std::vector<size_t>& ends) const override {
    const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
    const std::unique_ptr<pcre2_jit_stack, Free> stack(pcre2_jit_stack_create(kStackStart, kStackMost, nullptr));
    CHECK(match && context && stack, "out of memory for a split pattern");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    size_t done = 0;  // everything before has its end
    for (size_t at = 0; at < text.size();) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                    PCRE2_NOTEMPTY, match.get(), context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        throw Error(cat("split pattern ", pattern_, ": ", message_of(found), " at byte ", at, " of a text"));
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
      if (span[0] > done) ends.push_back(span[0]);
      ends.push_back(span[1]);
      CHECK(span[1] > at, "split pattern ", pattern_, " does not advance");  // \K could do that
      done = at = span[1];
    }
    if (done < text.size()) ends.push_back(text.size());
  }

 private:
  std::string pattern_;
  std::unique_ptr<pcre2_code, Free> code_;
};

}  // namespace

std::shared_ptr<const Regex> Regex::compile(const std::string& pattern) { return std::make_shared<Pcre2>(pattern); }

}  // namespace athanor
