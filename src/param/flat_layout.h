// FlatLayout: the offset of each parameter in its unit's flat buffers. A pure function of the specs.
#pragma once
#include <span>
#include <vector>

#include "param/spec.h"

namespace athanor {

struct FlatLayout {
  std::vector<int64_t> offset;  // offset of each spec, in elements, in the order given
  int64_t trained = 0;          // [0, trained) holds matrices and embeddings, then vectors; the rest is not trainable
  int64_t numel = 0;            // size of the whole buffer with padding; a multiple of shards * align

  // Each parameter starts at a multiple of `align` elements.
  static FlatLayout make(std::span<const ParamSpec> specs, int shards, int64_t align);
};

}  // namespace athanor
