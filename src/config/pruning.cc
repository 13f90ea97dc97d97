// Schedule of pruning: when weights are pruned, and to which sparsity. Sparsity is s (1 - (1 - t)^3), with t from 0 to
// 1 between pruning.start and pruning.end [Zhu & Gupta 2017, "To prune, or not to prune", equation 1].
#include <fnmatch.h>

#include <algorithm>

#include "config/choices.h"
#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

// Steps between pruning.start and the most recent pruning.
int64_t last_pruning(const Config& c, int64_t steps) {
  const int64_t since = std::min(steps, c.prune_end) - c.prune_start;
  return since == c.prune_end - c.prune_start ? since : since / c.prune_interval * c.prune_interval;
}

void validate_srste(const Config& c) {
  require(c.prune_pattern == PrunePattern::two_of_four,
          "pruning.method: srste keeps two of every four weights; set pruning.pattern to 2:4, not ",
          name_of(c.prune_pattern));
  require(c.precision == Precision::fp32 || c.precision == Precision::tf32 || c.precision == Precision::bf16,
          "pruning.method: srste is for precision fp32, tf32 or bf16, not ", name_of(c.precision),
          "; set one of these, or pruning.method to magnitude");
  require(c.model.num_experts == 0, "pruning.method: srste is not for models with experts (model.num_experts ",
          c.model.num_experts, "); set it to magnitude");
  require(c.prune_mask_from.empty(), "pruning.mask_from: ", c.prune_mask_from,
          " says which weights stay zero, and with pruning.method srste none do; leave one of the two out");
  for (const ParamGroupConfig& group : c.param_groups)
    require(!group.frozen, "pruning.method: srste is not for frozen weights, as those of param_groups \"", group.match,
            "\"; set frozen to false, or pruning.method to magnitude");
}

}  // namespace

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& p) { return ::fnmatch(p.c_str(), name.c_str(), 0) == 0; });
}

bool prunes_after(const Config& c, int64_t steps) {
  if (c.prune_sparsity == 0 || !c.prune_mask_from.empty() || c.prune_method == PruneMethod::srste) return false;
  if (steps < c.prune_start || steps > c.prune_end) return false;
  return steps == c.prune_end || (steps - c.prune_start) % c.prune_interval == 0;
}

double sparsity_after(const Config& c, int64_t steps) {
  if (!c.prune_mask_from.empty() || c.prune_method == PruneMethod::srste) return c.prune_sparsity;
  if (c.prune_sparsity == 0 || steps < c.prune_start) return 0;
  if (c.prune_pattern == PrunePattern::two_of_four || c.prune_end == c.prune_start) return c.prune_sparsity;
  const double left = 1 - double(last_pruning(c, steps)) / double(c.prune_end - c.prune_start);
  return c.prune_sparsity * (1 - left * left * left);
}

void validate_pruning(Config& c) {
  if (c.prune_end < 0) c.prune_end = c.prune_start;
  require(c.prune_mask_from.empty() || c.prune_sparsity > 0, "pruning.mask_from: ", c.prune_mask_from,
          " says which weights are pruned, and pruning.sparsity is 0; set it to the share of them");
  if (c.prune_sparsity == 0) return;
  require(c.prune_start <= c.prune_end, "pruning.end: ", c.prune_end, " comes before pruning.start ", c.prune_start,
          "; set it to at least that");
  require(c.prune_end <= c.train_iters, "pruning.end: after step ", c.prune_end, ", and the run has train_iters ",
          c.train_iters, "; end earlier, or train longer");
  require(c.prune_pattern == PrunePattern::unstructured || c.prune_sparsity == 0.5,
          "pruning.sparsity: ", c.prune_sparsity,
          " with pruning.pattern 2:4, which makes half of the weights zero; set it to 0.5");
  if (c.prune_method == PruneMethod::srste) validate_srste(c);
  require(c.lora_rank == 0, "pruning.sparsity: with lora.rank ", c.lora_rank,
          " the weights are frozen and only adapters are trained; set one of the two to 0");
  require(c.local_steps == 0, "pruning.sparsity: workers of local_updates.steps ", c.local_steps,
          " have weights of their own within a round; set one of the two to 0");
  require(c.tensor_parallel_size == 1, "pruning.sparsity: with tensor_parallel_size ", c.tensor_parallel_size,
          " each rank has only a part of a matrix, and choosing weights across ranks is not supported; set "
          "tensor_parallel_size to 1, or pruning.sparsity to 0");
  require(c.pipeline_parallel_size == 1, "pruning.sparsity: not supported with pipeline_parallel_size ",
          c.pipeline_parallel_size, "; set pipeline_parallel_size to 1, or pruning.sparsity to 0");
}

}  // namespace athanor
