#include "tokenizer/normalizer.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_breaks.h"

namespace athanor {
namespace {

void append(const NormalForm& form, std::string_view text, TextPlace, std::string& out) { form.append(text, out); }
void append(const PieceForm& form, std::string_view text, TextPlace place, std::string& out) {
  form.append(text, place, out);
}
void append(const Prepend& step, std::string_view text, TextPlace place, std::string& out) {
  const bool wanted = place == TextPlace::document || (place == TextPlace::after_token && !step.documents_only);
  if (wanted && !text.empty() && !(step.unless_there && text.starts_with(step.text))) out += step.text;
  out += text;
}
void append(const Replace& step, std::string_view text, TextPlace, std::string& out) {
  append_replaced(text, step.from, step.to, out);
}

const Replace* marking(const Normalizer::Step& step) {
  const auto* replace = std::get_if<Replace>(&step);
  return replace && replace->from == " " && replace->to == kSpaceMark ? replace : nullptr;
}

}  // namespace

Charsmap::Match PieceForm::next(std::string_view text, size_t at) const {
  if (!symbols.empty())
    if (const auto symbol = symbols.at(text, at)) return {symbol.end - at, text.substr(at, symbol.end - at)};
  if (const Charsmap::Match match = charsmap.longest(text.substr(at)); match.bytes > 0) return match;
  const Char c = char_at(text, at);
  return {c.bytes, c.code & kInvalidByte ? std::string_view("\xef\xbf\xbd") : text.substr(at, c.bytes)};
}

void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& out) {
  CHECK(!from.empty(), "nothing to replace");
  size_t done = 0;
  for (size_t at = text.find(from); at < text.size(); at = text.find(from, done)) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
}

// [sentencepiece 0.2.3 normalizer.cc, Normalizer::Normalize]
void PieceForm::append(std::string_view text, TextPlace place, std::string& out) const {
  size_t at = 0;
  while (trim_spaces && at < text.size()) {
    const Charsmap::Match match = next(text, at);
    if (match.replacement != " ") break;
    at += match.bytes;
  }
  if (at == text.size()) return;
  const size_t begin = out.size();
  const bool space = add_space && place != TextPlace::inside;
  if (space && !at_end) out += kSpaceMark;
  bool after_space = trim_spaces;
  while (at < text.size()) {
    auto [bytes, part] = next(text, at);
    at += bytes;
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;
    for (const char c : part)
      if (c == ' ')
        out += kSpaceMark;
      else
        out += c;
    after_space = trim_spaces && part.ends_with(' ');
  }
  if (trim_spaces)
    while (out.size() > begin && out.ends_with(kSpaceMark)) out.resize(out.size() - kSpaceMark.size());
  if (space && at_end) out += kSpaceMark;
}

std::string_view Normalizer::of(std::string_view part, TextPlace place, Workspace& workspace) const {
  for (const Step& step : steps_) {
    workspace.next.clear();
    std::visit([&](const auto& s) { append(s, part, place, workspace.next); }, step);
    workspace.text.swap(workspace.next);
    part = workspace.text;
  }
  return part;
}

bool Normalizer::only_nfc() const {
  return std::ranges::all_of(steps_, [](const Step& step) {
    const auto* form = std::get_if<NormalForm>(&step);
    return form && form->form() == Form::nfc;
  });
}

bool Normalizer::only_normal_forms() const {
  return std::ranges::all_of(steps_, [](const Step& step) { return std::holds_alternative<NormalForm>(step); });
}

bool Normalizer::only_marks_spaces() const {
  return std::ranges::all_of(steps_, [](const Step& step) {
    const auto* form = std::get_if<PieceForm>(&step);
    return std::holds_alternative<Prepend>(step) || marking(step) ||
           (form && form->charsmap.empty() && !form->trim_spaces && !form->at_end);
  });
}

bool Normalizer::marks_spaces() const {
  return std::ranges::any_of(steps_,
                             [](const Step& step) { return std::holds_alternative<PieceForm>(step) || marking(step); });
}

bool Normalizer::removes(std::string_view text) const {
  return !steps_.empty() && text == " " && marking(steps_.back());
}

}  // namespace athanor
