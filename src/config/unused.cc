// Finds keys that a configuration sets but that have no effect with its other keys.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace athanor {
namespace {

// Collects remarks on keys that differ from their defaults but have no effect.
class Unused {
 public:
  explicit Unused(const Config& c) : config_(c) {}

  template <class T>
  void key(const char* name, T Config::*member, bool has_effect, const char* only_with) {
    if (!has_effect && config_.*member != defaults_.*member) remark(name, only_with);
  }
  void remark(const char* name, const char* only_with) {
    remarks.push_back(cat(name, " has no effect: it is for ", only_with));
  }
  std::vector<std::string> remarks;

 private:
  const Config& config_;
  const Config defaults_ = {};
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
  const bool dynamic = c.precision == Precision::fp16 && c.loss_scale == 0;
  const char* of_scale = "precision fp16 with fp16.loss_scale 0";
  unused.key("fp16.initial_loss_scale", &Config::initial_loss_scale, dynamic, of_scale);
  unused.key("fp16.loss_scale_window", &Config::loss_scale_window, dynamic, of_scale);
  unused.key("fp16.hysteresis", &Config::hysteresis, dynamic, of_scale);
  unused.key("fp16.min_loss_scale", &Config::min_loss_scale, dynamic, of_scale);

  unused.key("fp8.amax_history_len", &Config::fp8_amax_history_len, c.fp8_amax_compute_algo == AmaxComputeAlgo::max,
             "fp8.amax_compute_algo max");

  unused.key("moe.router_bias_update_rate", &Config::router_bias_update_rate,
             has_router_bias(c.model.model_type) && c.lora_rank == 0, "model_type dots1 without lora.rank");
  unused.key("moe.aux_loss_scope", &Config::aux_loss_scope, c.model.router_aux_loss_coef > 0,
             "model.router_aux_loss_coef above 0");

  unused.key("logging.routing_interval", &Config::log_routing_interval, c.model.num_experts > 0, "models with experts");

  const char* of_teacher = "runs with distillation.teacher or distillation.teacher_logits";
  unused.key("distillation.loss", &Config::distill_loss, distills(c), of_teacher);
  unused.key("distillation.temperature", &Config::distill_temperature, distills(c), of_teacher);
  unused.key("distillation.ce_weight", &Config::distill_ce_weight, distills(c), of_teacher);

  const bool prunes = c.prune_sparsity > 0;
  unused.key("pruning.pattern", &Config::prune_pattern, prunes, "pruning.sparsity above 0");
  unused.key("pruning.method", &Config::prune_method, prunes, "pruning.sparsity above 0");
  const bool srste = prunes && c.prune_method == PruneMethod::srste;
  const bool by_steps = prunes && !srste && c.prune_mask_from.empty();
  unused.key("pruning.srste_decay", &Config::srste_decay, srste, "pruning.method srste");
  unused.key("pruning.scope", &Config::prune_scope, prunes && !srste,
             "pruning.sparsity above 0 with pruning.method magnitude");
  const char* of_steps = "pruning.sparsity above 0 with pruning.method magnitude and without pruning.mask_from";
  unused.key("pruning.start", &Config::prune_start, by_steps, of_steps);
  if (!by_steps && c.prune_end != c.prune_start)  // validate() sets an unset end to the start
    unused.remark("pruning.end", of_steps);
  unused.key("pruning.exclude", &Config::prune_exclude, prunes, "pruning.sparsity above 0");
  unused.key("pruning.interval", &Config::prune_interval, by_steps && c.prune_end > c.prune_start,
             "pruning.end after pruning.start");

  const bool adapts = c.lora_rank > 0;
  unused.key("lora.alpha", &Config::lora_alpha, adapts, "lora.rank above 0");
  unused.key("lora.dropout", &Config::lora_dropout, adapts, "lora.rank above 0");
  unused.key("lora.targets", &Config::lora_targets, adapts, "lora.rank above 0");
  unused.key("lora.variant", &Config::lora_variant, adapts, "lora.rank above 0");
  unused.key("lora.adapter", &Config::adapter, adapts, "lora.rank above 0");
  unused.key("lora.base_double_quant", &Config::base_double_quant, c.base_precision == BasePrecision::nf4,
             "lora.base_precision nf4");

  unused.key("logical_shards", &Config::logical_shards,
             c.deterministic_reduction == DeterministicReduction::rank_invariant,
             "deterministic_reduction rank_invariant");
  unused.key("context_parallel_method", &Config::context_parallel_method, c.context_parallel_size > 1,
             "context_parallel_size above 1");

  unused.key("pipeline.schedule", &Config::pipeline_schedule, c.pipeline_parallel_size > 1,
             "pipeline_parallel_size above 1");

  unused.key("dropout.stochastic_depth_mode", &Config::stochastic_depth_mode, c.stochastic_depth > 0,
             "dropout.stochastic_depth above 0");

  const bool warms_up = c.total_curriculum_step > 0;
  unused.key("curriculum.min_difficulty", &Config::min_difficulty, warms_up, "curriculum.total_curriculum_step");
  unused.key("curriculum.difficulty_step", &Config::difficulty_step, warms_up, "curriculum.total_curriculum_step");

