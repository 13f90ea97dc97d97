// A sample of a data set with a loss mask as text, so that a wrong mask is seen before it has cost a run.
#pragma once
#include <string>

#include "data/loader.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// Sample number `n` of the order: what is learnt is between >> and <<, the rest is left out of the loss. Long samples
// end with "...".
std::string masked_sample(const Dataset&, const PackingOptions&, const SampleOrder&, int64_t n, const Tokenizer&);

}  // namespace athanor
