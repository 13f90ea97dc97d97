// The part of `athanor data info` and `data verify` for shards of images.
#pragma once
#include <span>
#include <string>

#include "data/report.h"

namespace athanor {

// True if the file begins like a shard of images; false also if it cannot be read.
bool is_image_shard(const std::string& path);
// Reports formats, counts, images per class, mean and standard deviation of pixels, and problems. Reads all images.
DataInfo image_info(std::span<const std::string> paths);

}  // namespace athanor
