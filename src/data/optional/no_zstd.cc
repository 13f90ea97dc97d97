// Replaces zstd.cc in builds without libzstd.
#include "base/error.h"
#include "data/text_input.h"

namespace athanor {

ReadBytes read_zstd(ReadBytes, const std::string& path) {
  throw Error(
      cat(path,
          ": zstd data, and this program was built without it: install libzstd-dev (scripts/setup.sh) and build "
          "again, or unpack the file first"),
      Exit::usage);
}

}  // namespace athanor
