// Combinations of options that cannot work with experts.
#include <algorithm>
#include <utility>

#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

void validate_router(const Config& c) {
  const ModelConfig& m = c.model;
  if (m.num_experts == 0) return;
  require(
      c.tensor_parallel_size == 1 || c.sequence_parallel, "tensor_parallel_size: ", c.tensor_parallel_size,
      " ranks would compute the same experts (model.num_experts ", m.num_experts,
      ") for the same tokens; set sequence_parallel to true, which gives each rank tokens of its own, or set it to 1");
  require(c.mup_base_width == 0, "mup_base_width: there are no rules for routers, and model.num_experts is ",
          m.num_experts, "; set it to 0");
  require(
      c.deterministic_reduction != DeterministicReduction::rank_invariant ||
          c.aux_loss_scope != AuxLossScope::global_batch || m.router_aux_loss_coef == 0,
      "moe.aux_loss_scope: global_batch counts choices in the micro-batches so far, of which other numbers of ranks "
      "have more or fewer; set it to sequence or micro_batch, or deterministic_reduction to fixed_order");
}

void validate_expert_parallel(const Config& c) {
  const int64_t ranks = c.expert_parallel_size;
  if (ranks == 1) return;
  const std::string key = cat("expert_parallel_size: ", ranks);
  require(c.model.num_experts > 0, key, " ranks share experts, and the model (model_type ", name_of(c.model.model_type),
          ") has none; set it to 1");
  require(c.model.num_experts % ranks == 0, key, " does not divide model.num_experts, ", c.model.num_experts,
          "; take a divisor of it");
  const auto alone = [&](bool is_set, const char* other, const std::string& value, const char* instead) {
    require(!is_set, key, " is not supported with ", other, value.empty() ? "" : " ", value, "; ", instead,
            ", or set expert_parallel_size to 1");
  };
  alone(c.local_steps > 0, "local_updates.steps", cat(c.local_steps), "set it to 0");
  alone(c.deterministic_reduction == DeterministicReduction::rank_invariant, "deterministic_reduction",
        "rank_invariant", "set it to fixed_order");
  alone(!c.teacher.empty(), "distillation.teacher", "",
        "leave it out, or cache its logits (distillation.teacher_logits)");
  alone(c.prune_sparsity > 0, "pruning.sparsity", cat(c.prune_sparsity), "set it to 0");
  alone(c.log_noise_scale, "logging.noise_scale", "true", "set it to false");
  alone(c.update_clip_threshold > 0, "adam.update_clip_threshold", cat(c.update_clip_threshold), "set it to 0");
  // Rules that use tensor norms would sum over different tensors on each rank.
  const auto without_tensor_norms = [&](RuleName rule, const std::string& where) {
    using enum RuleName;
    const bool is = rule == adamw || rule == adam || rule == sgd || rule == lion || rule == schedule_free_adamw ||
                    rule == muon || rule == normuon;
    alone(!is, "optimizer", cat(name_of(rule), where),
          "take adamw, adam, sgd, lion, schedule_free_adamw, muon or normuon");
  };
  without_tensor_norms(c.optimizer, "");
  for (const ParamGroupConfig& group : c.param_groups)
    if (group.optimizer) without_tensor_norms(*group.optimizer, cat(" of param_groups \"", group.match, "\""));
}

void validate_capacity(const Config& c) {
  const double factor = c.expert_capacity_factor;
  if (factor == 0) return;
  const ModelConfig& m = c.model;
  require(m.num_experts > 0, "moe.expert_capacity_factor: ", factor, " limits experts, and the model (model_type ",
          name_of(m.model_type), ") has none; set it to 0");
  const double all = double(m.num_experts) / double(m.num_experts_per_tok);
  require(factor < all, "moe.expert_capacity_factor: with ", factor,
          " an expert takes every token, and none is dropped: ", "model.num_experts / model.num_experts_per_tok is ",
          all, "; set it below that, or to 0");
}

void validate_buffers(const Config& c) {
  const double factor = c.expert_buffer_factor;
  if (factor == 0) return;
  const auto ranks = double(c.expert_parallel_size);
  require(ranks > 1, "moe.expert_buffer_factor: ", factor,
          " limits what ranks with other experts are sent, and expert_parallel_size is 1; set it to 0");
  require(factor >= 1, "moe.expert_buffer_factor: ", factor,
          " is too small even for balanced routing, which needs 1; set it to 1 or more, or to 0");
  require(c.expert_capacity_factor == 0, "moe.expert_buffer_factor: ", factor,
          " limits buffers that moe.expert_capacity_factor, ", c.expert_capacity_factor,
          ", bounds already; set one of them to 0");
  const double own = double(c.model.num_experts) / ranks, chosen = double(c.model.num_experts_per_tok);
  const double all = ranks * std::min(chosen, own) / chosen;
  require(factor < all, "moe.expert_buffer_factor: ", factor, " limits nothing, since buffers fit any routing from ",
          all, " on with expert_parallel_size ", ranks, ", model.num_experts ", c.model.num_experts,
          " and model.num_experts_per_tok ", chosen, "; set it below that, or to 0");
}

}  // namespace

void validate_experts(const Config& c) {
  validate_router(c);
  validate_capacity(c);
  validate_expert_parallel(c);
  validate_buffers(c);
}

}  // namespace athanor
