// Refuses combinations of options that cannot work, and fills options derived from others.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/int.h"
#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

constexpr double kMaxStepTokens = 1099511627776.0;       // 2^40: maximum tokens of one step
constexpr double kMaxRunTokens = 4611686018427387904.0;  // 2^62: token counters never overflow

void validate_ramp(const Config& c) {
  const BatchRamp& ramp = c.rampup_batch_size;
  if (ramp.start == 0) return;
  require(ramp.start < c.global_batch_size, "rampup_batch_size: the start of ", ramp.start,
          " sequences is not below global_batch_size ", c.global_batch_size);
  require((c.global_batch_size - ramp.start) % ramp.increment == 0, "rampup_batch_size: increments of ", ramp.increment,
          " do not lead from ", ramp.start, " to global_batch_size ", c.global_batch_size);
  require(c.micro_batch_size == 0 || common_batch_size(c) % c.micro_batch_size == 0, "rampup_batch_size: start ",
          ramp.start, " and increment ", ramp.increment, " are not multiples of micro_batch_size ", c.micro_batch_size);
  require(c.gradient_accumulation_steps == 0,
          "gradient_accumulation_steps: changes during rampup_batch_size; leave it out");
}

void validate_curriculum(const Config& c) {
  if (c.total_curriculum_step == 0) return;
  require(c.min_difficulty < c.seq_length, "curriculum.min_difficulty: ", c.min_difficulty,
          " tokens are not fewer than seq_length ", c.seq_length, "; set it to less");
  for (const auto& [key, length] :
       {std::pair{"curriculum.min_difficulty", c.min_difficulty}, {"seq_length", c.seq_length}})
    require(length % c.difficulty_step == 0, "curriculum.difficulty_step: ", key, " ", length, " is not a multiple of ",
            c.difficulty_step);
}

void validate_ahead(const Config& c) {
  const auto& ahead = c.multi_token_prediction;
  if (ahead.empty()) return;
  require(ahead.size() <= size_t{kMaxTokensAhead}, "multi_token_prediction: ", ahead.size(),
          " tokens further ahead; expected at most ", kMaxTokensAhead);
  require(int64_t(ahead.size()) < c.seq_length, "multi_token_prediction: ", ahead.size(),
          " tokens further ahead reach beyond seq_length ", c.seq_length, "; make one of them fit the other");
  require(!distills(c), "multi_token_prediction: not supported with ",
          c.teacher.empty() ? "distillation.teacher_logits " : "distillation.teacher ",
          c.teacher.empty() ? c.teacher_logits : c.teacher, ", which is compared at the next token; leave one out");
  for (size_t i = 0; i < ahead.size(); ++i)
    require(ahead[i].decay_end == 0 ? ahead[i].decay_start == 0 : ahead[i].decay_start < ahead[i].decay_end,
            "multi_token_prediction[", i, "]: decay_start ", ahead[i].decay_start, " is not before decay_end ",
            ahead[i].decay_end, "; set both, or neither");
}

void validate_windows(const Config& c) {
  const std::vector<WindowStage>& stages = c.sliding_window_schedule;
  if (stages.empty()) return;
  const auto& last = stages.back();
  require(
      c.model.sliding_window > 0,
      "sliding_window_schedule: no layer has a window, since model.sliding_window is 0; set it to the last tokens, ",
      last.tokens, ", or leave the schedule out");
  require(stages.front().from_step == 0, "sliding_window_schedule: begins with step ", stages.front().from_step,
          ", expected 0, the first step");
  for (size_t i = 1; i < stages.size(); ++i)
    require(stages[i - 1].from_step < stages[i].from_step, "sliding_window_schedule[", i, "]: step ",
            stages[i].from_step, " does not follow step ", stages[i - 1].from_step, "; list steps in ascending order");
  require(last.tokens == c.model.sliding_window, "sliding_window_schedule: ends with ", last.tokens,
          " tokens, but the saved model has model.sliding_window ", c.model.sliding_window, "; make them the same");
  require(c.context_parallel_size == 1, "sliding_window_schedule: not supported with context_parallel_size ",
          c.context_parallel_size, ", whose ranks exchange keys by one window; set it to 1");
  require(c.attention != CudaAttention::cudnn,
          "sliding_window_schedule: not supported with attention cudnn, whose plans are made for one window; set "
          "attention to auto or builtin");
}

