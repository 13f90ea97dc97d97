#include "data/augmentation.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace athanor {
namespace {

// Uniform in [-most, most].
int64_t shift_of(uint32_t bits, int64_t most) { return int64_t(uint64_t(bits) * uint64_t(2 * most + 1) >> 32) - most; }

}  // namespace

void augment(std::span<uint8_t> image, const ImageFormat& format, const Augmentation& how, int64_t sample) {
  if (!how.horizontal_flip && how.crop_padding == 0) return;
  CHECK(int64_t(image.size()) == format.pixels(), image.size(), " pixels of ", format.pixels());
  const PhiloxBlock random = philox(how.seed, stream_of("image augmentation"), uint64_t(sample));
  const int64_t h = format.height, w = format.width;
  const int64_t down = shift_of(random[0], how.crop_padding), right = shift_of(random[1], how.crop_padding);
  const bool flips = how.horizontal_flip && (random[2] & 1) != 0;
  const std::vector<uint8_t> before(image.begin(), image.end());
  std::ranges::fill(image, uint8_t{0});
  for (int64_t row = 0; row < format.channels * h; ++row) {
    const int64_t from = row % h - down;
    if (from < 0 || from >= h) continue;
    const uint8_t* source = before.data() + (row / h * h + from) * w;
    uint8_t* out = image.data() + row * w;
    for (int64_t x = std::max<int64_t>(0, right); x < std::min(w, w + right); ++x)
      out[x] = source[flips ? w - 1 - (x - right) : x - right];
  }
}

}  // namespace athanor
