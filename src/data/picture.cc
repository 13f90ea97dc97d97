#include "data/picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "data/image_file.h"

namespace athanor {
namespace {

constexpr int kBits = 22;         // fraction bits of the coefficients [Pillow, Resample.c: PRECISION_BITS]
constexpr double kSupport = 2.0;  // of the bicubic filter, in pixels of the coarser grid

// Bicubic filter with a = -0.5 [Keys 1981, eq. 4]. The order of operations decides the last bit of a coefficient.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

// The input pixels that one output pixel is a weighted sum of.
struct Taps {
  int64_t begin = 0;
  std::vector<int32_t> weights;
};

// A side of the picture: its length, that after resizing, and the part of the latter that is cut out.
struct Side {
  int64_t from = 0, to = 0, begin = 0, size = 0;
};

Side side_of(int64_t from, int64_t other, const ResizeOptions& o) {
  const int64_t to = from <= other ? o.shorter : o.shorter * from / other;
  // Python's round(): of two equally near integers the even one.
  return {.from = from, .to = to, .begin = int64_t(std::nearbyint(double(to - o.size) / 2.0)), .size = o.size};
}

Taps taps_at(const Side& side, int64_t place) {
  const double scale = double(side.from) / double(side.to), spread = std::max(scale, 1.0);
  const double support = kSupport * spread, center = (double(place) + 0.5) * scale, per_pixel = 1.0 / spread;
  const double low = center - support + 0.5, high = center + support + 0.5;  // truncated below, as in Pillow
  Taps taps;
  taps.begin = std::max<int64_t>(int64_t(low), 0);
  const int64_t end = std::min(int64_t(high), side.from);
  std::vector<double> weights;
  double sum = 0;
  for (int64_t i = taps.begin; i < end; ++i) {
    weights.push_back(bicubic((double(i) - center + 0.5) * per_pixel));
    sum += weights.back();
  }
  for (double& w : weights) {
    if (sum != 0) w /= sum;
    const double scaled = w * double(1 << kBits);
    taps.weights.push_back(int32_t(w < 0 ? scaled - 0.5 : scaled + 0.5));
  }
  return taps;
}

std::vector<Taps> taps_of(const Side& side) {
  std::vector<Taps> taps;
  for (int64_t i = 0; i < side.size; ++i)
    if (side.from == side.to)
      taps.push_back({.begin = side.begin + i, .weights = {1 << kBits}});  // a side that stays is copied
    else
      taps.push_back(taps_at(side, side.begin + i));
  return taps;
}

// A sum of up to 255 x 2^22 x 1.3, the weights' largest sum of absolute values, fits 31 bits.
uint8_t rounded(int32_t sum) { return uint8_t(std::clamp((sum + (1 << (kBits - 1))) >> kBits, 0, 255)); }

}  // namespace

void require_picture_size(int64_t height, int64_t width, const std::string& path) {
  if (height < 1 || width < 1 || height > kMaxImageSide || width > kMaxImageSide || height * width > kMaxPictureArea)
    throw Error(cat(path, ": an image of ", width, " x ", height, " pixels; expected sides of 1 to ", kMaxImageSide,
                    " and at most ", kMaxPictureArea, " pixels"));
}

Picture make_picture(int64_t channels, int64_t height, int64_t width, const std::string& path) {
  require_picture_size(height, width, path);
  return {.channels = channels,
          .height = height,
          .width = width,
          .pixels = std::vector<uint8_t>(size_t(channels * height * width))};
}

Picture with_channels(Picture from, int64_t channels) {
  CHECK((channels == 1 || channels == 3) && (from.channels == 1 || from.channels == 3), channels, " channels of ",
        from.channels);
  if (channels == from.channels) return from;
  Picture to{.channels = channels, .height = from.height, .width = from.width, .pixels = {}};
  if (channels == 3) {
    for (int c = 0; c < 3; ++c) to.pixels.insert(to.pixels.end(), from.pixels.begin(), from.pixels.end());
    return to;
  }
  const auto red = from.plane(0), green = from.plane(1), blue = from.plane(2);
  to.pixels.resize(red.size());
  for (size_t i = 0; i < red.size(); ++i)  // 0.299, 0.587 and 0.114 in 16 bits [ITU-R BT.601]
    to.pixels[i] = uint8_t((red[i] * 19595u + green[i] * 38470u + blue[i] * 7471u + 0x8000u) >> 16);
  return to;
}

void set_row(Picture& picture, int64_t y, std::span<const uint8_t> row) {
  const int64_t channels = picture.channels;
  for (int64_t c = 0; c < channels; ++c) {
    uint8_t* out = picture.pixels.data() + (c * picture.height + y) * picture.width;
    for (int64_t x = 0; x < picture.width; ++x) out[x] = row[size_t(x * channels + c)];
  }
}

Picture resize_and_crop(const Picture& from, const ResizeOptions& o) {
  CHECK(o.size >= 1 && o.shorter >= o.size, "a cut-out of ", o.size, " from a side of ", o.shorter);
  const auto columns = taps_of(side_of(from.width, from.height, o));
  const auto rows = taps_of(side_of(from.height, from.width, o));
  const int64_t first = rows.front().begin, last = rows.back().begin + int64_t(rows.back().weights.size());
  Picture to{.channels = from.channels, .height = o.size, .width = o.size, .pixels = {}};
  to.pixels.resize(size_t(from.channels * o.size * o.size));
  std::vector<uint8_t> narrow(size_t((last - first) * o.size));  // [rows of the input, size]
  std::vector<int32_t> sums(size_t(o.size));
  uint8_t* out = to.pixels.data();
  for (int64_t c = 0; c < from.channels; ++c) {
    const uint8_t* in = from.plane(c).data() + first * from.width;
    for (int64_t y = 0; y < last - first; ++y, in += from.width)
      for (int64_t x = 0; x < o.size; ++x) {
        const Taps& taps = columns[size_t(x)];
        int32_t sum = 0;
        for (size_t i = 0; i < taps.weights.size(); ++i) sum += int32_t{in[size_t(taps.begin) + i]} * taps.weights[i];
        narrow[size_t(y * o.size + x)] = rounded(sum);
      }
    for (const Taps& taps : rows) {
      std::fill(sums.begin(), sums.end(), 0);
      const uint8_t* row = narrow.data() + (taps.begin - first) * o.size;
      for (size_t i = 0; i < taps.weights.size(); ++i, row += o.size)
        for (size_t x = 0; x < size_t(o.size); ++x) sums[x] += int32_t{row[x]} * taps.weights[i];
      for (const int32_t sum : sums) *out++ = rounded(sum);
    }
  }
  return to;
}

}  // namespace athanor
