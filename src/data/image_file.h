// Shards of labelled images, which image classifiers (model_type vit) train on. Little-endian:
//
//   bytes 0-7    "ATHIMAGE"
//   bytes 8-27   int32: version 1, classes, channels, height, width
//   bytes 28-63  zeros
//   then records of equal size: uint16 label, below `classes`; channels x height x width bytes (pixels 0 to 255), one
//   channel after the other, each row by row
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/image_limits.h"
#include "data/stable_file.h"

namespace athanor {

struct ImageFormat {
  int64_t classes = 0, channels = 0, height = 0, width = 0;
  int64_t pixels() const { return channels * height * width; }
  int64_t record_bytes() const { return kLabelBytes + pixels(); }
  bool operator==(const ImageFormat&) const = default;

  static constexpr int64_t kLabelBytes = 2;
};
constexpr int64_t kImageHeaderBytes = 64;

// Reads image number `index` of a shard with this format: its pixels [channels, height, width]. Returns its label.
// Throws if the label is not below `classes`.
int64_t read_image(const StableFile& file, const ImageFormat& format, int64_t index, std::span<uint8_t> pixels);

// Throws Error naming `path` if the format has sizes outside the limits of base/image_limits.h.
void require_valid(const ImageFormat& format, const std::string& path);

// Writes one shard atomically: it appears under its name in finish(), or not at all.
class ImageWriter {
 public:
  ImageWriter(const std::string& path, const ImageFormat& format);
  void append(int64_t label, std::span<const uint8_t> pixels);  // pixels: [channels, height, width]
  int64_t images() const { return images_; }
  void finish();

 private:
  AtomicFile file_;
  ImageFormat format_;
  int64_t images_ = 0;
};

}  // namespace athanor
