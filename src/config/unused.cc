// Finds keys that a configuration sets but that have no effect with its other keys.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

// Collects remarks on keys that differ from their defaults but have no effect.
class Unused {
 public:
  explicit Unused(const Config& c) : config_(c) {}

  void keys(bool have_effect, const char* only_with, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const auto field = std::ranges::find(fields_, std::string_view(name), &Field<Config>::key);
      CHECK(field != fields_.end(), "no option ", name);
      if (!have_effect && to_line(write_field(*field, config_)) != to_line(write_field(*field, defaults_)))
        remark(name, only_with);
    }
  }
  void remark(const char* name, const char* only_with) {
    remarks.push_back(cat(name, " has no effect: it is for ", only_with));
  }
  std::vector<std::string> remarks;

 private:
  const Config& config_;
  const Config defaults_ = {};
  const std::vector<Field<Config>> fields_ = config_fields();
};

// True if some weights have Adam moments: with Adam variants, and with rules that leave some weights to AdamW.
bool keeps_adam_moments(const Config& c) {
  const auto keeps = [](RuleName rule) {
    return rule != RuleName::sgd && rule != RuleName::lion && rule != RuleName::adafactor;
  };
  return keeps(c.optimizer) ||
         std::any_of(c.param_groups.begin(), c.param_groups.end(),
                     [&](const ParamGroupConfig& g) { return g.optimizer && keeps(*g.optimizer); });
}

}  // namespace

bool updates_by(const Config& c, RuleName optimizer) {
  return c.optimizer == optimizer || std::any_of(c.param_groups.begin(), c.param_groups.end(),
                                                 [&](const ParamGroupConfig& g) { return g.optimizer == optimizer; });
}

