// Checks the targets of a loss.
#pragma once
#include "cpu/chunks.h"

namespace athanor {

// Throws an Error that names the first target of [n] i32 outside the vocabulary; negative targets are ignored tokens.
inline void require_targets(const char* op, const Tensor& targets, int64_t vocab) {
  const int32_t* target = flat<int32_t>(targets);
  for (int64_t i = 0; i < targets.numel(); ++i)
    if (target[i] >= vocab)
      throw Error(cat(op, ": targets[", i, "] = ", target[i], " is outside the vocabulary of ", vocab));
}

}  // namespace athanor
