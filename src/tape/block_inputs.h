// BlockInputs: the inputs of recomputed blocks (checkpoint() in tape/ctx.h) in host memory between forward and
// backward, for one micro-batch under way. An input is copied to the host while its block runs forward, and back while
// the block behind it runs backward; so device memory holds two inputs at once, in place of one per block. The last
// block's input stays in device memory, since backward begins with it.
#pragma once
#include <cstdint>
#include <vector>

#include "device/memory_plan.h"
#include "tape/ctx.h"

namespace athanor {

class BlockInputs {
 public:
  // Pinned host memory for the inputs [rows, hidden size] of so many blocks but the last one.
  void plan(MemoryPlan&, int64_t blocks, DType, const Shape& input);
  size_t bytes() const;  // of that
  // Takes the input of the next block in forward. Returns its number.
  int64_t keep(Ctx&, Buffer input);
  // Gives the input back to backward, which asks for the inputs in reverse order.
  Buffer bring(Ctx&, int64_t number);

 private:
  std::vector<Tensor> home_;  // by number
  struct {
    int64_t number = -1;
    Buffer input;
    Ctx::Ticket copied;
  } moving_;  // on its way to the host, or back
  int64_t next_ = 0;
};

}  // namespace athanor