std::vector<std::string> keys_without_effect(const Config& c) {
  Unused unused(c);
  unused.keys(c.precision == Precision::fp16 && c.loss_scale == 0, "precision fp16 with fp16.loss_scale 0",
              {"fp16.initial_loss_scale", "fp16.loss_scale_window", "fp16.hysteresis", "fp16.min_loss_scale"});
  unused.keys(c.fp8_amax_compute_algo == AmaxComputeAlgo::max, "fp8.amax_compute_algo max", {"fp8.amax_history_len"});

  unused.keys(has_router_bias(c.model.model_type) && c.lora_rank == 0,
              "model_type dots1 or deepseek_v3 without lora.rank", {"moe.router_bias_update_rate"});
  unused.keys(c.model.router_aux_loss_coef > 0, "model.router_aux_loss_coef above 0", {"moe.aux_loss_scope"});
  unused.keys(c.model.num_experts > 0, "models with experts", {"logging.routing_interval"});

  unused.keys(distills(c), "runs with distillation.teacher or distillation.teacher_logits",
              {"distillation.loss", "distillation.temperature", "distillation.ce_weight"});

  const bool prunes = c.prune_sparsity > 0;
  unused.keys(prunes, "pruning.sparsity above 0", {"pruning.pattern", "pruning.method"});
  const bool srste = prunes && c.prune_method == PruneMethod::srste;
  const bool by_steps = prunes && !srste && c.prune_mask_from.empty();
  unused.keys(srste, "pruning.method srste", {"pruning.srste_decay"});
  unused.keys(prunes && !srste, "pruning.sparsity above 0 with pruning.method magnitude", {"pruning.scope"});
  const char* of_steps = "pruning.sparsity above 0 with pruning.method magnitude and without pruning.mask_from";
  unused.keys(by_steps, of_steps, {"pruning.start"});
  if (!by_steps && c.prune_end != c.prune_start)  // validate() sets an unset end to the start
    unused.remark("pruning.end", of_steps);
  unused.keys(prunes, "pruning.sparsity above 0", {"pruning.exclude"});
  unused.keys(by_steps && c.prune_end > c.prune_start, "pruning.end after pruning.start", {"pruning.interval"});

  unused.keys(c.lora_rank > 0, "lora.rank above 0",
              {"lora.alpha", "lora.dropout", "lora.targets", "lora.variant", "lora.adapter"});
  unused.keys(c.base_precision == BasePrecision::nf4, "lora.base_precision nf4", {"lora.base_double_quant"});

  unused.keys(c.deterministic_reduction == DeterministicReduction::rank_invariant,
              "deterministic_reduction rank_invariant", {"logical_shards"});
  unused.keys(c.context_parallel_size > 1, "context_parallel_size above 1", {"context_parallel_method"});
  unused.keys(c.pipeline_parallel_size > 1, "pipeline_parallel_size above 1", {"pipeline.schedule"});

  unused.keys(c.stochastic_depth > 0, "dropout.stochastic_depth above 0", {"dropout.stochastic_depth_mode"});
  unused.keys(c.total_curriculum_step > 0, "curriculum.total_curriculum_step",
              {"curriculum.min_difficulty", "curriculum.difficulty_step"});

  unused.keys(c.fim_rate > 0, "fim.rate above 0", {"fim.spm_rate", "fim.tokens", "fim.level"});
  for (size_t k = 0; k < c.train_data_stages.size(); ++k)
    if (first_sample_of(c, c.train_data_stages[k]) >= samples_after(c, c.train_iters))
      unused.remarks.push_back(cat("train_data_stages[", k, "] has no effect: it begins after ",
                                   c.train_data_stages[k].from_tokens, " tokens, and the run has ",
                                   samples_after(c, c.train_iters) * c.seq_length));

  unused.keys(keeps_adam_moments(c), "optimizers with Adam's moments, or that leave some weights to adamw",
              {"adam.beta1", "adam.beta2", "adam.eps", "adam.exp_avg_sq_dtype"});
  unused.keys(updates_by(c, RuleName::sgd), "optimizer sgd", {"sgd.momentum", "sgd.nesterov"});
  unused.keys(updates_by(c, RuleName::lion), "optimizer lion", {"lion.beta1", "lion.beta2"});
  const bool normuon = updates_by(c, RuleName::normuon);
  unused.keys(normuon || updates_by(c, RuleName::muon), "optimizer muon or normuon",
              {"muon.momentum", "muon.nesterov", "muon.scale", "muon.coefficients"});
  unused.keys(normuon, "optimizer normuon", {"muon.normuon_beta2"});
  unused.keys(updates_by(c, RuleName::adamw_8bit), "optimizer adamw_8bit", {"adam.min_8bit_size"});
  const bool decays = c.weight_decay > 0 || std::any_of(c.param_groups.begin(), c.param_groups.end(),
                                                        [](const ParamGroupConfig& g) { return g.weight_decay > 0; });
  unused.keys(decays, "a weight_decay above 0", {"cautious_weight_decay"});

  unused.keys(compresses(c.optimizer), "optimizer onebit_adam or onebit_lamb", {"adam.freeze_step"});
  unused.keys(c.local_steps > 0, "local_updates.steps above 0",
              {"local_updates.outer_learning_rate", "local_updates.outer_momentum", "local_updates.fragments",
               "local_updates.outer_delay", "local_updates.outer_mixing", "local_updates.outer_delta_dtype"});

  unused.keys(c.tail_average_start < c.train_iters, "runs of more train_iters", {"averaging.tail_start"});

  const bool ends = c.lr_decay_style != DecayStyle::constant && c.lr_decay_style != DecayStyle::exponential;
  if (!ends && c.min_lr > 0 && c.min_lr != kUnsetMinLr * c.learning_rate)  // validate() sets an unset one to this
    unused.remark("schedule.min_lr", "schedule.lr_decay_style other than constant and exponential");
  unused.keys(c.lr_decay_style == DecayStyle::wsd, "schedule.lr_decay_style WSD", {"schedule.lr_wsd_decay_style"});
  unused.keys(c.momentum_warmup_iters > 0 || c.lr_decay_style == DecayStyle::one_cycle,
              "schedule.momentum_warmup_iters or schedule.lr_decay_style 1cycle", {"schedule.low_momentum"});
  unused.keys(c.loss_spike_zscore > 0, "loss_spikes.zscore above 0", {"loss_spikes.max_consecutive"});
  return std::move(unused.remarks);
}

}  // namespace athanor
