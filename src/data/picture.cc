#include "data/picture.h"

#include "base/error.h"
#include "data/image_file.h"

namespace athanor {

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

}  // namespace athanor
