// Replaces png.cc in builds without libpng.
#include "base/error.h"
#include "data/image_decode.h"

namespace athanor {

Picture decode_png(std::string_view, const std::string& path) {
  throw Error(cat(path,
                  ": a PNG file, and this program was built without libpng: install libpng-dev and zlib1g-dev "
                  "(scripts/setup.sh) and build again, or convert the images to PPM"),
              Exit::usage);
}

}  // namespace athanor
