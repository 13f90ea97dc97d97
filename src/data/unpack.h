// Decompression of one block in memory whose unpacked size is known, as in pages of parquet files. Damaged blocks, and
// blocks of another size than `out`, are Errors; nothing else is allocated than the library's own state. In a build
// without the library zstd and gzip throw an Error(usage) that says so.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace athanor {

// `what`: names the block in messages.
void unpack_snappy(std::string_view packed, std::span<char> out, const std::string& what);  // the raw format, no frames
void unpack_zstd(std::string_view packed, std::span<char> out, const std::string& what);
void unpack_gzip(std::string_view packed, std::span<char> out, const std::string& what);

}  // namespace athanor
