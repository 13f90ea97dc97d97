// The index file of a Megatron-LM data set, made from its tokens: every document is one sequence.
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
  int32_t eod_id = 0;     // ends a document; what follows the last one is a document too
};
// Reads all tokens and writes the index, durably; an index that is there is replaced.
void write_megatron_index(const std::string& path, const MegatronTokens& from);

}  // namespace athanor
