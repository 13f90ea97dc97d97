// A picture in memory, as decoders return it and as image shards store it: 8-bit channels, one after the other.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

struct Picture {
  int64_t channels = 0, height = 0, width = 0;
  std::vector<uint8_t> pixels;  // [channels, height, width]; channels 1: grey, 3: red, green, blue

  std::span<const uint8_t> plane(int64_t channel) const {
    return std::span(pixels).subspan(size_t(channel * height * width), size_t(height * width));
  }
};

// Sides above 16384 (kMaxImageSide) and areas above this are refused: a few bytes of a file may claim any size.
constexpr int64_t kMaxPictureArea = int64_t{1} << 27;

// Throws Error naming `path` if a side is 0 or the picture is larger than the limits above.
void require_picture_size(int64_t height, int64_t width, const std::string& path);

// A picture of zeros; the size is required as above.
Picture make_picture(int64_t channels, int64_t height, int64_t width, const std::string& path);

// Converts to 1 or 3 channels: grey is repeated, colours become ITU-R 601 luma, rounded as Pillow's convert("L") does.
Picture with_channels(Picture picture, int64_t channels);

// Writes a row of interleaved pixels (`row`: [width, channels]) into the picture.
void set_row(Picture& picture, int64_t y, std::span<const uint8_t> row);

// Resizes and crops pictures as torchvision's Resize and CenterCrop do with Pillow's bicubic filter, to the byte.
struct ResizeOptions {
  int64_t shorter = 0;  // length of the shorter side after resizing; the longer one keeps the aspect, rounded down
  int64_t size = 0;     // then the centre of size x size pixels is cut out; at most `shorter`
};

// Only the pixels of the cut-out are computed. They equal those of Pillow's resize(..., BICUBIC): coefficients of 22
// bits, rows first, then columns, each pass rounded and clipped to 8 bits.
Picture resize_and_crop(const Picture& picture, const ResizeOptions& options);

}  // namespace athanor