  unused.key("fim.spm_rate", &Config::fim_spm_rate, c.fim_rate > 0, "fim.rate above 0");
  unused.key("fim.tokens", &Config::fim_tokens, c.fim_rate > 0, "fim.rate above 0");
  unused.key("fim.level", &Config::fim_level, c.fim_rate > 0, "fim.rate above 0");
  for (size_t k = 0; k < c.train_data_stages.size(); ++k)
    if (first_sample_of(c, c.train_data_stages[k]) >= samples_after(c, c.train_iters))
      unused.remarks.push_back(cat("train_data_stages[", k, "] has no effect: it begins after ",
                                   c.train_data_stages[k].from_tokens, " tokens, and the run has ",
                                   samples_after(c, c.train_iters) * c.seq_length));

  const bool adam = keeps_adam_moments(c);
  const char* of_adam = "optimizers with Adam's moments, or that leave some weights to adamw";
  unused.key("adam.beta1", &Config::adam_beta1, adam, of_adam);
  unused.key("adam.beta2", &Config::adam_beta2, adam, of_adam);
  unused.key("adam.eps", &Config::adam_eps, adam, of_adam);
  unused.key("adam.exp_avg_sq_dtype", &Config::exp_avg_sq_dtype, adam, of_adam);
  const bool sgd = updates_by(c, RuleName::sgd);
  unused.key("sgd.momentum", &Config::sgd_momentum, sgd, "optimizer sgd");
  unused.key("sgd.nesterov", &Config::sgd_nesterov, sgd, "optimizer sgd");
  const bool lion = updates_by(c, RuleName::lion);
  unused.key("lion.beta1", &Config::lion_beta1, lion, "optimizer lion");
  unused.key("lion.beta2", &Config::lion_beta2, lion, "optimizer lion");
  const bool normuon = updates_by(c, RuleName::normuon);
  const bool muon = normuon || updates_by(c, RuleName::muon);
  unused.key("muon.momentum", &Config::muon_momentum, muon, "optimizer muon or normuon");
  unused.key("muon.nesterov", &Config::muon_nesterov, muon, "optimizer muon or normuon");
  unused.key("muon.scale", &Config::muon_scale, muon, "optimizer muon or normuon");
  unused.key("muon.coefficients", &Config::muon_coefficients, muon, "optimizer muon or normuon");
  unused.key("muon.normuon_beta2", &Config::normuon_beta2, normuon, "optimizer normuon");
  const bool quantized = updates_by(c, RuleName::adamw_8bit);
  unused.key("adam.min_8bit_size", &Config::min_8bit_size, quantized, "optimizer adamw_8bit");
  const bool decays = c.weight_decay > 0 || std::any_of(c.param_groups.begin(), c.param_groups.end(),
                                                        [](const ParamGroupConfig& g) { return g.weight_decay > 0; });
  unused.key("cautious_weight_decay", &Config::cautious_weight_decay, decays, "a weight_decay above 0");

  unused.key("adam.freeze_step", &Config::freeze_step, compresses(c.optimizer), "optimizer onebit_adam or onebit_lamb");
  unused.key("local_updates.outer_learning_rate", &Config::outer_learning_rate, c.local_steps > 0,
             "local_updates.steps above 0");
  unused.key("local_updates.outer_momentum", &Config::outer_momentum, c.local_steps > 0, "local_updates.steps above 0");
  unused.key("local_updates.fragments", &Config::local_fragments, c.local_steps > 0, "local_updates.steps above 0");
  unused.key("local_updates.outer_delay", &Config::outer_delay, c.local_steps > 0, "local_updates.steps above 0");
  unused.key("local_updates.outer_mixing", &Config::outer_mixing, c.local_steps > 0, "local_updates.steps above 0");
  unused.key("local_updates.outer_delta_dtype", &Config::outer_delta_dtype, c.local_steps > 0,
             "local_updates.steps above 0");

  unused.key("averaging.tail_start", &Config::tail_average_start, c.tail_average_start < c.train_iters,
             "runs of more train_iters");

  const bool ends = c.lr_decay_style != DecayStyle::constant && c.lr_decay_style != DecayStyle::exponential;
  if (!ends && c.min_lr > 0 && c.min_lr != kUnsetMinLr * c.learning_rate)  // validate() sets an unset one to this
    unused.remark("schedule.min_lr", "schedule.lr_decay_style other than constant and exponential");
  const bool wsd = c.lr_decay_style == DecayStyle::wsd;
  unused.key("schedule.lr_wsd_decay_style", &Config::lr_wsd_decay_style, wsd, "schedule.lr_decay_style WSD");
  const bool momentum_moves = c.momentum_warmup_iters > 0 || c.lr_decay_style == DecayStyle::one_cycle;
  unused.key("schedule.low_momentum", &Config::low_momentum, momentum_moves,
             "schedule.momentum_warmup_iters or schedule.lr_decay_style 1cycle");
  unused.key("loss_spikes.max_consecutive", &Config::max_consecutive_spikes, c.loss_spike_zscore > 0,
             "loss_spikes.zscore above 0");
  return std::move(unused.remarks);
}

}  // namespace athanor
