// Resizes and crops pictures as torchvision's Resize and CenterCrop do with Pillow's bicubic filter, to the byte.
#pragma once
#include <cstdint>

#include "data/picture.h"

namespace athanor {

struct ResizeOptions {
  int64_t shorter = 0;  // length of the shorter side after resizing; the longer one keeps the aspect, rounded down
  int64_t size = 0;     // then the centre of size x size pixels is cut out; at most `shorter`
};

// Only the pixels of the cut-out are computed. They equal those of Pillow's resize(..., BICUBIC): coefficients of 22
// bits, rows first, then columns, each pass rounded and clipped to 8 bits.
Picture resize_and_crop(const Picture& picture, const ResizeOptions& options);

}  // namespace athanor
