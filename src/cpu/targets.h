// Targets that a loss cannot have.
#pragma once
#include "cpu/chunks.h"

namespace athanor {

// An Error names the first target [n] i32 outside the vocabulary; negative ones are ignored tokens.
inline void require_targets(const char* op, const Tensor& targets, int64_t vocab) {
  const int32_t* target = flat<int32_t>(targets);
  for (int64_t i = 0; i < targets.numel(); ++i)
    if (target[i] >= vocab)
      throw Error(cat(op, ": targets[", i, "] = ", target[i], " is outside the vocabulary of ", vocab));
}

}  // namespace athanor
