// Normalization of a text before it is split into pieces, by the steps of a tokenizer file.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/charsmap.h"
#include "tokenizer/normal_form.h"
#include "tokenizer/token_finder.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// Prepends a text, unless the input is empty or its place is `inside`.
struct Prepend {
  std::string text;
  bool unless_there = false;    // not if the input already begins with `text`
  bool documents_only = false;  // not for a text that follows a token
};

struct Replace {
  std::string from, to;
};

// Appends `text` with every occurrence of `from`, which must not be empty, replaced by `to`.
void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& out);

// SentencePiece's normalization: replaces characters by the charsmap, keeps user-defined symbols, and writes invalid
// UTF-8 bytes as U+FFFD and spaces as U+2581.
struct PieceForm {
  Charsmap charsmap;
  TokenFinder symbols;
  bool add_space = true;    // add_dummy_prefix
  bool at_end = false;      // treat_whitespace_as_suffix: the added space goes to the end of the text
  bool trim_spaces = true;  // remove_extra_whitespaces: no spaces at the ends, single spaces between words
  void append(std::string_view text, TextPlace place, std::string& out) const;

 private:
  Charsmap::Match next(std::string_view text, size_t at) const;
};

class Normalizer {
 public:
  using Step = std::variant<NormalForm, Prepend, Replace, PieceForm>;
  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  struct Workspace {
    std::string text, next;
  };
  // Normalizes a part of a text; returns the part itself or text stored in `workspace`.
  std::string_view of(std::string_view part, TextPlace place, Workspace& workspace) const;
  std::string of(const std::string& text) const {
    Workspace workspace;
    return std::string(of(text, TextPlace::document, workspace));
  }

  bool only_nfc() const;
  bool only_normal_forms() const;
  // True if the only replacements are of spaces by U+2581, one by one and whatever their neighbours.
  bool only_marks_spaces() const;
  bool marks_spaces() const;                  // true if no spaces are left after normalization
  bool removes(std::string_view text) const;  // true if the last step removes this text entirely

 private:
  std::vector<Step> steps_;
};

}  // namespace athanor
