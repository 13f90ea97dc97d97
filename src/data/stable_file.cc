#include "data/stable_file.h"

#include "base/error.h"

namespace athanor {

StableFile StableFile::open(const std::string& path) {
  StableFile opened;
  opened.path_ = path;
  opened.file_ = open_regular(path);
  opened.bytes_ = file_bytes(opened.file_, path);
  return opened;
}

// Detects growth and truncation, but not a rewrite in place at the same size (the fingerprint of a resumed run detects
// that at the file's ends).
void StableFile::read(int64_t offset, std::span<std::byte> out) const {
  if (offset < 0 || offset > bytes_ || int64_t(out.size()) > bytes_ - offset)
    throw Error(cat(path_, ": bytes ", offset, " to ", offset, " + ", out.size(), " are asked for, it has ", bytes_));
  const int64_t now = file_bytes(file_, path_);
  if (now != bytes_)
    throw Error(cat(path_, ": had ", bytes_, " bytes at open and has ", now,
                    " now: shards must not change during a run; write new ones under new names"));
  pread_all(file_, out, offset, path_);
}

}  // namespace athanor
