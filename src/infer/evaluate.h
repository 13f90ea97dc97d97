// Validation: mean loss over windows spread over the whole data set, the same windows every time.
#pragma once
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/engine.h"

namespace athanor {

// Passes the documents and positions of a micro-batch to the engine.
void set_documents(Engine&, const HostBatch&);

// Loss over the windows of one source.
struct SourceLoss {
  int64_t source = 0;
  double loss = 0, loss_error = 0;       // see EvalResult
  double bits_per_byte = 0;              // NaN if bytes are unknown
  int64_t tokens = 0;                    // number of predicted tokens
  int64_t windows = 0, windows_all = 0;  // evaluated; available
};

struct EvalResult {
  double loss = 0;        // mean per predicted token, nats; weighted if there are several sources
  double loss_error = 0;  // standard error of loss, from its spread over windows; NaN: too few
  double accuracy = std::numeric_limits<double>::quiet_NaN();  // fraction of images whose class was predicted
  int64_t tokens = 0;                                          // number of predicted tokens
  double bytes = 0;                      // bytes of text in the predicted tokens, if `token_bytes` is given
  int64_t windows = 0, windows_all = 0;  // evaluated; available
  std::vector<SourceLoss> sources = {};  // sources with predicted tokens, if there are several sources
  bool stopped = false;                  // EvalOptions::stop ended the evaluation: no result
  std::string failure;                   // error of reading data on some rank: no result; the engine is unchanged
  bool failed_here = false;              // true if this rank failed

  double bits_per_byte() const;  // NaN if bytes are unknown
};

struct EvalOptions {
  int64_t samples = 0;  // maximum number of windows, see held_out(); 0 = all
  PackingOptions packing;
  std::vector<int32_t> token_bytes;  // [vocabulary]: bytes of text per token; may be empty
  // Polled before every round of micro-batches; must return the same on all ranks; true ends without a result.
  std::function<bool()> stop = {};
};
// Micro-batches are divided among the ranks, and all ranks get the result over `control`; null: one rank.
EvalResult evaluate(Engine&, const Dataset&, const EvalOptions&, Communicator* control = nullptr);

}  // namespace athanor
