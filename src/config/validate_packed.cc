// Requirements of compressed communication on the other options: gradients and weights in 4 or 8 bits, and the
// optimizers onebit_adam and onebit_lamb.
#include <algorithm>

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

bool copies_are_workers(const Config& c) { return c.local_steps > 0 || compresses(c.optimizer); }

std::string_view without_compression(RuleName optimizer) {
  return optimizer == RuleName::onebit_lamb ? "lamb" : "adamw";
}

void validate_one_bit(const Config& c) {
  for (size_t g = 0; g < c.param_groups.size(); ++g) {
    const auto& own = c.param_groups[g].optimizer;
    require(!own || compresses(*own) == compresses(c.optimizer), "param_groups[", g,
            "].optimizer: ", own ? name_of(*own) : "", " with optimizer ", name_of(c.optimizer),
            ": onebit_adam and onebit_lamb do not sum gradients, so they update all weights or none; leave the group's "
            "optimizer out");
  }
  if (!compresses(c.optimizer)) return;
  const std::string_view name = name_of(c.optimizer), whole = without_compression(c.optimizer);
  require(
      c.freeze_step > 0, "adam.freeze_step: optimizer ", name,
      " needs the number of steps before its variance is frozen, got 0; 15 to 25 % of train_iters are usual, such as ",
      std::max<int64_t>(1, c.train_iters / 5));
  const auto one = [&](const char* key, int64_t size, const char* why) {
    require(size == 1, key, ": optimizer ", name, " with ", size, " ranks of it is not supported: ", why,
            "; set it to 1, or take optimizer ", whole);
  };
  one("tensor_parallel_size", c.tensor_parallel_size,
      "ranks would compress what they have in common unlike each other");
  one("pipeline_parallel_size", c.pipeline_parallel_size, "stages would compress tied weights unlike each other");
  one("expert_parallel_size", c.expert_parallel_size, "experts have other copies than the rest");
  const auto off = [&](const char* key, bool is_off, const char* why, const char* remedy) {
    require(is_off, key, ": not supported with optimizer ", name, ": ", why, "; ", remedy, ", or take optimizer ",
            whole);
  };
  off("local_updates.steps", c.local_steps == 0, "it sends momentum in every step", "set it to 0");
  off("qk_clip_threshold", c.qk_clip_threshold == 0, "copies would clip by the attention scores of their own sequences",
      "set it to 0");
  off("pruning.sparsity", c.prune_sparsity == 0, "compressed momentum of pruned weights is not 0", "set it to 0");
  off("adam.exp_avg_dtype", c.exp_avg_dtype == SumDtype::fp32, "all copies keep the same f32 momentum",
      "set it to fp32");
  off("adam.exp_avg_sq_dtype", c.exp_avg_sq_dtype == SumDtype::fp32, "the variance is frozen in f32", "set it to fp32");
  off("offload.optimizer", c.offload_optimizer == Offload::none, "momentum is compressed on the GPU", "set it to none");
  off("logging.noise_scale", !c.log_noise_scale, "gradients of several copies are not summed", "set it to false");
  off("deterministic_reduction", c.deterministic_reduction != DeterministicReduction::rank_invariant,
      "rank_invariant has one sum over all ranks", "set it to fixed_order");
}

}  // namespace athanor
