#include "data/image_file.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace athanor {

void require_valid(const ImageFormat& f, const std::string& path) {
  const auto require = [&path](const char* what, int64_t value, int64_t most) {
    if (value < 1 || value > most)
      throw Error(cat(path, ": images with ", value, " ", what, "; expected 1 to ", most), Exit::usage);
  };
  require("classes", f.classes, kMaxClasses);
  require("channels", f.channels, kMaxChannels);
  require("rows of pixels", f.height, kMaxImageSide);
  require("columns of pixels", f.width, kMaxImageSide);
}

ImageWriter::ImageWriter(const std::string& path, const ImageFormat& format) : file_(path), format_(format) {
  require_valid(format, path);
  std::array<char, kImageHeaderBytes> header{};
  const std::array<int32_t, 5> words = {1, int32_t(format.classes), int32_t(format.channels), int32_t(format.height),
                                        int32_t(format.width)};
  std::memcpy(header.data(), "ATHIMAGE", 8);
  std::memcpy(header.data() + 8, words.data(), sizeof words);
  file_.out().write(std::string_view(header.data(), header.size()));
}

void ImageWriter::append(int64_t label, std::span<const uint8_t> pixels) {
  CHECK(label >= 0 && label < format_.classes, "label ", label, " of ", format_.classes, " classes");
  CHECK(int64_t(pixels.size()) == format_.pixels(), pixels.size(), " pixels of ", format_.pixels());
  const std::array<uint8_t, 2> bytes = {uint8_t(label), uint8_t(label >> 8)};
  file_.out().write(std::as_bytes(std::span(bytes)));
  file_.out().write(std::as_bytes(pixels));
  ++images_;
}

void ImageWriter::finish() { file_.commit(); }

}  // namespace athanor
