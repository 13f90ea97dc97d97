// Detection of a text's encoding for tokenization: whether it is UTF-8, or clearly another encoding.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

// "UTF-16" or "UTF-32", detected by the byte order mark at the start or by zeros in every second byte; else "".
std::string_view wide_encoding(std::string_view start);

// The byte order mark of UTF-8, which editors on Windows write at the start of a file; it is no part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
// Removes the mark from the start of the file `path`, with a notice; returns the number of bytes removed.
size_t drop_byte_order_mark(std::string& start, const std::string& path);

// Number of bytes that are not part of a valid UTF-8 character [RFC 3629]. Characters cut off at either end of `text`
// are not counted.
int64_t bytes_outside_utf8(std::string_view text);

}  // namespace athanor
