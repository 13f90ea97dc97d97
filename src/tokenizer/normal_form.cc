#include "tokenizer/normal_form.h"

#include <algorithm>

#include "tokenizer/unicode.h"
#include "tokenizer/unicode_tables.h"

namespace athanor {
namespace {

// Hangul syllables are composed by arithmetic [Unicode 16.0, section 3.12].
constexpr uint32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;
constexpr uint64_t kCode = (1 << 21) - 1;
constexpr uint32_t kCodePoints = 0x110000;

uint64_t pair_of(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

}  // namespace

NormalForm::NormalForm(Form form) : form_(form), active_(kCodePoints) {
  add_decompositions();
  find_active();
}

void NormalForm::add_decompositions() {
  for (const uint64_t row : decompositions) {
    const auto composed = uint32_t(row & kCode), first = uint32_t(row >> 21 & kCode);
    const auto second = uint32_t(row >> 42 & kCode);
    decompositions_[composed] = second ? std::vector{first, second} : std::vector{first};
    if (!(row >> 63)) compositions_[pair_of(first, second)] = composed;
  }
  if (form_ != Form::nfkc && form_ != Form::nfkd) return;
  std::vector<uint32_t>* parts = nullptr;
  for (const uint64_t three : compatible)
    for (const int shift : {0, 21, 42}) {
      const auto code = uint32_t(three >> shift & kCode);
      if (code >= kCodePoints)
        (parts = &decompositions_[code - kCodePoints])->clear();
      else if (code > 0)  // not at the end of the table
        parts->push_back(code);
    }
}

void NormalForm::find_active() {
  for (const auto& [code, parts] : decompositions_) active_[code] = normalized({code}) != std::vector{code};
  for (size_t i = 0; i < combining_runs.size(); ++i) {
    const uint32_t end = i + 1 < combining_runs.size() ? combining_runs[i + 1] >> 8 : kCodePoints;
    if (combining_runs[i] & 0xff)
      for (uint32_t code = combining_runs[i] >> 8; code < end; ++code) active_[code] = true;
  }
  if (composes()) {
    for (const auto& [pair, composed] : compositions_) active_[uint32_t(pair)] = true;
    for (uint32_t code = kVowels; code < kVowels + kVowelCount; ++code) active_[code] = true;
    for (uint32_t code = kTails + 1; code < kTails + kTailCount; ++code) active_[code] = true;
  } else {
    for (uint32_t code = kSyllables; code < kSyllables + kSyllableCount; ++code) active_[code] = true;
  }
  std::string least;
  append_utf8(least, uint32_t(std::find(active_.begin(), active_.end(), true) - active_.begin()));
  least_byte_ = uint8_t(least[0]);
}

uint8_t NormalForm::combining_class(uint32_t code) const {
  if (code >= kCodePoints) return 0;  // an invalid byte
  const auto after = std::upper_bound(combining_runs.begin(), combining_runs.end(), code << 8 | 0xff);
  return uint8_t(*(after - 1) & 0xff);
}

void NormalForm::decompose(uint32_t code, std::vector<uint32_t>& out) const {
  if (code - kSyllables < kSyllableCount) {
    const uint32_t index = code - kSyllables, tail = index % kTailCount;
    out.push_back(kLeads + index / (kVowelCount * kTailCount));
    out.push_back(kVowels + index / kTailCount % kVowelCount);
    if (tail > 0) out.push_back(kTails + tail);
    return;
  }
  const auto found = decompositions_.find(code);
  if (found == decompositions_.end()) {
    out.push_back(code);
    return;
  }
  for (const uint32_t part : found->second) decompose(part, out);
}

uint32_t NormalForm::compose(uint32_t first, uint32_t second) const {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second - kTails - 1 < kTailCount - 1)
    return first + (second - kTails);
  const auto found = compositions_.find(pair_of(first, second));
  return found == compositions_.end() ? 0 : found->second;
}

// Decomposes, sorts by combining class, and composes [Unicode 16.0, section 3.11].
std::vector<uint32_t> NormalForm::normalized(const std::vector<uint32_t>& text) const {
  std::vector<uint32_t> codes;
  for (const uint32_t code : text) decompose(code, codes);
  std::vector<uint8_t> classes;
  for (const uint32_t code : codes) classes.push_back(combining_class(code));
  std::vector<std::pair<uint8_t, uint32_t>> marks;
  for (size_t i = 0; i < codes.size(); ++i) {
    size_t end = i;
    marks.clear();
    while (end < codes.size() && classes[end] > 0) marks.emplace_back(classes[end], codes[end]), ++end;
    std::stable_sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t k = 0; k < marks.size(); ++k) classes[i + k] = marks[k].first, codes[i + k] = marks[k].second;
    i = std::max(i, end);  // the starter after the marks
  }
  if (!composes()) return codes;
  std::vector<uint32_t> composed;
  size_t starter = SIZE_MAX;
  uint8_t last_class = 0;  // combining class of the last character since the starter
  for (size_t i = 0; i < codes.size(); ++i) {
    const bool blocked = starter == SIZE_MAX || (starter + 1 < composed.size() && last_class >= classes[i]);
    const uint32_t both = blocked ? 0 : compose(composed[starter], codes[i]);
    if (both) {
      composed[starter] = both;
      continue;
    }
    if (classes[i] == 0) starter = composed.size();
    last_class = classes[i];
    composed.push_back(codes[i]);
  }
  return composed;
}

void NormalForm::append_segment(std::string_view text, std::string& out) const {
  std::vector<uint32_t> codes;
  for (size_t at = 0; at < text.size(); at += char_at(text, at).bytes) codes.push_back(char_at(text, at).code);
  for (const uint32_t code : normalized(codes)) {
    if (code & kInvalidByte)
      out += char(code & 0xff);
    else
      append_utf8(out, code);
  }
}

// A character that is not active begins a segment that can be normalized separately.
void NormalForm::append(std::string_view text, std::string& out) const {
  size_t kept = 0, last = 0;  // text before `kept` is already in `out`; `last`: start of the character before `at`
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < least_byte_) {
      const Char c = char_at(text, at);
      last = at;
      at += c.bytes;
      continue;
    }
    Char c = char_at(text, at);
    if (!is_active(c.code)) {
      last = at;
      at += c.bytes;
      continue;
    }
    out.append(text.substr(kept, last - kept));
    const size_t begin = std::max(last, kept);
    size_t end = at;
    while (end < text.size() && is_active((c = char_at(text, end)).code)) end += c.bytes;
    append_segment(text.substr(begin, end - begin), out);
    kept = last = at = end;
  }
  out.append(text.substr(kept));
}

}  // namespace athanor
