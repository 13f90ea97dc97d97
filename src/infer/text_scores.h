// Log probabilities of the ends of many texts. Several texts share a sequence as documents that do not attend to each
// other; micro-batches are divided among the ranks, so that each text is evaluated once.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine.h"

namespace athanor {

struct ScoredText {
  std::vector<int32_t> tokens;
  // Number of last tokens to score, 1 to tokens.size() - 1. A text longer than a sequence loses its start.
  int64_t scored = 0;
};

struct TextScore {
  double log_probability = 0;  // nats, summed over the scored tokens, given the tokens before them
  double misses = 0;           // number of scored tokens that are not the most likely ones, if asked for
};

struct ScoringOptions {
  bool misses = false;  // count misses; needs Engine::want_logits()
  // Polled before every round of micro-batches; must return the same on all ranks; true ends with an empty result.
  std::function<bool()> stop = {};
  Communicator* control = nullptr;  // over all ranks; null: one rank
};

// Scores texts. The engine must allow at least one document per sequence; if it allows more, fewer micro-batches are
// needed. All ranks call it together with the same texts and get all scores.
std::vector<TextScore> score_texts(Engine&, std::span<const ScoredText>, const ScoringOptions&);

}  // namespace athanor
