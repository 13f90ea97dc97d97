// Validation: mean loss over the first windows of a data set, in file order, the same ones every time.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "train/engine.h"

namespace athanor {

// Gives the engine what varies from one micro-batch to the next besides tokens and targets.
void set_documents(Engine&, const HostBatch&);

struct EvalResult {
  double loss = 0;           // mean over the predicted tokens, nats
  int64_t tokens = 0;        // predicted
  double bytes = 0;          // of text that the predicted tokens are, where `token_bytes` says it
  bool stopped = false;      // by EvalOptions::stop: there is no result
  std::string failure;       // why data could not be read, on any rank: there is no result; the engine is as before
  bool failed_here = false;  // on this rank
};

struct EvalOptions {
  int64_t samples = 0;  // windows at most; 0 = all
  PackingOptions packing;
  std::vector<int32_t> token_bytes;  // [vocabulary]: bytes of text that each token is; may be empty
  // Asked before every turn of micro-batches, by all ranks together, who get one answer: end without a result.
  std::function<bool()> stop = {};
};
// The ranks take micro-batches by turns and all get the result, over `control`; null: one rank.
EvalResult evaluate(Engine&, const Dataset&, const EvalOptions&, Communicator* control = nullptr);

}  // namespace athanor