void validate_batch(Config& c) {
  const int64_t longest = c.model.max_position_embeddings;
  if (c.seq_length == 0) c.seq_length = longest;
  require(c.seq_length > 0 && c.seq_length <= longest, "seq_length: ", c.seq_length,
          " is more than model.max_position_embeddings ", longest, "; shorten the one or raise the other");
  require(c.global_batch_size > 0, "global_batch_size: expected at least 1, got ", c.global_batch_size);
  const int64_t accumulation = c.gradient_accumulation_steps;
  if (c.micro_batch_size > 0) {
    require(c.global_batch_size % c.micro_batch_size == 0, "global_batch_size: ", c.global_batch_size,
            " is not a multiple of micro_batch_size ", c.micro_batch_size);
  }
  validate_ramp(c);
  validate_curriculum(c);
  validate_windows(c);
  validate_ahead(c);
  if (accumulation > 0) {
    // The number of devices must divide the quotient; the trainer checks that.
    const double once = double(std::max<int64_t>(c.micro_batch_size, 1)) * double(accumulation);
    require(once <= double(c.global_batch_size) && c.global_batch_size % int64_t(once) == 0,
            "gradient_accumulation_steps: ", accumulation, " times micro_batch_size ",
            c.micro_batch_size > 0 ? cat(c.micro_batch_size) : "auto", " does not divide global_batch_size ",
            c.global_batch_size, "; leave it out, it follows from the batch sizes");
  }
  require(double(c.global_batch_size) * double(c.seq_length) <= kMaxStepTokens,
          "global_batch_size: ", c.global_batch_size, " sequences of ", c.seq_length,
          " tokens are too many for one step");
}

void resolve_length(Config& c) {
  const int64_t step_tokens = c.global_batch_size * c.seq_length;
  if (c.train_tokens > 0) {
    require(c.train_iters == 0, "train_tokens: ", c.train_tokens, " and train_iters ", c.train_iters,
            " are both given; keep one of them");
    c.train_iters = steps_for(c, div_ceil(c.train_tokens, c.seq_length));
    c.train_tokens = 0;
  }
  require(c.train_iters > 0, "train_iters is required (or train_tokens): the length of the run");
  require(double(c.train_iters) * double(step_tokens) <= kMaxRunTokens, "train_iters: ", c.train_iters, " steps of ",
          step_tokens, " tokens overflow the token counter");
}

void resolve_schedule(Config& c) {
  require(c.learning_rate > 0.0, "learning_rate: expected more than 0, got ", c.learning_rate);
  const bool cycle = c.lr_decay_style == DecayStyle::one_cycle;
  constexpr double kCycleStart = 25, kCycleEnd = 1e4;  // torch's OneCycleLR: div_factor, final_div_factor
  if (c.lr_warmup_init < 0.0) c.lr_warmup_init = cycle ? c.learning_rate / kCycleStart : 0.0;
  require(c.lr_warmup_init <= c.learning_rate, "schedule.lr_warmup_init: ", c.lr_warmup_init,
          " is more than learning_rate ", c.learning_rate);
  if (c.min_lr < 0.0) c.min_lr = cycle ? c.lr_warmup_init / kCycleEnd : kUnsetMinLr * c.learning_rate;
  require(c.min_lr <= c.learning_rate, "schedule.min_lr: ", c.min_lr, " is more than learning_rate ", c.learning_rate);
  if (c.lr_decay_iters == 0) c.lr_decay_iters = c.train_iters;
  if (cycle && c.lr_warmup_iters == 0)
    c.lr_warmup_iters = div_ceil<int64_t>(3 * c.lr_decay_iters, 10);  // OneCycleLR's pct_start
  require(c.lr_warmup_iters <= c.lr_decay_iters, "schedule.lr_warmup_iters: ", c.lr_warmup_iters,
          " are more than the schedule.lr_decay_iters ", c.lr_decay_iters,
          " (by default train_iters) that contain them");
  if (c.lr_decay_style == DecayStyle::exponential) {
    require(c.lr_warmup_init > 0.0,
            "schedule.lr_warmup_init: expected more than 0 for schedule.lr_decay_style exponential, got 0");
    require(c.lr_warmup_iters == 0, "schedule.lr_warmup_iters: ", c.lr_warmup_iters,
            " has no meaning with schedule.lr_decay_style exponential");
  }
  const int64_t after_warmup = c.lr_decay_iters - c.lr_warmup_iters;
  if (c.lr_decay_style != DecayStyle::wsd) {
    require(c.lr_wsd_decay_iters == 0, "schedule.lr_wsd_decay_iters: ", c.lr_wsd_decay_iters,
            " has a meaning only with schedule.lr_decay_style WSD, not ", name_of(c.lr_decay_style));
    return;
  }
  constexpr int64_t kLeastDecay = 4;  // minimum steps: the first step of a decay still has the full learning rate
  if (c.lr_wsd_decay_iters == 0)
    c.lr_wsd_decay_iters = std::min(std::max(kLeastDecay, c.lr_decay_iters / 10), after_warmup);
  require(c.lr_wsd_decay_iters <= after_warmup, "schedule.lr_wsd_decay_iters: ", c.lr_wsd_decay_iters,
          " steps do not fit into the ", after_warmup, " between the end of the warm-up and schedule.lr_decay_iters ",
          c.lr_decay_iters);
}

