// Keys of earlier versions, from before options were in sections. Files, checkpoints and overrides that use them are
// read with a notice. The next version will not read them.
#include <vector>

#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/stored_option.h"

namespace athanor {
namespace {

// Options that moved into a section, where their names lack the prefix.
struct MovedOptions {
  std::string_view section;
  std::vector<std::string_view> former;
  std::string_view prefix = "";
};
const std::vector<MovedOptions>& moved_options() {
  static const std::vector<MovedOptions> kMoved = {
      {"fp8",
       {"amax_compute_algo", "amax_history_len", "margin", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}},
      {"curriculum", {"total_curriculum_step", "min_difficulty", "difficulty_step"}},
      {"fp16", {"loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale"}},
      {"offload", {"host_memory_limit_gib"}},
      {"logging", {"tensorboard", "progress", "peak_tflops"}},
      {"checkpoint", {"async_save", "keep_latest_k", "exit_signal_budget"}},
      {"adam", {"exp_avg_dtype", "exp_avg_sq_dtype", "update_clip_threshold", "min_8bit_size", "freeze_step"}},
      {"muon", {"normuon_beta2"}},
      {"averaging", {"ema_decay", "eval_weights"}},
      {"schedule",
       {"min_lr", "lr_decay_style", "lr_warmup_iters", "lr_warmup_init", "lr_decay_iters", "lr_wsd_decay_style",
        "lr_wsd_decay_iters", "momentum_warmup_iters", "low_momentum", "weight_decay_style", "end_weight_decay"}},
      {"dropout", {"stochastic_depth", "stochastic_depth_mode"}},
      {"loss_spikes", {"rollback", "max_skipped_steps"}},
      {"moe", {"router_bias_update_rate", "expert_capacity_factor", "expert_buffer_factor"}},
      {"local_updates", {"outer_learning_rate", "outer_momentum", "outer_delay", "outer_mixing", "outer_delta_dtype"}},
      {"documents",
       {"packing", "packing_documents", "bos_token_id", "reset_attention_mask", "reset_position_ids", "eod_mask_loss",
        "eod_token_id"}},
      {"distillation", {"teacher", "teacher_logits"}},
      {"pruning", {"srste_decay"}},
      {"lora", {"base_precision", "base_double_quant", "adapter"}},
      {"fp8",
       {"fp8_format", "fp8_power_of_two_scales", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin",
        "fp8_exclude", "fp8_min_size", "fp8_lm_head"},
       "fp8_"},
      {"offload", {"offload_optimizer", "offload_activations", "offload_params"}, "offload_"},
      {"pipeline", {"pipeline_schedule", "pipeline_layout"}, "pipeline_"},
      {"logging",
       {"log_level", "log_noise_scale", "log_quantization_interval", "log_routing_interval", "log_jsonl"},
       "log_"},
      {"adam", {"adam_beta1", "adam_beta2", "adam_eps"}, "adam_"},
      {"sgd", {"sgd_momentum", "sgd_nesterov"}, "sgd_"},
      {"lion", {"lion_beta1", "lion_beta2"}, "lion_"},
      {"muon", {"muon_momentum", "muon_nesterov", "muon_scale", "muon_coefficients"}, "muon_"},
      {"fim", {"fim_rate", "fim_spm_rate", "fim_tokens", "fim_level"}, "fim_"},
      {"distillation", {"distill_loss", "distill_temperature", "distill_ce_weight"}, "distill_"},
      {"pruning",
       {"prune_sparsity", "prune_method", "prune_pattern", "prune_scope", "prune_start", "prune_end", "prune_interval",
        "prune_exclude", "prune_mask_from"},
       "prune_"},
      {"lora", {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_variant"}, "lora_"},
  };
  return kMoved;
}

struct RenamedOption {
  std::string_view former, key;
};
constexpr RenamedOption kRenamed[] = {
    {"choice_data", "multiple_choice_data"},
    {"gemm_search_seconds", "autotune_seconds"},
    {"max_spikes_in_row", "loss_spikes.max_consecutive"},
    {"spike_deviations", "loss_spikes.zscore"},
    {"virtual_pipeline_size", "pipeline.virtual_size"},
    {"distributed_timeout", "timeouts.connect"},
    {"startup_timeout", "timeouts.startup"},
    {"step_timeout", "timeouts.step"},
    {"eval_timeout", "timeouts.eval"},
    {"save_timeout", "timeouts.save"},
    {"heartbeat_timeout", "timeouts.heartbeat"},
    {"save_interval_minutes", "checkpoint.interval_minutes"},
    {"tail_average_start", "averaging.tail_start"},
    {"hidden_dropout", "dropout.hidden"},
    {"loss_spike_zscore", "loss_spikes.zscore"},
    {"max_consecutive_spikes", "loss_spikes.max_consecutive"},
    {"local_steps", "local_updates.steps"},
    {"local_fragments", "local_updates.fragments"},
    {"max_documents_per_sequence", "documents.max_per_sequence"},
};

}  // namespace

std::vector<std::string_view> former_keys(std::string_view key) {
  std::vector<std::string_view> keys;
  for (const MovedOptions& moved : moved_options())
    for (const std::string_view former : moved.former)
      if (section_of(key) == moved.section && name_in_section(key) == former.substr(moved.prefix.size()))
        keys.push_back(former);
  for (const RenamedOption& each : kRenamed)
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
