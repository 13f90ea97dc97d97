// Implements read_gzip with zlib.
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "data/text_input.h"

namespace athanor {
namespace {

class Gunzip {
 public:
  Gunzip(ReadBytes raw, std::string path) : raw_(std::move(raw)), path_(std::move(path)), in_(size_t{1} << 16) {
    // 15: maximum window; + 16: gzip header [zlib.h, inflateInit2].
    CHECK(inflateInit2(&z_, 15 + 16) == Z_OK, "out of memory for decompression");
  }
  Gunzip(const Gunzip&) = delete;
  ~Gunzip() { inflateEnd(&z_); }

  size_t read(std::span<char> out) {
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    z_.avail_out = uInt(std::min<size_t>(out.size(), 1 << 30));
    const size_t wanted = z_.avail_out;
    while (z_.avail_out == wanted) {
      if (z_.avail_in == 0 && !refill()) {
        if (in_member_) throw Error(cat(path_, ": ends in the middle of compressed data, at byte ", taken_));
        return 0;
      }
      if (!in_member_ && *z_.next_in == 0) {  // tapes and object stores pad the last block with zeros
        ++z_.next_in;
        --z_.avail_in;
        continue;
      }
      if (!in_member_) {  // the next member, as in `cat a.gz b.gz`
        inflateReset(&z_);
        in_member_ = true;
      }
      const int code = inflate(&z_, Z_NO_FLUSH);
      if (code == Z_STREAM_END)
        in_member_ = false;
      else if (code != Z_OK && code != Z_BUF_ERROR)
        throw Error(cat(path_, ": damaged gzip data near byte ", taken_ - z_.avail_in, ": ",
                        z_.msg ? z_.msg : "it cannot be unpacked"));
    }
    return wanted - z_.avail_out;
  }

 private:
  bool refill() {
    const size_t got = raw_(in_);
    z_.next_in = reinterpret_cast<Bytef*>(in_.data());
    z_.avail_in = uInt(got);
    taken_ += int64_t(got);
    return got > 0;
  }

  ReadBytes raw_;
  std::string path_;
  std::vector<char> in_;
  int64_t taken_ = 0;
  bool in_member_ = true;
  z_stream z_{};
};

}  // namespace

ReadBytes read_gzip(ReadBytes raw, const std::string& path) {
  auto gunzip = std::make_shared<Gunzip>(std::move(raw), path);
  return [gunzip](std::span<char> out) { return gunzip->read(out); };
}

}  // namespace athanor
