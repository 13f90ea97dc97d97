// Decompression of an in-memory block of known unpacked size, as in pages of parquet files. Throws an Error if a block
// is damaged or does not unpack to the size of `out`; only the library's own state is allocated. In a build without the
// library, zstd and gzip throw an Error(usage) that says so.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace athanor {

// `what`: names the block in messages.
void unpack_snappy(std::string_view packed, std::span<char> out, const std::string& what);  // raw snappy format,
                                                                                            // without framing
void unpack_zstd(std::string_view packed, std::span<char> out, const std::string& what);
void unpack_gzip(std::string_view packed, std::span<char> out, const std::string& what);

}  // namespace athanor
