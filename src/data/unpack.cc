#include "data/unpack.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "data/text_input.h"

namespace athanor {
namespace {

// Remaining bytes of the compressed block; reading beyond its end is an Error.
struct SnappyInput {
  std::string_view rest;
  const std::string& what;

  [[noreturn]] void damaged(const char* how) const { throw Error(cat(what, ": damaged snappy data: ", how)); }
  uint64_t little_endian(size_t bytes) {
    if (bytes > rest.size()) damaged("it ends too early");
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t(uint8_t(rest[i])) << (8 * i);
    rest.remove_prefix(bytes);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      const uint64_t next = little_endian(1);
      value |= (next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    damaged("its size has more than 32 bits");
  }
};

}  // namespace

// [google/snappy format_description.txt]
void unpack_snappy(std::string_view packed, std::span<char> out, const std::string& what) {
  SnappyInput in{packed, what};
  if (in.varint() != out.size()) in.damaged("it has another size than its header says");
  size_t at = 0;
  while (!in.rest.empty()) {
    const auto tag = uint8_t(in.little_endian(1));
    const size_t upper = tag >> 2;
    if ((tag & 3) == 0) {  // literal
      const size_t length = (upper < 60 ? upper : size_t(in.little_endian(upper - 59))) + 1;
      if (length > in.rest.size() || length > out.size() - at) in.damaged("a literal exceeds the block");
      std::copy_n(in.rest.begin(), length, out.begin() + std::ptrdiff_t(at));
      in.rest.remove_prefix(length);
      at += length;
      continue;
    }
    // Copy of earlier bytes; source and destination may overlap.
    const bool is_short = (tag & 3) == 1;
    const size_t length = is_short ? (upper & 7) + 4 : upper + 1;
    const size_t high = is_short ? size_t(tag >> 5) << 8 : 0;
    const size_t distance = high | size_t(in.little_endian(is_short ? 1 : (tag & 3) == 2 ? 2 : 4));
    if (distance == 0 || distance > at || length > out.size() - at) in.damaged("a copy exceeds the block");
    for (size_t i = 0; i < length; ++i, ++at) out[at] = out[at - distance];
  }
  if (at != out.size()) in.damaged("it ends too early");
}

void unpack_gzip(std::string_view packed, std::span<char> out, const std::string& what) {
  const ReadBytes read = read_gzip(
      [&packed](std::span<char> to) {
        const size_t count = std::min(to.size(), packed.size());
        std::copy_n(packed.begin(), count, to.begin());
        packed.remove_prefix(count);
        return count;
      },
      what);
  for (size_t got = 0; got < out.size();) {
    const size_t more = read(out.subspan(got));
    if (more == 0) throw Error(cat(what, ": damaged gzip data: ", got, " bytes, expected ", out.size()));
    got += more;
  }
  char beyond = 0;
  if (read({&beyond, 1}) != 0)
    throw Error(cat(what, ": damaged gzip data: more than the ", out.size(), " bytes expected"));
}

}  // namespace athanor
