// Implements read_zstd and unpack_zstd with libzstd.
#include <zstd.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "data/text_input.h"
#include "data/unpack.h"

namespace athanor {
namespace {

struct Free {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

class Unzstd {
 public:
  Unzstd(ReadBytes raw, std::string path)
      : raw_(std::move(raw)), path_(std::move(path)), in_(ZSTD_DStreamInSize()), stream_(ZSTD_createDStream()) {
    CHECK(stream_ != nullptr, "out of memory for decompression");
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, 31);  // the window that `zstd --long=31` writes
  }

  size_t read(std::span<char> out) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      if (from_.pos == from_.size && !refill()) {
        if (in_frame_) throw Error(cat(path_, ": ends in the middle of compressed data, at byte ", taken_));
        return 0;
      }
      const size_t code = ZSTD_decompressStream(stream_.get(), &to, &from_);
      if (ZSTD_isError(code))
        throw Error(cat(path_, ": damaged zstd data near byte ", taken_ - int64_t(from_.size - from_.pos), ": ",
                        ZSTD_getErrorName(code)));
      in_frame_ = code != 0;
    }
    return to.pos;
  }

 private:
  bool refill() {
    from_ = {in_.data(), raw_(in_), 0};
    taken_ += int64_t(from_.size);
    return from_.size > 0;
  }

  ReadBytes raw_;
  std::string path_;
  std::vector<char> in_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  ZSTD_inBuffer from_{nullptr, 0, 0};
  int64_t taken_ = 0;
  bool in_frame_ = true;
};

}  // namespace

ReadBytes read_zstd(ReadBytes raw, const std::string& path) {
  auto unzstd = std::make_shared<Unzstd>(std::move(raw), path);
  return [unzstd](std::span<char> out) { return unzstd->read(out); };
}

// Decompresses in one call, which allocates no window: a hostile frame header could request 2 GiB.
void unpack_zstd(std::string_view packed, std::span<char> out, const std::string& what) {
  const size_t got = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(got)) throw Error(cat(what, ": damaged zstd data: ", ZSTD_getErrorName(got)));
  if (got != out.size()) throw Error(cat(what, ": damaged zstd data: ", got, " bytes, expected ", out.size()));
}

}  // namespace athanor