void resolve_mup(Config& c) {
  c.model.mup_width = 1;
  if (c.mup_base_width == 0) return;
  c.model.mup_width = double(c.model.hidden_size) / double(c.mup_base_width);
  const auto has_rules = [&](RuleName o, const std::string& where) {
    require(o == RuleName::muon || o == RuleName::adamw || o == RuleName::lion,
            "mup_base_width: muP has rules only for the optimizers adamw, lion and muon, got ", name_of(o), where,
            "; use one of them, or set mup_base_width to 0");
    require(o != RuleName::muon || c.muon_scale == MuonScale::spectral, "mup_base_width: muon.scale ",
            name_of(c.muon_scale), " makes steps that depend on the width", where, "; expected spectral");
  };
  has_rules(c.optimizer, "");
  for (size_t g = 0; g < c.param_groups.size(); ++g)
    if (const ParamGroupConfig& group = c.param_groups[g]; group.optimizer && !group.frozen)
      has_rules(*group.optimizer, cat(" of param_groups[", g, "]"));
}

// A list equal to the default of another optimizer, as in a new Config, was not given by the user.
void resolve_groups(Config& c) {
  std::vector<ParamGroupConfig>& groups = c.param_groups;
  const std::vector<ParamGroupConfig> last = default_param_groups({.optimizer = c.optimizer,
                                                                   .model = c.model.model_type,
                                                                   .mup_width = c.model.mup_width,
                                                                   .weight_decay = c.weight_decay});
  if (groups == default_param_groups({})) groups.clear();
  if (groups.size() >= last.size() && std::equal(last.rbegin(), last.rend(), groups.rbegin())) return;
  groups.insert(groups.end(), last.begin(), last.end());
}

// Coupled decay is part of the gradient, so the update's sign is not known before the decay.
void validate_cautious(const Config& c) {
  if (!c.cautious_weight_decay) return;
  require(c.optimizer != RuleName::adam && c.optimizer != RuleName::sgd, "cautious_weight_decay: optimizer ",
          name_of(c.optimizer), " adds the decay to the gradient, expected one with decoupled decay, such as adamw");
  for (size_t g = 0; g < c.param_groups.size(); ++g) {
    const RuleName rule = c.param_groups[g].optimizer.value_or(c.optimizer);
    require(rule != RuleName::adam && rule != RuleName::sgd, "cautious_weight_decay: optimizer ", name_of(rule),
            " of param_groups[", g,
            "] adds the decay to the gradient, expected one with decoupled decay, such as adamw");
  }
}

