#include "data/image_decode.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::string_view kJpeg = "\xff\xd8\xff";      // start of image, then a marker [ITU-T T.81, B.1.1.3]
constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";  // [RFC 2083, 12.11]
constexpr std::string_view kPnmSpace = " \t\n\v\f\r";   // [netpbm, pgm(5)]

// The header of a PGM or PPM file: numbers between white space and comments.
class PnmHeader {
 public:
  PnmHeader(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  int64_t number() {
    skip_space();
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < bytes_.size() && bytes_[at_] >= '0' && bytes_[at_] <= '9'; ++at_)
      value = std::min<int64_t>(value * 10 + (bytes_[at_] - '0'), 1 << 30);
    if (at_ == begin) throw Error(cat(path_, ": damaged PGM or PPM header: expected a number at byte ", at_));
    return value;
  }

  std::string_view rest() const {
    if (at_ >= bytes_.size() || kPnmSpace.find(bytes_[at_]) == kPnmSpace.npos)
      throw Error(cat(path_, ": damaged PGM or PPM header: expected white space at byte ", at_));
    return bytes_.substr(at_ + 1);
  }

 private:
  void skip_space() {
    for (; at_ < bytes_.size(); ++at_)
      if (bytes_[at_] == '#')
        at_ = std::min(bytes_.find('\n', at_), bytes_.size() - 1);
      else if (kPnmSpace.find(bytes_[at_]) == kPnmSpace.npos)
        return;
  }

  std::string_view bytes_;
  const std::string& path_;
  size_t at_ = 2;  // after "P5" or "P6"
};

}  // namespace

Picture decode_pnm(std::string_view bytes, const std::string& path) {
  const int64_t channels = bytes.starts_with("P6") ? 3 : 1;
  PnmHeader header(bytes, path);
  const int64_t width = header.number(), height = header.number(), most = header.number();
  if (most != 255) throw Error(cat(path, ": a PGM or PPM file with values up to ", most, ", expected 255; convert it"));
  const std::string_view values = header.rest();
  require_picture_size(height, width, path);  // before channels * height * width, which could overflow
  if (int64_t(values.size()) < channels * height * width)
    throw Error(cat(path, ": truncated: ", values.size(), " bytes of pixels, expected ", channels * height * width));
  Picture picture = make_picture(channels, height, width, path);
  const std::span pixels(reinterpret_cast<const uint8_t*>(values.data()), values.size());
  for (int64_t y = 0; y < height; ++y)
    set_row(picture, y, pixels.subspan(size_t(y * width * channels), size_t(width * channels)));
  return picture;
}

Picture decode_image(std::string_view bytes, const std::string& path) {
  if (bytes.starts_with(kJpeg)) return decode_jpeg(bytes, path);
  if (bytes.starts_with(kPng)) return decode_png(bytes, path);
  if (bytes.starts_with("P5") || bytes.starts_with("P6")) return decode_pnm(bytes, path);
  if (bytes.empty()) throw Error(cat(path, ": expected an image, the file is empty"));
  throw Error(cat(path, ": expected a JPEG, PNG, PPM (P6) or PGM (P5) file by its first bytes, got something else"));
}

}  // namespace athanor
