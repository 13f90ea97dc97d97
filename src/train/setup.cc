#include "train/setup.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "base/log.h"
#include "comm/texts.h"
#include "infer/multiple_choice.h"
#include "perf/best_seconds.h"
#include "perf/flops.h"
#include "tokenizer/load.h"
#include "train/checkpointer.h"
#include "train/tuning_cache.h"

namespace athanor {
namespace {

// Returns the dtype of master weights, as in Recipe.
DType to_dtype(MasterWeights m) {
  switch (m) {
    case MasterWeights::fp32:
      return DType::f32;
    case MasterWeights::split:
      return DType::i16;
    case MasterWeights::bf16:
      return DType::bf16;
  }
  return DType::f32;
}

DType to_dtype(SumDtype s) { return s == SumDtype::bf16 ? DType::bf16 : DType::f32; }

std::optional<double> if_given(double x) { return x < 0 ? std::nullopt : std::optional(x); }

ParamGroup to_group(const ParamGroupConfig& g) {
  return {.match = g.match,
          .role = g.role,
          .rule = g.optimizer,
          .lr_factor = g.lr_factor,
          .weight_decay = if_given(g.weight_decay),
          .beta1 = if_given(g.beta1),
          .beta2 = if_given(g.beta2),
          .eps = if_given(g.eps),
          .momentum = if_given(g.momentum),
          .frozen = g.frozen};
}

}  // namespace

OptimizerOptions optimizer_options(const Config& c) {
  OptimizerOptions o{.rule = c.optimizer,
                     .beta1 = c.adam_beta1,
                     .beta2 = c.adam_beta2,
                     .eps = c.adam_eps,
                     .weight_decay = c.weight_decay,
                     .cautious_weight_decay = c.cautious_weight_decay,
                     .m = to_dtype(c.exp_avg_dtype),
                     .v = to_dtype(c.exp_avg_sq_dtype),
                     .seed = uint64_t(c.seed),
                     .sgd_momentum = c.sgd_momentum,
                     .sgd_nesterov = c.sgd_nesterov,
                     .lion_beta1 = c.lion_beta1,
                     .lion_beta2 = c.lion_beta2,
                     .muon_momentum = c.muon_momentum,
                     .muon_nesterov = c.muon_nesterov,
                     .muon_scale = c.muon_scale,
                     .muon_coefficients = c.muon_coefficients,
                     .normuon_beta2 = c.normuon_beta2,
                     .min_8bit_size = c.min_8bit_size,
                     .update_clip_threshold = c.update_clip_threshold,
                     .freeze_step = c.freeze_step,
                     .qk_clip_threshold = c.qk_clip_threshold,
                     .ema_decay = c.ema_decay,
                     .tail_average_start = c.tail_average_start,
                     .groups = {}};
  for (const ParamGroupConfig& group : c.param_groups) o.groups.push_back(to_group(group));
  return o;
}

EngineOptions engine_options(const Config& c, bool training) {
  EngineOptions o;
  o.recipe = make_recipe(name_of(c.precision), to_dtype(c.master_weights), c.fp8_format);
  o.recipe.gradients = to_dtype(c.grad_dtype);
  if (c.fp8_power_of_two_scales) o.recipe.power_of_two = true;
  const bool all = c.fp8_amax_compute_algo == AmaxComputeAlgo::max;
  o.recipe.delayed = {.history = all ? c.fp8_amax_history_len : 1, .margin = int(c.fp8_margin)};
  o.high_layers = {.head = !c.fp8_lm_head,
                   .first = c.num_layers_at_start_in_bf16,
                   .last = c.num_layers_at_end_in_bf16,
                   .least = c.fp8_min_size,
                   .match = c.fp8_exclude};
  o.recompute = {c.recompute_granularity, c.recompute_num_layers};
  o.seq_length = c.seq_length;
  o.micro_batch_size = c.micro_batch_size;
  o.global_batch_size = c.global_batch_size;
  o.loss_chunk_rows = c.loss_chunk_rows;
  o.documents_per_sequence =
      std::max<int64_t>(std::max<int64_t>(c.max_documents_per_sequence, 1) + (training ? max_chunks(c) - 1 : 0),
                        c.multiple_choice_data.empty() ? 1 : kChoicesPerSequence);
  o.sequence_parallel = c.sequence_parallel;
  o.context_method = c.context_parallel_method;
  o.training = training;
  if (training)  // without training, adapters are merged into the weights that are read
    o.lora = {.rank = c.lora_rank,
              .alpha = c.lora_alpha,
              .dropout = c.lora_dropout,
              .targets = c.lora_targets,
              .variant = c.lora_variant,
              .base = c.base_precision,
              .double_quant = c.base_double_quant};
  o.seed = uint64_t(c.seed);
  o.optimizer = optimizer_options(c);
  o.eval_averages = c.eval_weights != EvalWeights::current;
  o.outer = {.steps = c.local_steps,
             .learning_rate = c.outer_learning_rate,
             .momentum = c.outer_momentum,
             .fragments = c.local_fragments,
             .delay = c.outer_delay,
             .mixing = c.outer_mixing,
             .deltas = c.outer_delta_dtype};
  o.schedule = {.style = c.lr_decay_style,
                .wsd = c.lr_wsd_decay_style,
                .lr = c.learning_rate,
                .min_lr = c.min_lr,
                .warmup = c.lr_warmup_iters,
                .decay = c.lr_decay_iters,
                .wsd_decay = c.lr_wsd_decay_iters,
                .start = c.lr_warmup_init,
                .momentum_warmup = c.momentum_warmup_iters,
                .low_momentum = c.low_momentum,
                .weight_decay = c.weight_decay_style,
                .end_weight_decay = c.weight_decay > 0 ? c.end_weight_decay / c.weight_decay : 1};
  o.router_bias_rate = float(c.router_bias_update_rate);
  o.aux_loss_scope = c.aux_loss_scope;
  o.expert_capacity_factor = c.expert_capacity_factor;
  o.expert_buffer_factor = c.expert_buffer_factor;
  o.quantized = c.log_quantization_interval > 0;
  o.noise_scale = c.log_noise_scale;
  o.sources = int64_t(c.train_data.size());
  o.spikes = {.deviations = c.loss_spike_zscore, .most_in_row = c.max_consecutive_spikes};
  o.z_loss = c.z_loss;
  o.ahead_weights = ahead_weights_at(c, 0);
  o.hidden_dropout = float(c.hidden_dropout);
  o.depth = {.rate = float(c.stochastic_depth), .mode = c.stochastic_depth_mode};
  if (c.prune_sparsity > 0)
    o.pruning = PruningOptions{.method = c.prune_method,
                               .decay = c.srste_decay,
                               .pattern = c.prune_pattern,
                               .scope = c.prune_scope,
                               .exclude = c.prune_exclude};
  if (o.recipe.loss_scaling) {
    o.scaling = {.dynamic = c.loss_scale == 0,
                 .window = int32_t(c.loss_scale_window),
                 .hysteresis = int32_t(c.hysteresis),
                 .min_scale = float(c.min_loss_scale)};
    o.loss_scale = c.loss_scale > 0 ? c.loss_scale : c.initial_loss_scale;
  }
  o.clip_grad = c.clip_grad;
  o.graphs = c.cuda_graph;
  o.zero_stage = zero_stage(c);
  if (training) o.packed = {.gradients = c.zero_quantized_gradients, .weights = c.zero_quantized_weights};
  o.pipeline = {
      .schedule = c.pipeline_schedule, .chunks = int(std::max<int64_t>(1, c.virtual_pipeline_size)), .layout = {}};
  for (const int64_t blocks : c.pipeline_layout) o.pipeline.layout.push_back(int(blocks));
  o.logical_shards =
      training && c.deterministic_reduction == DeterministicReduction::rank_invariant ? c.logical_shards : 0;
  return o;
}

int zero_stage(const Config& c) {
  return c.zero_stage == 0 && (updates_by(c, RuleName::muon) || updates_by(c, RuleName::normuon)) ? 1
                                                                                                  : int(c.zero_stage);
}

MeshSizes mesh_sizes(const Config& c, int ranks) {
  const auto tensor = int(c.tensor_parallel_size), context = int(c.context_parallel_size);
  const auto stages = int(c.pipeline_parallel_size);
  const int64_t together = int64_t{stages} * tensor * context;  // may exceed an int
  const auto require_multiple = [ranks](const char* key, bool is_one, int64_t of, const std::string& why = "") {
    if (!is_one)
      throw Error(cat(key, ": ", ranks, ranks == 1 ? " rank was" : " ranks were", " started, expected a multiple of ",
                      of, why, "; start another number, or set it to 1"),
                  Exit::usage);
  };
  require_multiple("pipeline_parallel_size", stages == 1 || ranks % together == 0, together,
                   tensor * context > 1 ? cat(" (", stages, " times tensor_parallel_size ", tensor,
                                              " times context_parallel_size ", context, ")")
                                        : "");
  require_multiple("context_parallel_size", context == 1 || ranks % together == 0, together,
                   tensor > 1 ? cat(" (", context, " times tensor_parallel_size ", tensor, ")") : "");
  require_multiple("tensor_parallel_size", ranks % tensor == 0, tensor);
  const auto groups = int(ranks / together);
  const auto experts = int(c.expert_parallel_size);
  require_multiple("expert_parallel_size", groups % experts == 0, experts);
  const int64_t replicas = c.data_parallel_replicate_size;
  const bool shares_out = zero_stage(c) > 0;
  if (!shares_out && !copies_are_workers(c))
    return {.stages = stages,
            .copies = groups / experts,
            .shards = experts,
            .context = context,
            .tensor = tensor,
            .experts = experts};
  const bool shards_given = shares_out && c.data_parallel_shard_size > 0;
  const int64_t shards = shards_given ? c.data_parallel_shard_size : groups / replicas;
  if (!shards_given && together == 1) require_multiple("data_parallel_replicate_size", ranks % replicas == 0, replicas);
  if (replicas * shards != groups)
    throw Error(cat("data_parallel_replicate_size: ", replicas, " copies in shards over ", shards, " ranks",
                    stages > 1 ? cat(", times pipeline_parallel_size ", stages, ",") : "",
                    tensor > 1 ? cat(", times tensor_parallel_size ", tensor, ",") : "",
                    context > 1 ? cat(", times context_parallel_size ", context, ",") : "", " do not make the ", ranks,
                    " ranks that were started; change one of them, or leave data_parallel_shard_size out"),
                Exit::usage);
  if (shards % experts != 0)
    throw Error(cat("expert_parallel_size: ", experts, " ranks with other experts are not a divisor of the ", shards,
                    " ranks that zero_stage ", zero_stage(c),
                    " shares a copy out to (data_parallel_shard_size); change one of them"),
                Exit::usage);
  MeshSizes sizes{.stages = stages,
                  .copies = int(replicas),
                  .shards = int(shards),
                  .context = context,
                  .tensor = tensor,
                  .experts = experts};
  if (copies_are_workers(c)) sizes.workers = std::exchange(sizes.copies, 1);
  sizes.delayed = c.local_steps > 0 && c.outer_delay > 0;
  if (compresses(c.optimizer) && sizes.workers == 1 && ranks > 1)
    throw Error(
        cat("data_parallel_replicate_size: optimizer ", name_of(c.optimizer),
            " compresses what copies send each other, and these ", ranks, " ranks form only one copy; set it to ",
            groups, ", or take optimizer ", without_compression(c.optimizer)),
        Exit::usage);
  if (!shares_out) sizes.copies = std::exchange(sizes.shards, 1);
  return sizes;
}

size_t memory_capacity(const Config& c, const Device& device) {
  return c.memory_limit_gib > 0 ? size_t(c.memory_limit_gib * double(size_t{1} << 30)) : device.capacity(Mem::device);
}

size_t host_memory_capacity(const Config& c, const Device& device) {
  return c.host_memory_limit_gib > 0 ? size_t(c.host_memory_limit_gib * double(size_t{1} << 30))
                                     : device.capacity(Mem::pinned);
}

std::string memory_of_others(const Config& c, const Device& device) {
  constexpr size_t kOwn = size_t{2} << 30;  // may be this program's CUDA context and library code
  if (device.unified() || c.memory_limit_gib > 0) return {};
  const size_t others = device.in_use() - std::min(device.in_use(), device.allocated());
  if (others < kOwn) return {};
  return cat("other programs hold ", format_bytes(others),
             " of the GPU's memory: the micro-batch, recomputation and kernels are chosen for the ",
             format_bytes(device.capacity(Mem::device)),
             " that are left, and may be others than on a free GPU; memory_limit_gib makes that the same everywhere");
}

// Returns the GPU memory for code of kernels and libraries, their handles and workspaces, and NCCL's buffers. 1 GiB is
// an assumption until a GPU has been measured (the part `memory` of scripts/gpu/verify.py does so).
size_t runtime_reserve(const Config& c, const Device& device) {
  constexpr int64_t kOnCpu = 256, kOnGpu = 1024;
  const int64_t mib = c.runtime_reserve_mib >= 0 ? c.runtime_reserve_mib : device.unified() ? kOnCpu : kOnGpu;
  return size_t(mib) << 20;
}

bool saves_in_background(const Config& c, const Device& device) {
  return c.async_save == AsyncSave::on || (c.async_save == AsyncSave::automatic && !device.unified());
}

size_t save_copy_bytes(const Config& c, const Device& device, const Engine& engine) {
  const bool copies = engine.options().training && !c.save.empty() && saves_in_background(c, device);
  return copies ? snapshot_bytes(engine.model().params(), engine.devices()) : 0;
}

size_t memory_checkpoint_bytes(const Config& c, const Engine& engine) {
  if (c.memory_interval == 0 || !engine.options().training) return 0;
  const int ranks = engine.devices();
  return size_t(2 * (ranks > 1 ? 2 : 1) * tensor_bytes(engine.model().params()) / ranks);
}

size_t checkpoint_bytes(const Config& c, const Device& device, const Engine& engine) {
  return save_copy_bytes(c, device, engine) + memory_checkpoint_bytes(c, engine);
}

size_t memory_outside_plan(const Config& c, const Device& device, const Engine& engine) {
  return runtime_reserve(c, device) + (device.unified() ? checkpoint_bytes(c, device, engine) : 0);
}

void search_gemms(const Config& c, Engine& engine, Tuning& tuning) {
  if (c.autotune_seconds <= 0) return;
  engine.memory();  // the dry run lists the ops
  const TuningCache cache(tuning_folder(c.tuning_cache), tuning.key());
  cache.load(tuning);
  log::info(tuning.search(engine.tunable(), c.autotune_seconds));
  cache.store(tuning);
}

void share_choices(const Backend& backend) {
  if (!backend.tuning || !backend.control) return;
  const int rank = backend.mesh.world().rank();
  const std::string choices = share_text(*backend.control, rank == 0 ? backend.tuning->export_choices() : "");
  const std::string why = rank == 0 ? "" : backend.tuning->import_choices(choices);
  if (!why.empty()) log::warn("rank ", rank, " takes its own choices for GEMMs and attention, not rank 0's: ", why);
}

std::string attention_words(Engine& engine, Tuning* tuning) {
  const std::string words = tuning ? tuning->describe_attention(engine.tunable()) : "";
  return words.empty() ? "" : "attention: " + words;
}

FlopCount attention_flops_per_token(const ModelConfig& m, int64_t seq_length) {
  FlopCount sum;
  for (int64_t l = 0; l < m.num_hidden_layers; ++l) {
    const FlopCount layer = attention_training_flops_per_token({.heads = m.num_attention_heads,
                                                                .head_dim = m.head_dim,
                                                                .value_dim = value_dim(m),
                                                                .seq_length = seq_length,
                                                                .window = window_of(m, l),
                                                                .sparse = sparse_pattern_of(m, l),
                                                                .causal = !reads_images(m)});
    sum.causal += layer.causal, sum.full += layer.full;
  }
  return sum;
}

FlopCount flops_per_token(Model& model, int64_t seq_length) {
  const ModelConfig& m = model.config();
  int64_t matmul = m.vocab_size * m.hidden_size;  // the head, tied or not
  int64_t frozen = model.params().spec(model.head()).frozen ? matmul : 0;
  for (const ParamSpec& spec : model.params().specs()) {
    if (spec.role != Role::matrix) continue;
    const int64_t met = spec.shape.numel() / spec.experts * spec.chosen;  // weights that a token uses
    matmul += met, frozen += spec.frozen ? met : 0;
  }
  const FlopCount attention = attention_flops_per_token(m, seq_length);
  // The projection of patches has no input gradient.
  const double patches = 4.0 * double(m.num_channels * m.patch_size * m.patch_size * m.hidden_size);
  const double gemms = 6.0 * double(matmul) - 2.0 * double(frozen) + patches;
  return {.causal = gemms + attention.causal, .full = gemms + attention.full};
}

FlopCount flops_per_token(Engine& engine, int64_t seq_length) {
  FlopCount flops = flops_per_token(engine.model(), seq_length);
  if (engine.runs_teacher()) {
    const FlopCount of_teacher = flops_per_token(*make_model(engine.options().teacher->model), seq_length);
    flops.causal += of_teacher.causal / 3, flops.full += of_teacher.full / 3;  // forward only: backward counts twice
  }
  return flops;
}

FlopCount flops_of_step(const Config& c, const FlopCount& last, int64_t step) {
  if (c.sliding_window_schedule.empty()) return last;
  ModelConfig now = c.model;
  now.sliding_window = sliding_window_at(c, step);
  const FlopCount with_last = attention_flops_per_token(c.model, c.seq_length),
                  with_now = attention_flops_per_token(now, c.seq_length);
  return {.causal = last.causal - with_last.causal + with_now.causal,
          .full = last.full - with_last.full + with_now.full};
}

namespace {

// Sizes at which a GEMM and a copy reach the full rate within a few milliseconds.
struct ProbeSizes {
  int64_t gemm, copy;  // gemm: M = N = K; copy: f32 elements
};
ProbeSizes probe_sizes(const Device& device) {
  return device.unified() ? ProbeSizes{768, 16 << 20} : ProbeSizes{8192, 256 << 20};
}

double measure_copy_bytes(Backend backend) {
  const int64_t elements = probe_sizes(backend.device).copy;
  Tensor a, b;
  MemoryPlan plan;
  plan.add(MemoryKind::inputs, "a", DType::f32, {elements}, &a);
  plan.add(MemoryKind::inputs, "b", DType::f32, {elements}, &b);
  plan.commit(backend.device);
  const Cast copy{.y = b, .x = a};
  return copy.cost().bytes / best_seconds(backend, copy, nullptr);
}

// Uses random values: zeros run faster than real data.
double measure_gemm_flops(Backend backend, DType compute, bool tensor_cores = true) {
  const int64_t size = probe_sizes(backend.device).gemm;
  Tensor a, b, d, scratch;
  MemoryPlan plan;
  for (auto [name, t] : {std::pair{"a", &a}, {"b", &b}, {"d", &d}})
    plan.add(MemoryKind::inputs, name, compute, {size, size}, t);
  const bool tf32 = compute == DType::f32 && !backend.device.unified() && tensor_cores;
  if (const size_t bytes = backend.ops.scratch(Gemm{.d = d, .a = a, .b = b, .tb = true, .tf32 = tf32}))
    plan.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch);
  plan.commit(backend.device);
  for (const Tensor& t : {a, b}) backend.ops.run(RandomNormal{.x = t.view({t.numel()}), .std = 1}, nullptr);
  const Gemm gemm{.d = d, .a = a, .b = b, .tb = true, .tf32 = tf32};
  return gemm.cost().flops / best_seconds(backend, gemm, scratch.data);
}

// Returns the measured FLOP/s of an FP8 GEMM with one scale per matrix; 0 if the backend has no FP8 GEMM.
double measure_quantized_flops(Backend backend) {
  const int64_t size = probe_sizes(backend.device).gemm;
  Tensor x, quantized, scale, d, scratch;
  MemoryPlan plan;
  plan.add(MemoryKind::inputs, "x", DType::bf16, {size, size}, &x);
  plan.add(MemoryKind::inputs, "quantized", DType::f8_e4m3, {size, size}, &quantized);
  plan.add(MemoryKind::inputs, "scale", DType::f32, {1, 1}, &scale);
  plan.add(MemoryKind::inputs, "d", DType::bf16, {size, size}, &d);
  const auto gemm = [&] {
    return ScaledGemm{.gemm = {.d = d, .a = quantized, .b = quantized, .tb = true},
                      .a_scales = scale,
                      .b_scales = scale,
                      .fast = true};
  };
  if (backend.ops.plan_scaled_gemm(gemm()).factors != Factors::quantized) return 0;
  const auto quantize = [&] { return Quantize{.quantized = quantized, .scales = scale, .x = x}; };
  const size_t bytes = std::max(backend.ops.scratch(gemm()), backend.ops.scratch(quantize()));
  plan.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch);
  plan.commit(backend.device);
  backend.ops.run(RandomNormal{.x = x.view({x.numel()}), .std = 1}, nullptr);
  backend.ops.run(quantize(), scratch.data);
  return gemm().gemm.cost().flops / best_seconds(backend, gemm(), scratch.data);
}

}  // namespace

