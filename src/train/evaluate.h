// Validation: mean loss over the first windows of a data set, in file order, the same ones every time.
#pragma once
#include "data/dataset.h"
#include "train/engine.h"

namespace athanor {

struct EvalResult {
  double loss = 0;  // nats per predicted token
  int64_t tokens = 0;
};

// At most `samples` windows (0 = all); a last partial micro-batch is filled with ignored rows. The ranks take
// micro-batches by turns and all get the result.
EvalResult evaluate(Engine&, const Dataset&, int64_t samples, Communicator* control = nullptr);

}  // namespace athanor
