// Detection of a text's encoding for tokenization: whether it is UTF-8, or clearly another encoding.
#pragma once
#include <cstdint>
#include <string_view>

namespace athanor {

// "UTF-16" or "UTF-32", detected by the byte order mark at the start or by zeros in every second byte; else "".
std::string_view wide_encoding(std::string_view start);

// Number of bytes that are not part of a valid UTF-8 character [RFC 3629]. Characters cut off at either end of `text`
// are not counted.
int64_t bytes_outside_utf8(std::string_view text);

}  // namespace athanor
