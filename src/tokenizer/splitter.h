// Cuts a text into the pieces that are encoded separately: with one built-in pattern in nearly all tokenizer files, or
// with a sequence of patterns, each applied to the pieces of the one before.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/patterns.h"
#include "tokenizer/regex.h"

namespace athanor {

// Treatment of the matches of a pattern; named as in the `tokenizers` package.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class Splitter {
 public:
  // Adds a built-in pattern by name or regular expression, or any other expression in tiktoken's syntax, with a
  // warning.
  void add(const std::string& name_or_regex);
  // The next two add an expression of a tokenizer.json, or a literal text. invert: the text between the matches counts
  // as the match.
  void add_oniguruma(const std::string& regex, SplitBehavior behavior = SplitBehavior::isolated, bool invert = false);
  void add_text(const std::string& text, SplitBehavior behavior, bool invert);
  void add_punctuation(SplitBehavior behavior);
  // Later patterns match the text as the byte-level alphabet writes it, in which "²" or "¼" may be part of a character.
  void begin_byte_level() { byte_level_ = true; }

  // Calls piece(text) for each piece in order.
  template <class Fn>
  void for_each(const CharTable& table, std::string_view text, Fn&& piece) const {
    if (stages_.size() == 1 && stages_[0].known && !stages_[0].byte_level) {
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
  // True if the only stage is a built-in pattern that allows cuts: its safe cuts are valid for this splitter.
  bool cuts() const {
    return stages_.size() == 1 && stages_[0].known && stages_[0].known->cuts && !stages_[0].byte_level;
  }
  // A warning if other programs may split the texts seen so far differently; else "".
  std::string caveat() const;
  // The expressions as given, or the built-in names.
  std::vector<std::string> patterns() const;

 private:
  struct Stage {
    const Pattern* known = nullptr;      // set: the built-in pattern's pieces
    std::shared_ptr<const Regex> regex;  // set: split at its matches; neither set: split at the literal `pattern`
    std::string pattern;                 // "": split at punctuation
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    bool byte_level = false;  // matches the text in the byte-level alphabet
    std::vector<Regex::Match> matches(std::string_view text) const;
    void split(const CharTable& table, std::string_view text, std::vector<std::string_view>& pieces) const;
    void split_plain(const CharTable& table, std::string_view text, std::vector<std::string_view>& pieces) const;
  };
  void add(Stage stage);
  void add_other(const std::string& regex, RegexDialect dialect, SplitBehavior behavior, bool invert);
  std::vector<std::string_view> split(const CharTable& table, std::string_view text) const;

  std::vector<Stage> stages_;  // empty: a text is one piece
  bool byte_level_ = false;    // applies to the next stages
};

}  // namespace athanor
