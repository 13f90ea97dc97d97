// Cuts a text into the pieces that are encoded on their own: one built-in pattern in nearly all tokenizer files, in
// some a sequence of patterns, each applied to the pieces of the one before.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/patterns.h"
#include "tokenizer/regex.h"

namespace athanor {

// What becomes of the matches of a pattern, as the package `tokenizers` names it.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class Splitter {
 public:
  // A built-in pattern by name or regular expression, or any other expression as tiktoken reads it, then with a
  // warning.
  void add(const std::string& name_or_regex);
  // An expression of a tokenizer.json, or a text. invert: matches are what lies between.
  void add_oniguruma(const std::string& regex, SplitBehavior behavior = SplitBehavior::isolated, bool invert = false);
  void add_text(const std::string& text, SplitBehavior behavior, bool invert);

  // Calls piece(text) for each piece in order.
  template <class Fn>
  void for_each(const CharTable& table, std::string_view text, Fn&& piece) const {
    if (stages_.size() == 1 && stages_[0].known) {
      const NextPiece next = stages_[0].known->next;
      for (size_t at = 0; at < text.size();) {
        const size_t end = next(table, text, at);
        piece(text.substr(at, end - at));
        at = end;
      }
      return;
    }
    for (const std::string_view part : split(table, text)) piece(part);
  }

  bool empty() const { return stages_.empty(); }
  // One built-in pattern: its safe cuts are cuts of this splitter.
  bool cuts() const { return stages_.size() == 1 && stages_[0].known && stages_[0].known->cuts; }
  // What may have become of the texts so far elsewhere; "" when nothing may differ.
  std::string caveat() const;
  // The expressions, as they were given or as the name stands for them.
  std::vector<std::string> patterns() const;

 private:
  struct Stage {
    const Pattern* known = nullptr;      // pieces are its own
    std::shared_ptr<const Regex> regex;  // or its matches, or those of the text `pattern`, split
    std::string pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    std::vector<Regex::Match> matches(std::string_view text) const;
    void split(const CharTable& table, std::string_view text, std::vector<std::string_view>& pieces) const;
  };
  void add_other(const std::string& regex, RegexDialect dialect, SplitBehavior behavior, bool invert);
  std::vector<std::string_view> split(const CharTable& table, std::string_view text) const;

  std::vector<Stage> stages_;  // none: a text is one piece
};

}  // namespace athanor
