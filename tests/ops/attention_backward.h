// The backward op of a forward one, for tests: tensors like those of the forward op, each gradient like what it is of.
#pragma once
#include "ops/attention.h"

namespace athanor {

inline AttentionBwd backward_of(const AttentionFwd& f) {
  return {.dq = f.q,
          .dk = f.k,
          .dv = f.v,
          .dy = f.y,
          .y = f.y,
          .lse = f.lse,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .spans = f.spans,
          .shape = f.shape};
}

}  // namespace athanor
