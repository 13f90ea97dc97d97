// Requirements of the optimizers onebit_adam and onebit_lamb on the other options.
#include <algorithm>

#include "config/config.h"
#include "config/require.h"

namespace athanor {

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
