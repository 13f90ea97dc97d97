#include "tests/ops/guarded.h"

#include <algorithm>

#include "device/arena.h"

namespace athanor {

Guarded::Guarded(Device& device, const Tensor& like, uint32_t salt) : device_(device), tensor_(like), salt_(salt) {
  const bool rows_apart = like.shape.rank == 2 && !like.contiguous();
  rows_ = rows_apart ? size_t(like.rows()) : 1;
  row_bytes_ = rows_ ? like.bytes() / rows_ : 0;
  pitch_ = rows_apart ? size_t(like.stride()) * size_of(like.dtype) : row_bytes_;
  const size_t one_row = like.shape.rank == 2 ? size_t(like.stride()) * size_of(like.dtype) : row_bytes_;
  margin_ = round_up(std::clamp<size_t>(one_row, 1, 1 << 16), kArenaAlign);
  image_.resize(2 * margin_ + (rows_ ? (rows_ - 1) * pitch_ + row_bytes_ : 0));
  memory_ = device_.allocate(image_.size(), Mem::device);
  tensor_.data = static_cast<char*>(memory_) + margin_;
}

Guarded::~Guarded() { device_.release(memory_, image_.size(), Mem::device); }

template <class Fn>
void Guarded::each_row(Fn&& fn) const {
  for (size_t r = 0; r < rows_; ++r) fn(margin_ + r * pitch_, r * row_bytes_);
}

void Guarded::write(const std::vector<std::byte>& elements) {
  CHECK(elements.size() == rows_ * row_bytes_, elements.size(), " bytes for ", tensor_.shape);
  for (size_t i = 0; i < image_.size(); ++i) image_[i] = canary(i);
  each_row([&](size_t at, size_t from) { std::copy_n(elements.begin() + from, row_bytes_, image_.begin() + at); });
  device_.copy(memory_, image_.data(), image_.size(), Stream::compute);
  device_.sync();
}

std::vector<std::byte> Guarded::read() {
  device_.copy(image_.data(), memory_, image_.size(), Stream::compute);
  device_.sync();
  std::vector<std::byte> elements(rows_ * row_bytes_);
  each_row([&](size_t at, size_t to) { std::copy_n(image_.begin() + at, row_bytes_, elements.begin() + to); });
  return elements;
}

std::optional<int64_t> Guarded::damage() const {
  size_t at = 0;
  std::optional<int64_t> found;
  const auto scan = [&](size_t end) {
    for (; at < end && !found; ++at)
      if (image_[at] != canary(at)) found = int64_t(at) - int64_t(margin_);
  };
  each_row([&](size_t begin, size_t) {
    scan(begin);
    at = begin + row_bytes_;
  });
  scan(image_.size());
  return found;
}

}  // namespace athanor
