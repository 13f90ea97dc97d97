// Replaces gzip.cc in builds without zlib.
#include "base/error.h"
#include "data/text_input.h"

namespace athanor {

ReadBytes read_gzip(ReadBytes, const std::string& path) {
  throw Error(cat(path,
                  ": gzip data, and this program was built without it: install zlib1g-dev (scripts/setup.sh) and build "
                  "again, or unpack the file first"),
              Exit::usage);
}

}  // namespace athanor