void validate_qk_clip(const Config& c) {
  if (c.qk_clip_threshold == 0.0) return;
  require(!c.model.qk_norm, "qk_clip_threshold: ", c.qk_clip_threshold,
          " has no effect with model.qk_norm, which normalizes queries and keys after they are scaled; set it to 0");
  require(c.model.attn_logit_softcapping == 0, "qk_clip_threshold: ", c.qk_clip_threshold,
          ", but model.attn_logit_softcapping ", c.model.attn_logit_softcapping,
          " bounds attention scores already; set one of them to 0");
  require(!has_latent_attention(c.model.model_type), "qk_clip_threshold: ", c.qk_clip_threshold,
          " is not supported with model.model_type ", name_of(c.model.model_type),
          ", whose heads share key channels; set it to 0");
  require(c.attention != CudaAttention::cudnn, "qk_clip_threshold: ", c.qk_clip_threshold,
          " needs the largest scores, which the kernels of attention cudnn do not give; set attention to auto or "
          "builtin, or "
          "qk_clip_threshold to 0");
}

void validate_stochastic_depth(const Config& c) {
  require(c.hidden_dropout == 0 || !has_experts(c.model.model_type), "dropout.hidden: ", c.hidden_dropout,
          " is not supported with experts (model.model_type ", name_of(c.model.model_type), "); set it to 0");
  require(c.hidden_dropout == 0 || c.context_parallel_size == 1, "dropout.hidden: ", c.hidden_dropout,
          " is not supported with context_parallel_size ", c.context_parallel_size,
          ", whose ranks have rows in another order; set one to 1, or the other to 0");
  require(c.stochastic_depth == 0 || !has_experts(c.model.model_type), "dropout.stochastic_depth: ", c.stochastic_depth,
          " is not supported with experts (model.model_type ", name_of(c.model.model_type), "); set it to 0");
}

void validate_update_clip(const Config& c) {
  require(c.update_clip_threshold == 0.0 || updates_by(c, RuleName::adamw),
          "adam.update_clip_threshold: ", c.update_clip_threshold,
          " limits updates of adamw, which updates no weights with optimizer ", name_of(c.optimizer),
          "; expected 0, or optimizer adamw for the run or a group");
}

void validate_schedule_free(const Config& c) {
  if (!updates_by(c, RuleName::schedule_free_adamw)) return;
  const bool decays = c.lr_decay_style != DecayStyle::constant && c.lr_decay_style != DecayStyle::exponential;
  require(!decays, "schedule.lr_decay_style: ", name_of(c.lr_decay_style),
          " lowers the learning rate; optimizer schedule_free_adamw averages the weights instead; set it to constant, "
          "with schedule.lr_warmup_iters");
  require(c.momentum_warmup_iters == 0, "schedule.momentum_warmup_iters: ", c.momentum_warmup_iters,
          " steps change adam.beta1, which optimizer schedule_free_adamw needs constant; set it to 0");
  const char* average = c.ema_decay > 0.0 ? "averaging.ema_decay" : "averaging.tail_start";
  require(c.ema_decay == 0.0 && c.tail_average_start == 0, average,
          ": asks for a second average: optimizer schedule_free_adamw keeps one, which evaluations read; set it to 0");
}

void resolve_other_courses(Config& c) {
  const bool cycle = c.lr_decay_style == DecayStyle::one_cycle;
  require(!cycle || c.momentum_warmup_iters == 0, "schedule.momentum_warmup_iters: ", c.momentum_warmup_iters,
          " has no meaning with schedule.lr_decay_style 1cycle, which sets the momentum itself");
  require((!cycle && c.momentum_warmup_iters == 0) || c.low_momentum <= c.adam_beta1,
          "schedule.low_momentum: ", c.low_momentum, " is more than adam.beta1 ", c.adam_beta1);
  if (c.end_weight_decay < 0.0) c.end_weight_decay = c.weight_decay;
  if (c.weight_decay_style == WeightDecayStyle::constant) {
    require(c.end_weight_decay == c.weight_decay, "schedule.end_weight_decay: ", c.end_weight_decay,
            " has a meaning only with schedule.weight_decay_style linear or cosine");
    return;
  }
  require(
      c.weight_decay > 0.0,
      "weight_decay: 0 cannot change by schedule.weight_decay_style, which multiplies it; start with a small number");
}

