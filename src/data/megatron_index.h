// Writes the .idx file of a Megatron-LM data set from its .bin file: one sequence per document.
#pragma once
#include <cstdint>
#include <string>

#include "base/file.h"

namespace athanor {

// "a/b.bin" -> "a/b.idx".
std::string index_path(const std::string& shard_path);

struct MegatronTokens {
  const Fd& tokens;
  const std::string& path;
  int64_t item_size = 2;  // 2: uint16, 4: int32
  int32_t eod_id = 0;     // end-of-document token; tokens after the last one form a document, too
};
// Reads all tokens and writes the index durably, replacing an existing one.
void write_megatron_index(const std::string& path, const MegatronTokens& from);

}  // namespace athanor
