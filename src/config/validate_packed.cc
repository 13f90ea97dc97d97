// Requirements of 4-bit and 8-bit exchanges of gradients and weights on the other options.
#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

// Refuses options that `key` does not work with.
auto refusals(const char* key) {
  return [key](bool is_off, const std::string& what, const char* why, const std::string& remedy) {
    require(is_off, key, ": true does not work with ", what, ": ", why, "; ", remedy, ", or set ", key, " to false");
  };
}

void validate_both(const Config& c, const char* key) {
  const auto off = refusals(key);
  off(c.zero_stage == 1 || c.zero_stage == 2, cat("zero_stage ", c.zero_stage),
      "it replaces what ranks send once per step, to the owner of a shard and from it", "take 1 or 2");
  off(!compresses(c.optimizer), cat("optimizer ", name_of(c.optimizer)), "it compresses what ranks send already",
      "take another");
  off(c.offload_params == Offload::none, "offload.params", "weights and gradients are packed in device memory",
      "set that to none");
}

void validate_packed_gradients(const Config& c) {
  constexpr const char* kKey = "zero_quantized_gradients";
  validate_both(c, kKey);
  const auto off = refusals(kKey);
  off(c.deterministic_reduction != DeterministicReduction::rank_invariant, "deterministic_reduction rank_invariant",
      "each rank's rounding depends on which micro-batches it has", "set it to fixed_order");
  off(copies_are_workers(c) || c.data_parallel_replicate_size < 15,
      cat("data_parallel_replicate_size ", c.data_parallel_replicate_size),
      "each copy sends 4 bits to all others, from 15 on more than in fp32", "have fewer");
}

void validate_packed_weights(const Config& c) {
  constexpr const char* kKey = "zero_quantized_weights";
  validate_both(c, kKey);
  const auto off = refusals(kKey);
  off(c.precision == Precision::bf16, cat("precision ", name_of(c.precision)),
      "ranks compute with bf16 weights apart from the masters", "take bf16");
  off(c.master_weights == MasterWeights::fp32, cat("master_weights ", name_of(c.master_weights)),
      "masters are exact, and the weights that ranks know are not part of them", "take fp32");
  off(c.local_steps == 0, cat("local_updates.steps ", c.local_steps), "an outer step replaces all weights",
      "set it to 0");
  off(c.lora_rank == 0, cat("lora.rank ", c.lora_rank), "adapters are small", "set it to 0");
  off(c.prune_sparsity == 0, "pruning.sparsity", "pruned weights would not stay zero", "set it to 0");
  off(c.offload_optimizer == Offload::none, "offload.optimizer", "what was sent stays in device memory",
      "set that to none");
}

}  // namespace

void validate_packed(const Config& c) {
  if (c.zero_quantized_gradients) validate_packed_gradients(c);
  if (c.zero_quantized_weights) validate_packed_weights(c);
}

}  // namespace athanor