// [NVIDIA 2025, NVFP4, sec. 4.1]: about 15 % of the linear layers in 16 bits, at the end, keep training stable.
int64_t last_blocks_in_bf16(const Config& c) {
  if (c.precision != Precision::nvfp4) return 0;
  const int64_t blocks = c.model.num_hidden_layers;
  return std::min(blocks - 1, div_ceil<int64_t>(15 * blocks, 100));
}

void validate_precision(Config& c) {
  require(c.loss_scale == 0.0 || c.precision == Precision::fp16, "fp16.loss_scale: ", c.loss_scale,
          " has a meaning only with precision fp16, not ", name_of(c.precision));
  require(c.min_loss_scale <= c.initial_loss_scale, "fp16.min_loss_scale: ", c.min_loss_scale,
          " is more than fp16.initial_loss_scale ", c.initial_loss_scale);
  require(c.master_weights == MasterWeights::fp32 || c.precision == Precision::bf16 || low_precision(c.precision),
          "master_weights: ", name_of(c.master_weights),
          " needs precision bf16 or a low precision such as fp8_tensorwise, got ", name_of(c.precision));
  const auto only_with_low_precision = [&](bool is_default, const char* key) {
    require(is_default || low_precision(c.precision), key,
            ": has a meaning only with a precision of 8 bits (fp8_tensorwise, ..., mxfp8) or nvfp4, not ",
            name_of(c.precision));
  };
  if (c.num_layers_at_end_in_bf16 < 0) c.num_layers_at_end_in_bf16 = last_blocks_in_bf16(c);
  const bool four_bits = c.precision == Precision::nvfp4;
  require(!four_bits || c.fp8_format == GradientFormat::automatic, "fp8.format: ", name_of(c.fp8_format),
          " has no meaning with precision nvfp4, whose values are all E2M1; remove it");
  require(!four_bits || !c.fp8_power_of_two_scales,
          "fp8.power_of_two_scales: has no meaning with precision nvfp4, whose scales are E4M3; remove it");
  only_with_low_precision(c.fp8_format == GradientFormat::automatic, "fp8.format");
  only_with_low_precision(!c.fp8_power_of_two_scales, "fp8.power_of_two_scales");
  const auto only_delayed = [&](bool is_default, const char* key) {
    require(is_default || c.precision == Precision::fp8_delayed, key,
            ": has a meaning only with precision fp8_delayed, not ", name_of(c.precision));
  };
  only_delayed(c.fp8_amax_history_len == 1024, "fp8.amax_history_len");
  only_delayed(c.fp8_amax_compute_algo == AmaxComputeAlgo::max, "fp8.amax_compute_algo");
  only_delayed(c.fp8_margin == 0, "fp8.margin");
  only_with_low_precision(c.fp8_exclude.empty(), "fp8.exclude");
  only_with_low_precision(c.fp8_min_size == 0, "fp8.min_size");
  only_with_low_precision(!c.fp8_lm_head, "fp8.lm_head");
  only_with_low_precision(c.num_layers_at_start_in_bf16 == 0, "fp8.num_layers_at_start_in_bf16");
  only_with_low_precision(c.num_layers_at_end_in_bf16 == 0, "fp8.num_layers_at_end_in_bf16");
  only_with_low_precision(c.log_quantization_interval == 0, "logging.quantization_interval");
}

// True for rules that overwrite the gradient with the update: with a bf16 gradient, the update would be rounded, too.
bool steps_in_gradient(RuleName o) { return o == RuleName::lamb || o == RuleName::adafactor || compresses(o); }

