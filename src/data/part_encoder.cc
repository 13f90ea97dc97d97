#include "data/part_encoder.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace athanor {

std::vector<int32_t> PartEncoder::encoded(std::string_view part) {
  std::vector<int32_t> ids;
  const std::lock_guard lock(mutex_);
  encoder_->append(part, ids, TextPlace::inside);
  return ids;
}

bool PartEncoder::comes_back(const Parts& parts, std::string_view text) const {
  std::string back;
  for (const auto* part : {&parts.prefix, &parts.middle, &parts.suffix})
    back += tokenizer_->decode(*part, TextPlace::inside);
  return back == text;
}

PartEncoder::Parts PartEncoder::parts_of(std::string_view text, size_t kept, size_t left, const Places& places) {
  std::vector<size_t> starts = {0};  // first byte of each character, and the end of the last one
  while (starts.back() < kept) starts.push_back(starts.back() + char_at(text, starts.back()).bytes);
  const size_t characters = starts.size() - 1;
  const auto [first, second] =
      std::minmax({starts[uniform_place(places[0], characters)], starts[uniform_place(places[1], characters)]});
  Parts parts{
      .prefix = encoded(text.substr(0, first)), .middle = encoded(text.substr(first, second - first)), .suffix = {}};
  if (parts.prefix.size() + parts.middle.size() <= left) parts.suffix = encoded(text.substr(second));
  return parts;
}

std::optional<PartEncoder::Parts> PartEncoder::cut(std::span<const int32_t> text, size_t left, const Places& places) {
  const std::string all = tokenizer_->decode(text, TextPlace::inside);
  for (size_t cut = left; cut > 0;) {
    const size_t kept = std::min(all.size(), tokenizer_->decode(text.first(cut), TextPlace::inside).size());
    Parts parts = parts_of(all, kept, left, places);
    const size_t others = parts.prefix.size() + parts.middle.size();
    if (others > left) {
      cut -= std::min(cut, others - left);
      continue;
    }
    if (left - others > parts.suffix.size() || !comes_back(parts, all)) return std::nullopt;
    parts.suffix.resize(left - others);
    return parts;
  }
  return std::nullopt;
}

}  // namespace athanor
