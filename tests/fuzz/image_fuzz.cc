// libFuzzer target: any bytes as an image file, and as files of images and labels that shards are made of. Whatever
// they are, a picture of the size that it says follows, or an Error.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/image_decode.h"
#include "data/image_source.h"
#include "data/picture.h"
#include "tests/fuzz/laws.h"

namespace {

using namespace athanor;

constexpr int64_t kMostPixels = 1 << 16;  // a few bytes may stand for a picture that takes a second to decode
constexpr int64_t kMostImages = 1000;

// A file only in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("images", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) != ssize_t(bytes.size())) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return cat("/proc/self/fd/", fd_); }

 private:
  int fd_;
};

void check(const Picture& picture) {
  require(picture.channels == 1 || picture.channels == 3);
  require(int64_t(picture.pixels.size()) == picture.channels * picture.height * picture.width);
}

void read_all(const ImageSource& source) {
  for (int64_t i = 0; i < kMostImages; ++i) {
    const auto image = source.next();
    if (!image) return;
    require(image->label >= 0 && image->label < int64_t(source.classes.size()));
    check(image->picture);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  survive([&] {
    const Picture picture = decode_image(input, "fuzz");
    check(picture);
    if (int64_t(picture.pixels.size()) > kMostPixels) return;
    const Picture cut = resize_and_crop(with_channels(picture, 1), {.shorter = 9, .size = 7});
    check(cut);
    require(cut.height == 7 && cut.width == 7);
  });
  if (size < 2 || data[0] >= 10 || data[size / 2] >= 10)
    return 0;  // zstd, whose windows may take 2 GiB, begins with 40
  const MemoryFile images(input), labels(input.substr(size / 2));
  survive([&] { image_format_of(images.path()); });
  survive([&] { read_all(open_idx_images({images.path()}, labels.path())); });
  survive([&] { read_all(open_cifar_images({images.path()}, 10)); });
  return 0;
}