void validate_gradients(const Config& c) {
  if (c.grad_dtype == SumDtype::fp32) return;
  require(c.precision == Precision::bf16 || low_precision(c.precision),
          "grad_dtype: bf16 needs GEMMs of bf16, which precision ", name_of(c.precision),
          " does not have; set precision to bf16 or a low precision such as fp8_tensorwise, or grad_dtype to fp32");
  require(c.deterministic_reduction != DeterministicReduction::rank_invariant,
          "grad_dtype: bf16 with deterministic_reduction rank_invariant would round every sum of two logical shards of "
          "the batch to bf16; set grad_dtype to fp32, or deterministic_reduction to the default");
  const auto refuse = [&](RuleName o, const std::string& where) {
    require(!steps_in_gradient(o), "grad_dtype: optimizer ", name_of(o), where,
            " computes its update in the gradient's buffer, where bf16 would round the update; set grad_dtype to fp32, "
            "or take optimizer adamw");
  };
  refuse(c.optimizer, "");
  for (size_t g = 0; g < c.param_groups.size(); ++g)
    if (c.param_groups[g].optimizer) refuse(*c.param_groups[g].optimizer, cat(" of param_groups[", g, "]"));
  require(c.update_clip_threshold == 0.0, "grad_dtype: adam.update_clip_threshold ", c.update_clip_threshold,
          " computes the update in the gradient's buffer, where bf16 would round the update; set grad_dtype to fp32, "
          "or adam.update_clip_threshold to 0");
}

constexpr int64_t kLeastReserveMib = 256;  // value of runtime_reserve_mib auto on a CPU

void validate_memory(const Config& c) {
  require(c.recompute_granularity == RecomputeGranularity::full || c.recompute_num_layers == 1,
          "recompute_num_layers: ", c.recompute_num_layers, " has a meaning only with recompute_granularity full, not ",
          name_of(c.recompute_granularity));
  require(c.recompute_num_layers <= c.model.num_hidden_layers, "recompute_num_layers: ", c.recompute_num_layers,
          " is more than model.num_hidden_layers ", c.model.num_hidden_layers, "; set it to at most that");
  const double limit_mib = c.memory_limit_gib * 1024.0;
  const int64_t reserve = c.runtime_reserve_mib >= 0 ? c.runtime_reserve_mib : kLeastReserveMib;
  require(limit_mib == 0.0 || limit_mib > double(reserve), "runtime_reserve_mib: ", reserve,
          " MiB leave nothing of memory_limit_gib ", c.memory_limit_gib, "; lower the one or raise the other");
  validate_offload(c);
}

// Refuses options that local updates cannot be combined with.
void validate_workers(const Config& c) {
  if (c.local_steps == 0) return;
  require(c.local_fragments <= c.local_steps, "local_updates.fragments: ", c.local_fragments,
          " fragments are more than the ", c.local_steps, " steps of local_updates.steps; take at most as many");
  require(c.outer_delay < c.local_steps, "local_updates.outer_delay: expected fewer than local_updates.steps ",
          c.local_steps, ", got ", c.outer_delay);
  const int64_t workers = c.data_parallel_replicate_size;
  if (c.outer_delta_dtype == DeltaDtype::fp4) {
    require(workers > 1,
            "local_updates.outer_delta_dtype: fp4 compresses what workers send each other, and "
            "data_parallel_replicate_size 1 is one worker; set it to fp32, or have several");
    require(workers < 15, "local_updates.outer_delta_dtype: each of data_parallel_replicate_size ", workers,
            " workers sends fp4 to all others, from 15 on more than in fp32; set it to fp32, or have fewer");
  }
  const auto averages = [&](bool set, const char* key) {
    require(!set, key,
            ": evaluations would read a second average of the weights in addition to that of local_updates.steps ",
            c.local_steps, "; set it to 0, or local_updates.steps to 0");
  };
  averages(c.ema_decay > 0.0, "averaging.ema_decay");
  averages(c.tail_average_start > 0, "averaging.tail_start");
  require(!updates_by(c, RuleName::schedule_free_adamw),
          "optimizer: schedule_free_adamw averages the weights itself, and local_updates.steps ", c.local_steps,
          " replaces them at the end of a round; take adamw, or local_updates.steps 0");
  require(workers == 1 || !c.log_noise_scale, "logging.noise_scale: ", workers,
          " copies with local_updates.steps take separate steps, without a common gradient; set it to false, or "
          "data_parallel_replicate_size to 1");
  require(workers == 1 || c.deterministic_reduction != DeterministicReduction::rank_invariant,
          "deterministic_reduction: rank_invariant needs one sum over all ranks, and with local_updates.steps ",
          workers, " copies sum separately; set it to fixed_order, or data_parallel_replicate_size to 1");
}

