#include "tokenizer/splitter.h"

#include "base/log.h"

namespace athanor {

void Splitter::add(const std::string& name_or_regex) {
  if (const Pattern* known = find_pattern(name_or_regex)) {
    stages_.push_back({known, nullptr, known->name});
    return;
  }
  stages_.push_back({nullptr, Regex::compile(name_or_regex), name_or_regex});
  log::warn("split pattern ", name_or_regex, " is none of the built-in ones (", pattern_names(),
            "): PCRE2 runs it, slower and with older Unicode tables, so ids of rare letters may differ; documents are "
            "not cut");
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
