// What happens to a text before it is split into pieces, in the steps that a tokenizer file names.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/charsmap.h"
#include "tokenizer/nfc.h"
#include "tokenizer/token_finder.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// A text in front of a text that is not empty and not `inside`.
struct Prepend {
  std::string text;
  bool unless_there = false;    // not where the text begins with it
  bool documents_only = false;  // not behind a token
};

struct Replace {
  std::string from, to;
};

// Appends a text in which all of `from`, which is not empty, is `to`.
void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& out);

// SentencePiece's normal form: characters by the charsmap, user-defined symbols as they are, bytes that are no UTF-8 as
// U+FFFD, spaces as U+2581.
struct PieceForm {
  Charsmap charsmap;
  TokenFinder symbols;
  bool add_space = true;    // add_dummy_prefix
  bool at_end = false;      // treat_whitespace_as_suffix: that space goes behind the text
  bool trim_spaces = true;  // remove_extra_whitespaces: none at the ends, one between words
  void append(std::string_view text, TextPlace place, std::string& out) const;

 private:
  Charsmap::Match next(std::string_view text, size_t at) const;
};

class Normalizer {
 public:
  using Step = std::variant<Nfc, Prepend, Replace, PieceForm>;
  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  struct Room {
    std::string text, next;
  };
  // The normal form of a part of a text: the part itself, or text in `room`.
  std::string_view of(std::string_view part, TextPlace place, Room& room) const;
  std::string of(const std::string& text) const {
    Room room;
    return std::string(of(text, TextPlace::document, room));
  }

  bool only_nfc() const;
  // Whether characters are replaced one by one, whatever their neighbours are, and only spaces are, by U+2581.
  bool only_marks_spaces() const;
  bool marks_spaces() const;                  // no space is left
  bool removes(std::string_view text) const;  // a step leaves none of it

 private:
  std::vector<Step> steps_;
};

}  // namespace athanor
