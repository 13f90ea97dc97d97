// Implements decode_png with libpng. Its errors leave it by longjmp, which skips destructors: so each call of it is one
// statement in attempt(), whose frames own nothing, and throws from there.
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "data/image_decode.h"
#include "data/image_file.h"

namespace athanor {
namespace {

class PngReader {
 public:
  PngReader(std::string_view bytes, const std::string& path) : left_(bytes), path_(path) {
    attempt([&] {
      png_ = png_create_read_struct(
          PNG_LIBPNG_VER_STRING, this, [](png_structp png, png_const_charp text) { self(png).fail(text); },
          [](png_structp, png_const_charp) {});
    });
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw Error(cat(path, ": libpng cannot start: out of memory, or its version is not the one of its header"));
    }
    png_set_read_fn(png_, this, [](png_structp png, png_bytep out, size_t count) { self(png).take(png, out, count); });
    png_set_user_limits(png_, kMaxImageSide, kMaxImageSide);
    png_set_chunk_malloc_max(png_, 8'000'000);  // bytes of one text or profile, whose packed form may be tiny
    png_set_chunk_cache_max(png_, 100);
  }
  PngReader(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  Picture read() {
    attempt([&] { png_read_info(png_, info_); });
    const int type = png_get_color_type(png_, info_);
    const bool grey = (type & PNG_COLOR_MASK_COLOR) == 0;
    Picture picture =
        make_picture(grey ? 1 : 3, png_get_image_height(png_, info_), png_get_image_width(png_, info_), path_);
    attempt([&] {
      png_set_expand(png_);  // palettes to RGB, 1, 2 and 4 bits to 8
      png_set_strip_16(png_);
      png_set_strip_alpha(png_);
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    const size_t stride = png_get_rowbytes(png_, info_);
    if (stride != size_t(picture.channels * picture.width))
      throw Error(cat(path_, ": PNG rows of ", stride, " bytes, expected ", picture.channels * picture.width));
    std::vector<uint8_t> pixels(stride * size_t(picture.height));  // interlaced rows come in several passes
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < picture.height; ++y) rows.push_back(pixels.data() + size_t(y) * stride);
    attempt([&] { png_read_image(png_, rows.data()); });
    attempt([&] { png_read_end(png_, nullptr); });
    for (int64_t y = 0; y < picture.height; ++y)
      set_row(picture, y, std::span(pixels).subspan(size_t(y) * stride, stride));
    return picture;
  }

 private:
  static PngReader& self(png_structp png) { return *static_cast<PngReader*>(png_get_error_ptr(png)); }

  void take(png_structp png, png_bytep out, size_t count) {
    if (count > left_.size()) png_error(png, "the file ends too early");
    std::memcpy(out, left_.data(), count);
    left_.remove_prefix(count);
  }

  [[noreturn]] void fail(const char* text) {
    const size_t length = std::min(std::strlen(text), message_.size() - 1);
    std::memcpy(message_.data(), text, length);
    message_[length] = '\0';
    std::longjmp(jump_, 1);  // NOLINT(cert-err52-cpp): the only way out of libpng
  }

  template <class Call>
  void attempt(const Call& call) {
    if (setjmp(jump_) != 0)  // NOLINT(cert-err52-cpp)
      throw Error(cat(path_, ": damaged PNG data: ", message_.data()));
    call();
  }

  std::string_view left_;
  const std::string& path_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  std::array<char, 200> message_{};
};

}  // namespace

Picture decode_png(std::string_view bytes, const std::string& path) { return PngReader(bytes, path).read(); }

}  // namespace athanor
