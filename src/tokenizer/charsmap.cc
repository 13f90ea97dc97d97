#include "tokenizer/charsmap.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace athanor {
namespace {

// A unit of the double array [darts-clone]: an inner node has the byte of its incoming edge, whether one of its
// children is a value, and the offset of its children; a value has the top bit set.
constexpr uint32_t kValueBit = 0x80000000u;
uint32_t label_of(uint32_t unit) { return unit & (kValueBit | 0xff); }
bool has_value(uint32_t unit) { return unit >> 8 & 1; }
size_t offset_of(uint32_t unit) { return size_t{unit >> 10} << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  if (blob.empty()) return;
  uint32_t bytes = 0;  // little endian, like the units
  static_assert(std::endian::native == std::endian::little);
  const auto refuse = [&](auto... what) { throw Error(cat(where, ": precompiled_charsmap: ", what...), Exit::usage); };
  if (blob.size() >= sizeof(bytes)) std::memcpy(&bytes, blob.data(), sizeof(bytes));
  if (bytes == 0 || bytes % 4 != 0 || bytes >= blob.size() - sizeof(bytes))
    refuse("expected a table that ends before its ", blob.size(), " bytes do, got one of ", bytes);
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), blob.data() + sizeof(bytes), bytes);
  replacements_ = blob.substr(sizeof(bytes) + bytes);
  if (replacements_.back() != '\0') refuse("the last replacement does not end");
  for (const uint32_t unit : units_)
    if (unit & kValueBit && (unit & ~kValueBit) >= replacements_.size())
      refuse("a replacement is at byte ", unit & ~kValueBit, " of ", replacements_.size());
}

Charsmap::Match Charsmap::longest(std::string_view text) const {
  Match match;
  if (units_.empty()) return match;
  size_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    at ^= uint8_t(text[i]);
    if (at >= units_.size() || label_of(units_[at]) != uint8_t(text[i])) break;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (has_value(unit) && at < units_.size() && units_[at] & kValueBit)
      match = {i + 1, &replacements_[units_[at] & ~kValueBit]};
  }
  return match;
}

}  // namespace athanor