double mfu_peak(const Config& c, Backend backend, DType compute, double most_flops) {
  if (c.peak_tflops > 0) return c.peak_tflops * 1e12;
  if (most_flops > 0) return most_flops;
  const double known = backend.device.peak_flops(compute);
  return known > 0 ? known : measure_gemm_flops(backend, compute);
}

Ceilings measure_ceilings(Backend backend, DType compute, bool quantized) {
  Ceilings most{measure_gemm_flops(backend, compute), measure_copy_bytes(backend)};
  if (!quantized) return most;
  most.quantized = measure_quantized_flops(backend), most.floats = measure_gemm_flops(backend, DType::f32, false);
  return most;
}

Ceilings ceilings(Backend backend, DType compute, bool quantized) {
  const Device& device = backend.device;
  if (device.unified()) return measure_ceilings(backend, compute, quantized);
  const auto known = [](double sheet, auto&& measure) { return sheet > 0 ? sheet : measure(); };
  Ceilings most{known(device.peak_flops(compute), [&] { return measure_gemm_flops(backend, compute); }),
                known(device.peak_bytes(), [&] { return measure_copy_bytes(backend); })};
  if (!quantized) return most;
  most.quantized = known(device.peak_flops(DType::f8_e4m3), [&] { return measure_quantized_flops(backend); });
  most.floats = known(device.peak_plain_flops(), [&] { return measure_gemm_flops(backend, DType::f32, false); });
  return most;
}

}  // namespace athanor
