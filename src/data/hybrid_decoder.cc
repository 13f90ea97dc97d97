#include "data/hybrid_decoder.h"

#include "base/error.h"

namespace athanor {

HybridDecoder::HybridDecoder(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
  if (width < 0 || width > 32) throw Error(cat("damaged page: values of ", width, " bits, expected at most 32"));
}

uint32_t HybridDecoder::next() {
  while (left_ == 0) begin_run();
  --left_;
  if (!packed_) return value_;
  for (; held_ < width_; held_ += 8) {
    if (bytes_.empty()) throw Error("damaged page: a run of bit-packed values ends too early");
    bits_ |= uint64_t(uint8_t(bytes_[0])) << held_;
    bytes_.remove_prefix(1);
  }
  const auto value = uint32_t(bits_ & ((uint64_t{1} << width_) - 1));
  bits_ >>= width_;
  held_ -= width_;
  return value;
}

void HybridDecoder::begin_run() {
  const auto take = [this] {
    if (bytes_.empty()) throw Error("damaged page: it has fewer levels or indices than values");
    const auto byte = uint8_t(bytes_[0]);
    bytes_.remove_prefix(1);
    return byte;
  };
  uint64_t header = 0;
  for (int shift = 0;; shift += 7) {
    if (shift > 28) throw Error("damaged page: a run's length has more than 32 bits");
    const uint8_t byte = take();
    header |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  packed_ = (header & 1) != 0;
  left_ = int64_t(header >> 1) * (packed_ ? 8 : 1);
  value_ = 0;
  bits_ = 0;
  held_ = 0;
  if (packed_) return;
  for (int i = 0; i < (width_ + 7) / 8; ++i) value_ |= uint32_t(take()) << (8 * i);
  if (uint64_t{value_} >> width_ != 0)
    throw Error(cat("damaged page: a run of the value ", value_, ", expected ", width_, " bits"));
}

}  // namespace athanor