void validate_ranks(const Config& c) {
  validate_workers(c);
  validate_one_bit(c);
  validate_packed(c);
  validate_experts(c);
  validate_tensor_parallel(c);
  validate_context_parallel(c);
  require(c.zero_stage > 0 || c.data_parallel_shard_size <= 1, "data_parallel_shard_size: ", c.data_parallel_shard_size,
          " has a meaning only with zero_stage 1 to 3, got zero_stage 0; leave it out, or set zero_stage");
  require(c.data_parallel_replicate_size == 1 || c.zero_stage > 0 || copies_are_workers(c),
          "data_parallel_replicate_size: ", c.data_parallel_replicate_size,
          " has a meaning only with zero_stage 1 to 3, local_updates.steps or optimizer onebit_adam or onebit_lamb; "
          "with 0 every rank is a copy");
  if (c.deterministic_reduction != DeterministicReduction::rank_invariant) return;
  const int64_t leaves = c.logical_shards;
  require(std::has_single_bit(uint64_t(leaves)), "logical_shards: ", leaves, " is not a power of two; set it to one");
  require(
      c.micro_batch_size > 0,
      "deterministic_reduction: rank_invariant needs a micro_batch_size: one chosen by memory may differ between runs");
  require(c.global_batch_size % (c.micro_batch_size * leaves) == 0, "logical_shards: global_batch_size ",
          c.global_batch_size, " is not a multiple of ", leaves, " times micro_batch_size ", c.micro_batch_size);
  require(common_batch_size(c) % (c.micro_batch_size * leaves) == 0, "logical_shards: start ",
          c.rampup_batch_size.start, " and increment ", c.rampup_batch_size.increment,
          " of rampup_batch_size are not multiples of ", leaves, " times micro_batch_size ", c.micro_batch_size);
}

// Refuses options that the options of model_type athanor cannot be combined with.
void validate_block(const Config& c) {
  const ModelConfig& m = c.model;
  require(m.x0_lambdas.empty() || c.pipeline_parallel_size == 1, "model.x0_lambdas: with the ",
          c.pipeline_parallel_size,
          " stages of pipeline_parallel_size the embedding is on the first stage alone; set pipeline_parallel_size to "
          "1, or leave x0_lambdas out");
  require(m.skip_from.empty() || c.pipeline_parallel_size == 1, "model.skip_from: with the ", c.pipeline_parallel_size,
          " stages of pipeline_parallel_size blocks are on other stages than those that read them; set "
          "pipeline_parallel_size to 1, or leave skip_from out");
  const auto on_one_stage = [&](bool used, const char* key, const char* what) {
    require(!used || c.pipeline_parallel_size == 1, key, ": with the ", c.pipeline_parallel_size,
            " stages of pipeline_parallel_size ", what,
            " on the first stage alone; set pipeline_parallel_size to 1, or leave it out");
  };
  on_one_stage(!m.value_embeddings.empty(), "model.value_embeddings", "the rows of the tables are");
  on_one_stage(!m.value_residual_lambdas.empty(), "model.value_residual_lambdas", "the first layer's values are");
  require(m.value_embeddings.empty() || c.tensor_parallel_size <= m.num_key_value_heads,
          "model.value_embeddings: the tables are cut by heads, and the ", c.tensor_parallel_size,
          " ranks of tensor_parallel_size are more than the ", m.num_key_value_heads,
          " of num_key_value_heads; set tensor_parallel_size to at most that, or leave value_embeddings out");
  const bool mixed = std::ranges::adjacent_find(m.layer_types, std::not_equal_to{}) != m.layer_types.end();
  require(!mixed || c.context_parallel_size == 1, "model.layer_types: with the ", c.context_parallel_size,
          " ranks of context_parallel_size all layers need one window; set context_parallel_size to 1, or make the "
          "layer_types alike");
  require(m.sparse_block_size == 0 || c.context_parallel_size == 1, "model.layer_types: sparse_attention with the ",
          c.context_parallel_size,
          " ranks of context_parallel_size, which exchange keys by windows alone, is not supported; set "
          "context_parallel_size to 1");
  require(m.initializer_ranges.empty() || c.mup_base_width == 0, "mup_base_width: ", c.mup_base_width,
          " sets initial weights by the width, model.initializer_ranges by name; leave one of them out");
  require(m.norm_elementwise_affine || c.mup_base_width == 0, "mup_base_width: ", c.mup_base_width,
          " scales the gain of the last norm, which model.norm_elementwise_affine false removes; set that to true, or "
          "mup_base_width to 0");
  require(
      c.mup_base_width == 0 || (m.attention_gate_channels == 0 && m.value_gate_channels == 0 && m.smear_channels == 0),
      "mup_base_width: ", c.mup_base_width, " has no rules for model.attention_gate_channels ",
      m.attention_gate_channels, ", model.value_gate_channels ", m.value_gate_channels, " and model.smear_channels ",
      m.smear_channels, ", gates that read as many inputs at every width; set these to 0, or mup_base_width to 0");
}

