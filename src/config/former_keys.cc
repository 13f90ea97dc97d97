// Keys of earlier versions, from before options were in sections. Files, checkpoints and overrides that use them are
// read with a notice. The next version will not read them.
#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/stored_option.h"

namespace athanor {
namespace {

struct FormerKey {
  std::string_view former, key;
};
constexpr FormerKey kFormerKeys[] = {
    {"amax_compute_algo", "fp8.amax_compute_algo"},
    {"amax_history_len", "fp8.amax_history_len"},
    {"choice_data", "multiple_choice_data"},
    {"gemm_search_seconds", "autotune_seconds"},
    {"margin", "fp8.margin"},
    {"max_spikes_in_row", "loss_spikes.max_consecutive"},
    {"spike_deviations", "loss_spikes.zscore"},
    {"total_curriculum_step", "curriculum.total_curriculum_step"},
    {"min_difficulty", "curriculum.min_difficulty"},
    {"difficulty_step", "curriculum.difficulty_step"},
    {"fp8_format", "fp8.format"},
    {"fp8_power_of_two_scales", "fp8.power_of_two_scales"},
    {"fp8_amax_history_len", "fp8.amax_history_len"},
    {"fp8_amax_compute_algo", "fp8.amax_compute_algo"},
    {"fp8_margin", "fp8.margin"},
    {"fp8_exclude", "fp8.exclude"},
    {"fp8_min_size", "fp8.min_size"},
    {"fp8_lm_head", "fp8.lm_head"},
    {"num_layers_at_start_in_bf16", "fp8.num_layers_at_start_in_bf16"},
    {"num_layers_at_end_in_bf16", "fp8.num_layers_at_end_in_bf16"},
    {"loss_scale", "fp16.loss_scale"},
    {"initial_loss_scale", "fp16.initial_loss_scale"},
    {"loss_scale_window", "fp16.loss_scale_window"},
    {"hysteresis", "fp16.hysteresis"},
    {"min_loss_scale", "fp16.min_loss_scale"},
    {"offload_optimizer", "offload.optimizer"},
    {"offload_activations", "offload.activations"},
    {"offload_params", "offload.params"},
    {"host_memory_limit_gib", "offload.host_memory_limit_gib"},
    {"pipeline_schedule", "pipeline.schedule"},
    {"virtual_pipeline_size", "pipeline.virtual_size"},
    {"pipeline_layout", "pipeline.layout"},
    {"distributed_timeout", "timeouts.connect"},
    {"startup_timeout", "timeouts.startup"},
    {"step_timeout", "timeouts.step"},
    {"eval_timeout", "timeouts.eval"},
    {"save_timeout", "timeouts.save"},
    {"heartbeat_timeout", "timeouts.heartbeat"},
    {"log_level", "logging.level"},
    {"log_noise_scale", "logging.noise_scale"},
    {"log_quantization_interval", "logging.quantization_interval"},
    {"log_routing_interval", "logging.routing_interval"},
    {"tensorboard", "logging.tensorboard"},
    {"log_jsonl", "logging.jsonl"},
    {"progress", "logging.progress"},
    {"peak_tflops", "logging.peak_tflops"},
    {"save_interval_minutes", "checkpoint.interval_minutes"},
    {"async_save", "checkpoint.async_save"},
    {"keep_latest_k", "checkpoint.keep_latest_k"},
    {"exit_signal_budget", "checkpoint.exit_signal_budget"},
    {"adam_beta1", "adam.beta1"},
    {"adam_beta2", "adam.beta2"},
    {"adam_eps", "adam.eps"},
    {"exp_avg_dtype", "adam.exp_avg_dtype"},
    {"exp_avg_sq_dtype", "adam.exp_avg_sq_dtype"},
    {"update_clip_threshold", "adam.update_clip_threshold"},
    {"min_8bit_size", "adam.min_8bit_size"},
    {"freeze_step", "adam.freeze_step"},
    {"sgd_momentum", "sgd.momentum"},
    {"sgd_nesterov", "sgd.nesterov"},
    {"lion_beta1", "lion.beta1"},
    {"lion_beta2", "lion.beta2"},
    {"muon_momentum", "muon.momentum"},
    {"muon_nesterov", "muon.nesterov"},
    {"muon_scale", "muon.scale"},
    {"muon_coefficients", "muon.coefficients"},
    {"normuon_beta2", "muon.normuon_beta2"},
    {"ema_decay", "averaging.ema_decay"},
    {"tail_average_start", "averaging.tail_start"},
    {"eval_weights", "averaging.eval_weights"},
    {"min_lr", "schedule.min_lr"},
    {"lr_decay_style", "schedule.lr_decay_style"},
    {"lr_warmup_iters", "schedule.lr_warmup_iters"},
    {"lr_warmup_init", "schedule.lr_warmup_init"},
    {"lr_decay_iters", "schedule.lr_decay_iters"},
    {"lr_wsd_decay_style", "schedule.lr_wsd_decay_style"},
    {"lr_wsd_decay_iters", "schedule.lr_wsd_decay_iters"},
    {"momentum_warmup_iters", "schedule.momentum_warmup_iters"},
    {"low_momentum", "schedule.low_momentum"},
    {"weight_decay_style", "schedule.weight_decay_style"},
    {"end_weight_decay", "schedule.end_weight_decay"},
    {"hidden_dropout", "dropout.hidden"},
    {"stochastic_depth", "dropout.stochastic_depth"},
    {"stochastic_depth_mode", "dropout.stochastic_depth_mode"},
    {"loss_spike_zscore", "loss_spikes.zscore"},
    {"max_consecutive_spikes", "loss_spikes.max_consecutive"},
    {"rollback", "loss_spikes.rollback"},
    {"max_skipped_steps", "loss_spikes.max_skipped_steps"},
    {"router_bias_update_rate", "moe.router_bias_update_rate"},
    {"expert_capacity_factor", "moe.expert_capacity_factor"},
    {"expert_buffer_factor", "moe.expert_buffer_factor"},
    {"local_steps", "local_updates.steps"},
    {"local_fragments", "local_updates.fragments"},
    {"outer_learning_rate", "local_updates.outer_learning_rate"},
    {"outer_momentum", "local_updates.outer_momentum"},
    {"outer_delay", "local_updates.outer_delay"},
    {"outer_mixing", "local_updates.outer_mixing"},
    {"outer_delta_dtype", "local_updates.outer_delta_dtype"},
    {"packing", "documents.packing"},
    {"packing_documents", "documents.packing_documents"},
    {"bos_token_id", "documents.bos_token_id"},
    {"reset_attention_mask", "documents.reset_attention_mask"},
    {"reset_position_ids", "documents.reset_position_ids"},
    {"eod_mask_loss", "documents.eod_mask_loss"},
    {"eod_token_id", "documents.eod_token_id"},
    {"max_documents_per_sequence", "documents.max_per_sequence"},
    {"fim_rate", "fim.rate"},
    {"fim_spm_rate", "fim.spm_rate"},
    {"fim_tokens", "fim.tokens"},
    {"fim_level", "fim.level"},
    {"teacher", "distillation.teacher"},
    {"teacher_logits", "distillation.teacher_logits"},
    {"distill_loss", "distillation.loss"},
    {"distill_temperature", "distillation.temperature"},
    {"distill_ce_weight", "distillation.ce_weight"},
    {"prune_sparsity", "pruning.sparsity"},
    {"prune_method", "pruning.method"},
    {"srste_decay", "pruning.srste_decay"},
    {"prune_pattern", "pruning.pattern"},
    {"prune_scope", "pruning.scope"},
    {"prune_start", "pruning.start"},
    {"prune_end", "pruning.end"},
    {"prune_interval", "pruning.interval"},
    {"prune_exclude", "pruning.exclude"},
    {"prune_mask_from", "pruning.mask_from"},
    {"lora_rank", "lora.rank"},
    {"lora_alpha", "lora.alpha"},
    {"lora_dropout", "lora.dropout"},
    {"lora_targets", "lora.targets"},
    {"lora_variant", "lora.variant"},
    {"base_precision", "lora.base_precision"},
    {"base_double_quant", "lora.base_double_quant"},
    {"adapter", "lora.adapter"},
};

}  // namespace

std::vector<std::string_view> former_keys(std::string_view key) {
  std::vector<std::string_view> keys;
  for (const FormerKey& each : kFormerKeys)
    if (each.key == key) keys.push_back(each.former);
  return keys;
}

const Json* stored_option(const Json& resolved, std::string_view key) {
  const Json* holder = holder_of(resolved, key);
  const Json* value = holder ? holder->find(name_in_section(key)) : nullptr;
  for (const std::string_view former : former_keys(key))
    if (!value) value = resolved.find(former);
  return value;
}

}  // namespace athanor
