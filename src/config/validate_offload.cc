// Which tensors may be offloaded to host memory, and what that requires of the other options.
#include <algorithm>

#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

// True for rules whose step needs the gradients of all weights at once: for norms of whole tensors, or because ranks
// exchange matrices.
bool needs_whole_gradients(RuleName rule) {
  constexpr RuleName kRules[] = {RuleName::muon, RuleName::normuon, RuleName::lamb, RuleName::adafactor};
  return compresses(rule) || std::ranges::find(kRules, rule) != std::end(kRules);
}

void require_gpu(const Config& c, const char* key, Offload offload, const char* what) {
  require(
      c.device != DeviceChoice::cpu || offload != Offload::cpu, key, ": cpu moves ", what,
      " from a GPU to host memory, where those of device cpu are already; set it to auto or none, or device to cuda");
}

void validate_params(const Config& c) {
  if (c.offload_params == Offload::none) return;
  require_gpu(c, "offload.params", c.offload_params, "weights and gradients");
  const std::string key = cat("offload.params: ", c.offload_params == Offload::cpu ? "cpu" : "auto");
  const auto one = [&](const char* size, int64_t ranks) {
    require(ranks <= 1, key, " works on one rank, or on ranks that share out weights with zero_stage 3, and ", size,
            " is ", ranks, "; set that to 1, or offload.params to none");
  };
  one("data_parallel_replicate_size", c.data_parallel_replicate_size);
  if (c.zero_stage != 3) one("data_parallel_shard_size", c.data_parallel_shard_size);
  one("tensor_parallel_size", c.tensor_parallel_size);
  one("context_parallel_size", c.context_parallel_size);
  one("pipeline_parallel_size", c.pipeline_parallel_size);
  one("expert_parallel_size", c.expert_parallel_size);
  const auto off = [&](bool is_off, const std::string& what, const char* why, const std::string& remedy) {
    require(is_off, key, " does not work with ", what, ": ", why, "; ", remedy, ", or set offload.params to none");
  };
  off(!low_precision(c.precision), cat("precision ", name_of(c.precision)),
      "quantized copies of all weights stay on the GPU", "take bf16");
  off(!needs_whole_gradients(c.optimizer), cat("optimizer ", name_of(c.optimizer)),
      "its update needs the gradients of all units at once", "take adamw, adamw_8bit, lion or sgd");
  for (size_t g = 0; g < c.param_groups.size(); ++g)
    if (const auto& own = c.param_groups[g].optimizer)
      off(!needs_whole_gradients(*own), cat("param_groups[", g, "].optimizer ", name_of(*own)),
          "its update needs the gradients of all units at once", "leave it out");
  off(c.update_clip_threshold == 0, "adam.update_clip_threshold",
      "the updates of all units are computed before they are used", "set it to 0");
  off(c.deterministic_reduction != DeterministicReduction::rank_invariant, "deterministic_reduction rank_invariant",
      "its sums hold the gradients of all units", "set it to fixed_order");
  off(c.prune_sparsity == 0, "pruning.sparsity", "weights to prune are chosen on the GPU", "set it to 0");
  off(c.local_steps == 0, "local_updates.steps", "rounds exchange all weights", "set it to 0");
  off(!c.log_noise_scale, "logging.noise_scale", "it reads the gradients of a micro-batch as a whole",
      "set it to false");
}

}  // namespace

void validate_offload(const Config& c) {
  require(c.host_memory_limit_gib == 0 || c.offload_optimizer != Offload::none ||
              c.offload_activations != Offload::none || c.offload_params != Offload::none,
          "offload.host_memory_limit_gib: ", c.host_memory_limit_gib,
          " has a meaning only with offload.optimizer, offload.activations or offload.params cpu or auto, all are "
          "none; leave it out");
  require_gpu(c, "offload.activations", c.offload_activations, "the inputs of recomputed blocks");
  require(c.offload_activations != Offload::cpu || c.recompute_granularity == RecomputeGranularity::full,
          "offload.activations: cpu moves the inputs of blocks that recompute_granularity full recomputes, but "
          "recompute_granularity is ",
          name_of(c.recompute_granularity), "; set it to full, or offload.activations to auto or none");
  require_gpu(c, "offload.optimizer", c.offload_optimizer, "optimizer states");
  validate_params(c);
}

}  // namespace athanor
