// How far one model's predictions are from another's of the same shape, on held-out text.
#pragma once
#include <cstdint>

#include "data/dataset.h"
#include "engine/engine.h"

namespace athanor {

struct ModelDifference {
  int64_t tokens = 0, windows = 0;
  double reference_loss = 0, loss = 0;  // nats per token
  double kl = 0, kl_error = 0;          // mean KL(reference || other) per token, nats; standard error over windows
  double same_top = 0;                  // share of tokens for which both have the same likeliest prediction
  double probability_change = 0;        // root mean square of the change of the true token's probability
};

// Both engines: wanted logits (Engine::want_logits) and are committed, with the same micro-batch size and length.
// samples: maximum number of windows, spread over the data; 0: all.
ModelDifference compare_models(Engine& reference, Engine& other, const Dataset&, int64_t samples);

}  // namespace athanor
