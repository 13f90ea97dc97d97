// Random changes of training images, functions of (seed, sample number) alone.
#pragma once
#include <cstdint>
#include <span>

#include "data/image_file.h"

namespace athanor {

struct Augmentation {
  uint64_t seed = 0;
  bool horizontal_flip = false;  // mirrors half of the images
  int64_t crop_padding = 0;      // moves by up to this many pixels in each direction; black pixels fill the border
};

// Changes an image [channels, height, width] in place.
void augment(std::span<uint8_t> image, const ImageFormat& format, const Augmentation& how, int64_t sample);

}  // namespace athanor
