#include "tokenizer/splitter.h"

#include "base/log.h"

namespace athanor {

void Splitter::add(const std::string& name_or_regex) {
  if (const Pattern* known = find_pattern(name_or_regex)) {
    stages_.push_back({known, nullptr, known->name});
    return;
  }
  add_other(name_or_regex, RegexDialect::rust);
}

void Splitter::add_oniguruma(const std::string& regex) {
  const Pattern* known = find_pattern(regex);
  // By a name nothing is found here, and {1,3}+ is no possessive quantifier to Oniguruma.
  if (known && regex == known->regex && regex.find("}+") == regex.npos) {
    stages_.push_back({known, nullptr, known->name});
    return;
  }
  add_other(regex, RegexDialect::oniguruma);
}

void Splitter::add_other(const std::string& regex, RegexDialect dialect) {
  stages_.push_back({nullptr, Regex::compile(regex, dialect), regex});
  log::warn("split pattern ", regex, " is none of the built-in ones (", pattern_names(),
            "): PCRE2 runs it, which is slower, and documents are not cut");
}

std::string Splitter::caveat() const {
  std::string all;
  for (const Stage& stage : stages_)
    if (stage.regex && stage.regex->unknown_characters() > 0)
      all += cat(all.empty() ? "" : "\n", "split pattern ", stage.pattern, ": ", stage.regex->unknown_characters(),
                 " characters of the text are unknown to the Unicode ", stage.regex->unicode_version(),
                 " of PCRE2 here, neither letters, marks nor numbers; programs with newer tables may cut there otherwise");
  return all;
}

std::vector<std::string> Splitter::patterns() const {
  std::vector<std::string> all;
  for (const Stage& stage : stages_) all.push_back(stage.pattern);
  return all;
}

std::vector<std::string_view> Splitter::split(const CharTable& table, std::string_view text) const {
  std::vector<std::string_view> pieces, next;
  if (!text.empty()) pieces.push_back(text);
  std::vector<size_t> ends;
  for (const Stage& stage : stages_) {
    next.clear();
    for (const std::string_view piece : pieces) {
      ends.clear();
      if (stage.known)
        for (size_t at = 0; at < piece.size();) ends.push_back(at = stage.known->next(table, piece, at));
      else
        stage.regex->split(piece, ends);
      size_t begin = 0;
      for (const size_t end : ends) {
        next.push_back(piece.substr(begin, end - begin));
        begin = end;
      }
    }
    pieces.swap(next);
  }
  return pieces;
}

}  // namespace athanor
