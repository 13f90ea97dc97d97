// Measures the rate of causal attention with a run's heads and sequence length, on random operands.
#pragma once
#include "engine/engine.h"

namespace athanor {

struct AttentionRates {
  double forward = 0, backward = 0;  // FLOP/s, counted as AttentionFwd::cost() and AttentionBwd::cost() do
};

// Measures one sequence of `tokens` with causal attention; ignores the window of `shape`.
AttentionRates measure_attention(const Backend&, AttentionShape shape, DType, int64_t tokens);

}  // namespace athanor
