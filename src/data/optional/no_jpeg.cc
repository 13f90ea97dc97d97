// Replaces jpeg.cc in builds without libjpeg.
#include "base/error.h"
#include "data/image_decode.h"

namespace athanor {

Picture decode_jpeg(std::string_view, const std::string& path) {
  throw Error(cat(path,
                  ": a JPEG file, and this program was built without libjpeg: install libjpeg-dev (scripts/setup.sh) "
                  "and build again, or convert the images to PPM"),
              Exit::usage);
}

}  // namespace athanor
