// Implements decode_jpeg with libjpeg-turbo. Its errors leave it by longjmp, which skips destructors: so each call of
// it is one statement in attempt(), whose frames own nothing, and throws from there.
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

#include <jerror.h>

#include <array>
#include <vector>

#include "base/error.h"
#include "data/image_decode.h"

namespace athanor {
namespace {

// Each scan of a progressive file costs a pass over the picture, and a few bytes are a scan; encoders write about 10.
constexpr int kMostScans = 100;

// Data of warnings that are harmless or only about metadata; all others mean that pixels are lost.
bool is_harmless(int code) {
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
         code == JWRN_TOO_MUCH_DATA || code == JWRN_BOGUS_PROGRESSION;
}

class JpegReader {
 public:
  explicit JpegReader(const std::string& path) : path_(path) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = [](j_common_ptr j) { self(j).fail(); };
    errors_.emit_message = [](j_common_ptr j, int level) {
      if (level < 0 && !is_harmless(j->err->msg_code)) self(j).fail();
    };
    errors_.output_message = [](j_common_ptr) {};
    attempt([&] { jpeg_create_decompress(&jpeg_); });
    progress_.progress_monitor = [](j_common_ptr j) {
      if (reinterpret_cast<j_decompress_ptr>(j)->input_scan_number > kMostScans) ERREXIT(j, JERR_BAD_PROGRESSION);
    };
    jpeg_.progress = &progress_;
  }
  JpegReader(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }

  Picture read(std::string_view bytes) {
    attempt([&] {
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()),
                   static_cast<unsigned long>(bytes.size()));
    });
    attempt([&] { jpeg_read_header(&jpeg_, TRUE); });
    const bool grey = jpeg_.num_components == 1, cmyk = jpeg_.num_components == 4;
    jpeg_.out_color_space = grey ? JCS_GRAYSCALE : cmyk ? JCS_CMYK : JCS_RGB;
    // The size is checked before libjpeg allocates anything of that size.
    Picture picture = make_picture(grey ? 1 : 3, jpeg_.image_height, jpeg_.image_width, path_);
    attempt([&] { jpeg_start_decompress(&jpeg_); });
    std::vector<uint8_t> row(size_t(jpeg_.output_width) * size_t(jpeg_.output_components));
    for (int64_t y = 0; y < picture.height; ++y) {
      JSAMPROW rows = row.data();
      attempt([&] { jpeg_read_scanlines(&jpeg_, &rows, 1); });
      if (cmyk) to_rgb(row);
      set_row(picture, y, std::span(row).first(size_t(picture.width * picture.channels)));
    }
    attempt([&] { jpeg_finish_decompress(&jpeg_); });
    return picture;
  }

 private:
  static JpegReader& self(j_common_ptr j) { return *static_cast<JpegReader*>(j->client_data); }

  [[noreturn]] void fail() {
    errors_.format_message(reinterpret_cast<j_common_ptr>(&jpeg_), message_.data());
    std::longjmp(jump_, 1);  // NOLINT(cert-err52-cpp): the only way out of libjpeg
  }

  template <class Call>
  void attempt(const Call& call) {
    if (setjmp(jump_) != 0)  // NOLINT(cert-err52-cpp)
      throw Error(cat(path_, ": damaged JPEG data: ", message_.data()));
    call();
  }

  // CMYK in place to RGB without a colour profile: red = (255 - C)(255 - K) / 255, and so on, rounded as Pillow does.
  // Files store 255 - C, 255 - M, 255 - Y, 255 - K, as Adobe's programs began.
  static void to_rgb(std::vector<uint8_t>& row) {
    for (size_t i = 0; i < row.size() / 4; ++i) {
      const int key = row[4 * i + 3];
      const std::array<int, 3> ink = {255 - row[4 * i], 255 - row[4 * i + 1], 255 - row[4 * i + 2]};
      for (size_t c = 0; c < 3; ++c) row[3 * i + c] = uint8_t(key - (ink[c] * key + 127) / 255);
    }
  }

  const std::string& path_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
};

}  // namespace

Picture decode_jpeg(std::string_view bytes, const std::string& path) { return JpegReader(path).read(bytes); }

}  // namespace athanor
