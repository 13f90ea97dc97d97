// Prints a sample of a data set with its loss mask as text, so that a wrong mask is noticed at the start of the run.
#pragma once
#include <string>

#include "data/loader.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// Returns sample number `n` of the order: text between >> and << is learned, the rest is masked out of the loss. Long
// samples end with "...".
std::string masked_sample(const Dataset&, const PackingOptions&, const SampleOrder&, int64_t n, const Tokenizer&);

}  // namespace athanor