void validate_run(const Config& c) {
  require(
      c.eval_weights == EvalWeights::current || c.ema_decay > 0.0 || c.tail_average_start > 0,
      "averaging.eval_weights: ", name_of(c.eval_weights),
      " needs an averaging.ema_decay above 0, or an averaging.tail_start: without them no average of the weights is "
      "kept");
  require(c.ema_decay == 0.0 || c.tail_average_start == 0, "averaging.tail_start: ", c.tail_average_start,
          " and averaging.ema_decay ", c.ema_decay,
          " are two averages of the weights, and a run keeps one; set one of them to 0");
  require(c.stop_at_loss == 0.0 || (!c.valid_data.empty() && c.eval_interval > 0), "stop_at_loss: ", c.stop_at_loss,
          " needs valid_data and an eval_interval above 0; give both, or set it to 0");
  require(c.memory_interval == 0 || !c.save.empty(),
          "checkpoint.memory_interval: needs a `save` folder, whose path names the folder in memory");
  require(c.memory_folder.empty() || c.memory_interval > 0,
          "checkpoint.memory_folder: has no effect without checkpoint.memory_interval; set that, or remove it");
  require(!c.rollback || !c.save.empty(), "loss_spikes.rollback: needs a `save` folder to find a checkpoint in");
  require(!c.load.empty(), "load: expected auto, none or a checkpoint folder, got an empty string");
  require(c.load_step < 0 || c.load != "none", "load_step: ", c.load_step, " has no meaning with load none");
}

}  // namespace

std::vector<ParamGroupConfig> default_param_groups(const GroupDefaults& of) {
  const bool muon = of.optimizer == RuleName::muon || of.optimizer == RuleName::normuon;
  const bool own_vectors = !muon && of.optimizer != RuleName::lamb;
  const auto rest = own_vectors ? std::nullopt : std::optional(RuleName::adamw);
  std::vector<ParamGroupConfig> groups;
  if (of.mup_width != 1) {
    groups.push_back({.match = of.model == ModelType::gpt2 ? "transformer.ln_f.*" : "model.norm.*",
                      .optimizer = rest,
                      .lr_factor = 1 / of.mup_width,
                      .weight_decay = 0.0});
    if (!muon)  // keeps lr x weight_decay, the decay of the weights per step, constant
      groups.push_back(
          {.role = Role::matrix, .lr_factor = 1 / of.mup_width, .weight_decay = of.weight_decay * of.mup_width});
  }
  if (muon) groups.push_back({.role = Role::embedding, .optimizer = rest});
  groups.push_back({.role = Role::vector, .optimizer = rest, .weight_decay = 0.0});
  return groups;
}

void validate(Config& c) {
  complete(c.model);
  validate(c.model);
  validate_block(c);
  validate_batch(c);
  validate_images(c);
  resolve_length(c);
  resolve_schedule(c);
  resolve_mup(c);
  resolve_groups(c);
  validate_cautious(c);
  validate_qk_clip(c);
  validate_stochastic_depth(c);
  validate_update_clip(c);
  validate_schedule_free(c);
  resolve_other_courses(c);
  validate_precision(c);
  validate_gradients(c);
  validate_memory(c);
  validate_ranks(c);
  validate_pipeline(c);
  validate_pruning(c);
  validate_adapters(c);
  validate_distillation(c);
  validate_data(c);
  validate_run(c);
}

}  // namespace athanor
