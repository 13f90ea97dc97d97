// Decodes image files to pictures of 8-bit channels. Any bytes give a picture or an Error.
#pragma once
#include <string>
#include <string_view>

#include "data/picture.h"

namespace athanor {

// A JPEG, PNG, PPM (P6) or PGM (P5) file, told apart by its first bytes. path: for messages. Grey images have 1
// channel, all others 3. Transparency is dropped, 16-bit channels keep their high byte; colour profiles, gamma and the
// orientation in EXIF are not applied. Files of 8-bit channels give the pixels of Pillow's open().convert("RGB").
// Throws Error naming `path` if the file is truncated, damaged or too large (picture.h), and Error(usage) if this
// program was built without the format's library.
Picture decode_image(std::string_view bytes, const std::string& path);

Picture decode_jpeg(std::string_view bytes, const std::string& path);
Picture decode_png(std::string_view bytes, const std::string& path);
Picture decode_pnm(std::string_view bytes, const std::string& path);

}  // namespace athanor
