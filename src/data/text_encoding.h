// What tokenization needs to know about the encoding of a text: whether it is UTF-8, and if it is surely another one.
#pragma once
#include <cstdint>
#include <string_view>

namespace athanor {

// "UTF-16" or "UTF-32", by the byte order mark at the start of a text, or by zeros in every second byte; else "".
std::string_view wide_encoding(std::string_view start);

// Bytes that belong to no character of UTF-8 [RFC 3629]. A character that the ends of `text` cut in two is not counted.
int64_t bytes_outside_utf8(std::string_view text);

}  // namespace athanor
