// Baselines that a trained model must beat: losses of n-gram models of a token stream, in nats per token.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace athanor {

// Mean negative log-likelihood of the validation tokens, each predicted from the tokens before it.
struct NgramBaselines {
  double uniform = 0;  // log of the vocabulary size
  double unigram = 0;  // add-one smoothing
  double bigram = 0;   // interpolated with the unigram
  double trigram = 0;  // interpolated with both
  int64_t train_tokens = 0, valid_tokens = 0;
};

// Interpolation weights are fitted by EM on a held-out twentieth of `train` [Jelinek & Mercer 1980]. vocab_size must be
// at most 2^21. Memory: about 32 bytes per distinct trigram of `train`.
NgramBaselines ngram_baselines(std::span<const int32_t> train, std::span<const int32_t> valid, int64_t vocab_size);

// "uniform 5.549, unigram 3.230, ... nats per token"
std::string to_string(const NgramBaselines& baselines);

}  // namespace athanor
