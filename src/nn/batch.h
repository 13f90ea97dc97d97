// One micro-batch on the device: the inputs of layers other than activations.
#pragma once
#include <vector>

#include "ops/attention.h"

namespace athanor {

// Keys and values of earlier tokens, one pair per layer; rows of one sequence are contiguous.
struct KvCache {
  std::vector<Tensor> k, v;  // [sequences * rows, K D] each; `capacity` rows per sequence, or more for padding
  int64_t capacity = 0;      // tokens per sequence
};

struct Batch {
  Tensor tokens;     // [N] i32
  Tensor pixels;     // [images, pixels of an image] u8; only if the model reads images, else absent
  Tensor targets;    // [N] i32, -1 = ignored; absent when sampling
  Tensor ahead;      // [N, m] i32: later tokens that a row also predicts, -1 = none; training only, optional
  Tensor positions;  // [N] i32, position within the sequence or document
  Tensor previous;   // [N] i32: the preceding token of the sequence or document, vocab_size for the first one; only if
                     // the model or its teacher has smear, else absent
  Tensor spans;  // [S, 6] i32: which keys each query sees; [2 S, 6] with context_rows, more tables in ring attention
  int64_t sequences = 0;     // sequences of the micro-batch if spans may be documents, else 0: one per span
  Tensor context_rows;       // [all rows] i32 with context parallelism: ContextPart::rows_of_ranks(); absent in a ring
                             // whose routers balance no sequences
  int64_t piece_length = 0;  // tokens, with context parallelism as a ring: nn/ring.h; else 0
  int64_t ring_window = 0;   // in a ring: Ring::window of `spans`, at least the window of every layer; 0: unlimited
  KvCache* cache = nullptr;  // sampling: keys and values are written to and read from it
  Tensor cache_rows;         // [N] i32: cache row that each token's key and value are written to
};

}  // namespace athanor
