// Limits of labelled images, for options, shards and ops alike.
#pragma once
#include <cstdint>

namespace athanor {

constexpr int64_t kMaxImageClasses = 65536, kMaxImageChannels = 4, kMaxImageSide = 16384;

}  // namespace athanor
