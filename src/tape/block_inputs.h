// BlockInputs: holds the inputs of recomputed blocks (checkpoint() in tape/ctx.h) in host memory between forward and
// backward of one micro-batch. An input is copied to the host while its block runs forward, and back to the device
// while the next block runs backward, so that device memory holds two inputs at a time instead of one per block. The
// last block's input stays in device memory, since backward begins with it.
#pragma once
#include <cstdint>
#include <vector>

#include "device/memory_plan.h"
#include "tape/ctx.h"

namespace athanor {

class BlockInputs {
 public:
  // Plans pinned host memory for the inputs [rows, hidden size] of all blocks except the last.
  void plan(MemoryPlan&, int64_t blocks, DType, const Shape& input);
  size_t bytes() const;  // pinned host memory
  // Takes the input of the next block in forward. Returns the block's number.
  int64_t keep(Ctx&, Buffer input);
  // Returns the input for backward, which must request the inputs in reverse order.
  Buffer bring(Ctx&, int64_t number);

 private:
  std::vector<Tensor> home_;  // host copies, by block number
  struct {
    int64_t number = -1;
    Buffer input;
    Ctx::Ticket copied;
  } moving_;  // input that is being copied to the host, or back
  int64_t next_ = 0;
};

}  // namespace athanor
