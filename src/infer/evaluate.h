// Validation: mean loss over windows that are spread over the whole of a data set, the same ones every time.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/engine.h"

namespace athanor {

// Gives the engine what varies from one micro-batch to the next besides tokens and targets.
void set_documents(Engine&, const HostBatch&);

struct EvalResult {
  double loss = 0;                       // mean over the predicted tokens, nats; of several sources by their weights
  double loss_error = 0;                 // standard error of loss, from its spread over windows; NaN: too few
  int64_t tokens = 0;                    // predicted
  double bytes = 0;                      // of text that the predicted tokens are, where `token_bytes` says it
  int64_t windows = 0, windows_all = 0;  // looked at, and those that there are
  bool stopped = false;                  // by EvalOptions::stop: there is no result
  std::string failure;       // why data could not be read, on any rank: there is no result; the engine is as before
  bool failed_here = false;  // on this rank
};

struct EvalOptions {
  int64_t samples = 0;  // windows at most, see held_out(); 0 = all
  PackingOptions packing;
  std::vector<int32_t> token_bytes;  // [vocabulary]: bytes of text that each token is; may be empty
  // Asked before every turn of micro-batches, by all ranks together, who get one answer: end without a result.
  std::function<bool()> stop = {};
};
// The ranks take micro-batches by turns and all get the result, over `control`; null: one rank.
EvalResult evaluate(Engine&, const Dataset&, const EvalOptions&, Communicator* control = nullptr);

}  // namespace athanor
