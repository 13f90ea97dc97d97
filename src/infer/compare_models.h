// Compares the predictions of two models with the same vocabulary on held-out text.
#pragma once
#include <cstdint>

#include "data/dataset.h"
#include "engine/engine.h"

namespace athanor {

struct ModelDifference {
  int64_t tokens = 0, windows = 0;
  double reference_loss = 0, loss = 0;  // nats per token
  double kl = 0, kl_error = 0;          // mean KL(reference || other) per token, nats; standard error over windows
  double same_top = 0;                  // fraction of tokens for which both models have the same most likely prediction
  double probability_change = 0;        // RMS change of the true token's probability
};

// Both engines must be committed, with Engine::want_logits() and the same micro-batch size and length. samples: maximum
// number of windows, spread over the data; 0: all.
ModelDifference compare_models(Engine& reference, Engine& other, const Dataset&, int64_t samples);

}  // namespace athanor
