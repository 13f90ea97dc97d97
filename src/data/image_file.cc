#include "data/image_file.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "data/token_format.h"

namespace athanor {

void require_valid(const ImageFormat& f, const std::string& path) {
  const auto require = [&path](const char* what, int64_t value, int64_t most) {
    if (value < 1 || value > most)
      throw Error(cat(path, ": images with ", value, " ", what, "; expected 1 to ", most), Exit::usage);
  };
  require("classes", f.classes, kMaxImageClasses);
  require("channels", f.channels, kMaxImageChannels);
  require("rows of pixels", f.height, kMaxImageSide);
  require("columns of pixels", f.width, kMaxImageSide);
}

TokenLayout read_images(const Probe& probe) {
  const std::string& path = probe.path();
  probe.require_dtype(TokenType::u8);
  if (probe.file.bytes() < kImageHeaderBytes)
    throw Error(cat(path, ": truncated: the header of a shard of images has ", kImageHeaderBytes, " bytes, the file ",
                    probe.file.bytes()));
  if (probe.word(2) != 1) throw Error(cat(path, ": expected version 1 of shards of images, found ", probe.word(2)));
  const ImageFormat format{
      .classes = probe.word(3), .channels = probe.word(4), .height = probe.word(5), .width = probe.word(6)};
  require_valid(format, path);
  const int64_t bytes = probe.file.bytes() - kImageHeaderBytes;
  if (bytes % format.record_bytes() != 0)
    throw Error(cat(path, ": ", bytes, " bytes after the header are no whole number of images of ",
                    format.record_bytes(), " bytes: the file is truncated; write it again"));
  return {.format = cat("images-", format.channels, "x", format.height, "x", format.width, "-of-", format.classes),
          .offset = kImageHeaderBytes,
          .type = TokenType::u8,
          .count = bytes,
          .images = format};
}

int64_t read_image(const StableFile& file, const ImageFormat& format, int64_t index, std::span<uint8_t> pixels) {
  CHECK(int64_t(pixels.size()) == format.pixels(), pixels.size(), " pixels of ", format.pixels());
  const int64_t at = kImageHeaderBytes + index * format.record_bytes();
  const int64_t label = file.value<uint16_t>(at);
  if (label >= format.classes)
    throw Error(cat(file.path(), ": image ", index, " has label ", label, ", expected less than the ", format.classes,
                    " classes of the shard: the file is damaged"));
  file.read(at + ImageFormat::kLabelBytes, std::as_writable_bytes(pixels));
  return label;
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
