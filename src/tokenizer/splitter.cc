#include "tokenizer/splitter.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "tokenizer/files.h"

namespace athanor {

void Splitter::add(Stage stage) {
  stage.byte_level = byte_level_;
  stages_.push_back(std::move(stage));
}

void Splitter::add(const std::string& name_or_regex) {
  if (const Pattern* known = find_pattern(name_or_regex)) return add({known, nullptr, known->name});
  add_other(name_or_regex, RegexDialect::rust, SplitBehavior::isolated, false);
}

void Splitter::add_oniguruma(const std::string& regex, SplitBehavior behavior, bool invert) {
  const Pattern* known = find_pattern(regex);
  // find_pattern() also accepts names, which do not count here; and to Oniguruma, {1,3}+ is not a possessive
  // quantifier.
  if (known && regex == known->regex && regex.find("3}+") == regex.npos &&
      (behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert && known->cuts)))
    return add({known, nullptr, known->name});
  add_other(regex, RegexDialect::oniguruma, behavior, invert);
}

void Splitter::add_text(const std::string& text, SplitBehavior behavior, bool invert) {
  CHECK(!text.empty(), "an empty text to split at");
  add({nullptr, nullptr, text, behavior, invert});
}

void Splitter::add_punctuation(SplitBehavior behavior) { add({nullptr, nullptr, "", behavior}); }

void Splitter::add_other(const std::string& regex, RegexDialect dialect, SplitBehavior behavior, bool invert) {
  add({nullptr, Regex::compile(regex, dialect), regex, behavior, invert});
  log::warn("split pattern ", regex, " is none of the built-in ones (", pattern_names(),
            "): PCRE2 runs it, which is slower, and documents are not cut");
}

std::string Splitter::caveat() const {
  std::string all;
  for (const Stage& stage : stages_)
    if (stage.regex && stage.regex->unknown_characters() > 0)
      all +=
          cat(all.empty() ? "" : "\n", "split pattern ", stage.pattern, ": ", stage.regex->unknown_characters(),
              " characters of the text are unknown to the Unicode ", stage.regex->unicode_version(),
              " of PCRE2 here, neither letters, marks nor numbers; programs with newer tables may cut there otherwise");
  return all;
}

std::vector<std::string> Splitter::patterns() const {
  std::vector<std::string> all;
  for (const Stage& stage : stages_) all.push_back(stage.pattern);
  return all;
}

void Regex::split(std::string_view text, std::vector<size_t>& ends) const {
  std::vector<Match> matches;
  match(text, matches);
  size_t done = 0;
  for (const Match& m : matches) {
    if (m.begin > done) ends.push_back(m.begin);
    if (m.end > m.begin) ends.push_back(m.end);
    done = m.end;
  }
  if (done < text.size()) ends.push_back(text.size());
}

std::vector<Regex::Match> Splitter::Stage::matches(std::string_view text) const {
  std::vector<Regex::Match> all;
  if (regex) {
    regex->match(text, all);
    return all;
  }
  if (pattern.empty()) {
    for (size_t at = 0; at < text.size();) {
      const Char c = char_at(text, at);
      if (is_punctuation(c.code)) all.push_back({at, at + c.bytes});
      at += c.bytes;
    }
    return all;
  }
  for (size_t at = text.find(pattern); at < text.size(); at = text.find(pattern, at + pattern.size()))
    all.push_back({at, at + pattern.size()});
  return all;
}

void Splitter::Stage::split(const CharTable& table, std::string_view text,
                            std::vector<std::string_view>& pieces) const {
  if (!byte_level) return split_plain(table, text, pieces);
  const std::string written = to_byte_level(text);
  std::vector<std::string_view> parts;
  split_plain(table, written, parts);
  // Each byte of `text` is one character of `written`.
  const auto characters = [](std::string_view part) {
    return size_t(std::ranges::count_if(part, [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
  };
  const char* done = written.data();
  size_t at = 0;
  for (const std::string_view part : parts) {
    at += characters({done, size_t(part.data() - done)});  // removed text before the part
    const size_t bytes = characters(part);
    pieces.push_back(text.substr(at, bytes));
    at += bytes;
    done = part.data() + part.size();
  }
}

// [tokenizers/src/tokenizer/normalizer.rs, NormalizedString::split]
void Splitter::Stage::split_plain(const CharTable& table, std::string_view text,
                                  std::vector<std::string_view>& pieces) const {
  if (known) {
    for (size_t at = 0, end = 0; at < text.size(); at = end)
      pieces.push_back(text.substr(at, (end = known->next(table, text, at)) - at));
    return;
  }
  struct Part {
    size_t begin, end;
    bool match;
  };
  std::vector<Part> parts;
  size_t done = 0;
  for (const Regex::Match& m : matches(text)) {
    if (m.begin > done) parts.push_back({done, m.begin, invert});
    parts.push_back({m.begin, m.end, !invert});
    done = m.end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), invert});
  // True if a part belongs to the same piece as the part before it.
  const auto joins = [&](size_t i) {
    if (i == 0) return false;
    const bool match = parts[i].match, before = parts[i - 1].match;
    if (behavior == SplitBehavior::contiguous) return match == before;
    if (behavior == SplitBehavior::merged_with_previous) return match && !before;
    return behavior == SplitBehavior::merged_with_next && before && !match;
  };
  const auto first = std::ptrdiff_t(pieces.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (behavior == SplitBehavior::removed && parts[i].match) continue;
    if (joins(i))
      pieces.back() = {pieces.back().begin(), text.begin() + parts[i].end};
    else
      pieces.push_back(text.substr(parts[i].begin, parts[i].end - parts[i].begin));
  }
  const auto is_empty = [](std::string_view piece) { return piece.empty(); };
  pieces.erase(std::remove_if(pieces.begin() + first, pieces.end(), is_empty), pieces.end());
}

std::vector<std::string_view> Splitter::split(const CharTable& table, std::string_view text) const {
  std::vector<std::string_view> pieces, next;
  if (!text.empty()) pieces.push_back(text);
  for (const Stage& stage : stages_) {
    next.clear();
    for (const std::string_view piece : pieces) stage.split(table, piece, next);
    pieces.swap(next);
  }
  return pieces;
}

}  // namespace athanor
