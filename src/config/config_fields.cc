// The options of a run, one row each. C++ type and default are those of the member in config.h. Resume rules: free =
// may change silently, notice = may change and is logged, refused = may not change, because it would be another run.
#include "base/error.h"
#include "base/thread.h"
#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/names_field.h"

namespace athanor {
namespace {

using enum OnResume;
using Fields = std::vector<Field<Config>>;

void read_ramp(Config& out, const Json& value, const std::string& path, Notices) {
  out.rampup_batch_size = {};
  const std::string expected = "null, or [start, increment, samples], each at least 1";
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array) || value.items.size() != 3) bad_value(value, path, expected);
  int64_t* const members[] = {&out.rampup_batch_size.start, &out.rampup_batch_size.increment,
                              &out.rampup_batch_size.samples};
  for (size_t i = 0; i < 3; ++i) *members[i] = read_integer(value.items[i], cat(path, "[", i, "]"), at_least(1));
}

Json write_ramp(const Config& in) {
  const BatchRamp& ramp = in.rampup_batch_size;
  if (ramp.start == 0) return {};
  Json list = Json::array();
  for (const int64_t number : {ramp.start, ramp.increment, ramp.samples}) list.items.push_back(Json::of(number));
  return list;
}

void read_windows(Config& out, const Json& value, const std::string& path, Notices) {
  out.sliding_window_schedule.clear();
  const std::string expected = "null, or a list of pairs [first step, tokens]";
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array) || value.items.empty()) bad_value(value, path, expected);
  for (size_t i = 0; i < value.items.size(); ++i) {
    const Json& pair = value.items[i];
    const std::string at = cat(path, "[", i, "]");
    if (!pair.is(Json::Kind::array) || pair.items.size() != 2) bad_value(pair, at, "a pair [first step, tokens]");
    out.sliding_window_schedule.push_back({.from_step = read_integer(pair.items[0], cat(at, "[0]"), at_least(0)),
                                           .tokens = read_integer(pair.items[1], cat(at, "[1]"), at_least(1))});
  }
}

Json write_windows(const Config& in) {
  if (in.sliding_window_schedule.empty()) return {};
  Json list = Json::array();
  for (const WindowStage& stage : in.sliding_window_schedule) {
    Json pair = Json::array();
    pair.items = {Json::of(stage.from_step), Json::of(stage.tokens)};
    list.items.push_back(std::move(pair));
  }
  return list;
}

Json windows_schema() {
  return schema_from(R"({"type": ["array", "null"], "items": {"type": "array", "minItems": 2, "maxItems": 2,
                         "items": {"type": "integer", "minimum": 0}}})");
}

void read_layout(Config& out, const Json& value, const std::string& path, Notices) {
  constexpr const char* kExpected = "null, or a list with the number of blocks of each part, each at least 1";
  if (value.is(Json::Kind::array) && value.items.empty()) bad_value(value, path, kExpected);
  out.pipeline_layout = read_integers(value, path, at_least(1), kExpected);
}

Json write_layout(const Config& in) { return write_integers(in.pipeline_layout); }

Json layout_schema() {
  return schema_from(R"({"type": ["array", "null"], "items": {"type": "integer", "minimum": 1}})");
}

Json ramp_schema() {
  return schema_from(R"({"type": ["array", "null"], "items": {"type": "integer", "minimum": 1},
                         "minItems": 3, "maxItems": 3})");
}

void read_model_member(Config& out, const Json& value, const std::string& path, Notices notices) {
  out.model = read_model(value, path, notices);
}
Json write_model_member(const Config& in) { return write_model(in.model); }
Json model_member_schema() { return any_of({schema_from(R"({"type": "string"})"), model_schema()}); }

Fields model_group() {
  return {
      custom("model",
             Custom<Config>{read_model_member, write_model_member, model_member_schema,
                            "object, or path of a config.json"},
             refused, "model shape; relative paths are resolved against the file that names them")
          .required(),
  };
}

Fields run_group() {
  return {
      option("save", &Config::save, free,
             "run folder for checkpoints, logs and the resolved configuration; empty = nothing is written")
          .path()
          .alias({"out_dir", "save_folder"}),
      option("load", &Config::load, free,
             "checkpoint to resume from: auto = the newest valid one in `save`, none = start a new run, or the path of "
             "a checkpoint or run folder")
          .path()
          .alias({"resume"}),
      number("load_step", &Config::load_step, at_least(-1), free, "step",
             "resume from the checkpoint of this step; -1 = the newest")
          .alias({"ckpt_step"}),
      option("init_from", &Config::init_from, free,
             "Hugging Face model folder (config.json and safetensors) that provides the initial weights of a new run; "
             "empty = random weights. Without `model`, the run also takes its shape")
          .path()
          .alias({"init_weights"}),
      number("seed", &Config::seed, at_least(0), refused, "", "random seed of initial weights and data order")
          .alias({"global_seed"}),
      choice<&Config::device>("device", notice, "device to train on; auto = a GPU if there is one"),
      number("threads", &Config::threads, between(0, kMostThreads), free, "",
             "CPU threads; 0 = all cores available to the process")
          .alias({"num_threads"}),
      option("cuda_graph", &Config::cuda_graph, free,
             "capture micro-batch and optimizer as CUDA graphs and replay them: the same kernels, fewer launches")
          .developer(),
      option("programmatic_launch", &Config::programmatic_launch, free,
             "programmatic dependent launch: kernels may start before the previous kernel ends and wait after their "
             "prologue; compute capability 9.0 or later")
          .developer(),
      choice<&Config::attention>(
          "attention", notice,
          "attention kernels on a GPU; auto = cuDNN if it supports the case, its workspace fits and autotuning finds "
          "nothing faster (for documents and windows: only if autotuning finds it faster), else the built-in kernels"),
      number(
          "autotune_seconds", &Config::autotune_seconds, at_least(0), free, "s",
          "time limit of autotuning at the start of a GPU run: GEMM algorithms, fused epilogues and, with attention "
          "auto, attention kernels; 0 = the library's first heuristic, no fusion, cuDNN attention for whole sequences"),
      option("tuning_cache", &Config::tuning_cache, free,
             "cache folder for autotuning results and cuDNN plans; auto = athanor in XDG_CACHE_HOME or ~/.cache; none "
             "= no cache")
          .path()
          .developer(),
  };
}

Fields train_group() {
  return {
      number("train_iters", &Config::train_iters, at_least(0), free, "steps",
             "optimizer steps of the run; give this or train_tokens")
          .alias({"steps", "max_iters", "max_steps", "train_steps"}),
      number("train_tokens", &Config::train_tokens, at_least(0), free, "tokens",
             "tokens of the run; converted to train_iters, rounded up")
          .alias({"max_tokens"}),
      number("global_batch_size", &Config::global_batch_size, between(1, kMaxCount), refused, "sequences",
             "sequences per optimizer step, over all devices and micro-batches")
          .alias({"train_batch_size", "global_train_batch_size"})
          .required(),
      custom("rampup_batch_size",
             Custom<Config>{read_ramp, write_ramp, ramp_schema, "null, or [start, increment, samples]"}, refused,
             "batch size ramp: the batch starts at `start` sequences and grows by `increment` to global_batch_size, in "
             "equal intervals over the first `samples` sequences; [start, global_batch_size - start, samples] is a "
             "single jump; the sample order does not change; null = constant"),
      number("micro_batch_size", &Config::micro_batch_size, between(1, kMaxCount), free, "sequences",
             "sequences per device and micro-batch; auto = the size that fits in memory and gives the shortest "
             "modelled step")
          .or_word("auto", 0)
          .alias({"batch_size", "train_micro_batch_size_per_gpu"}),
      number("gradient_accumulation_steps", &Config::gradient_accumulation_steps, between(0, kMaxCount), free, "",
             "derived from the batch sizes; if given, it must agree with them; 0 = not given")
          .developer(),
      number("seq_length", &Config::seq_length, between(0, kMaxCount), refused, "tokens",
             "tokens per sequence; 0 = max_position_embeddings of the model")
          .alias({"block_size", "sequence_length", "max_seq_length", "max_seq_len"}),
      custom("sliding_window_schedule",
             Custom<Config>{read_windows, write_windows, windows_schema, "null, or list of [step, tokens]"}, notice,
             "sliding window by step: [[0, 128], [1000, 512]] = 128 tokens from step 0, 512 from step 1000, for all "
             "layers with a window, also in evaluations; the last entry must be model.sliding_window, which is "
             "exported; null = constant"),
      number("curriculum.total_curriculum_step", &Config::total_curriculum_step, between(0, kMaxCount), notice, "steps",
             "sequence length warm-up: sequences are split into independent chunks whose length grows linearly from "
             "curriculum.min_difficulty to seq_length at this step; tokens per step and sample order do not change; 0 "
             "= off"),
      number("curriculum.min_difficulty", &Config::min_difficulty, between(1, kMaxCount), notice, "tokens",
             "initial chunk length"),
      number("curriculum.difficulty_step", &Config::difficulty_step, between(1, kMaxCount), notice, "tokens",
             "chunk lengths are multiples of this; a multiple of 8 is fastest")
          .developer(),
  };
}

Fields precision_group() {
  return {
      choice<&Config::precision>("precision", refused,
                                 "type of activations and GEMMs; fp8_*, mxfp8 and nvfp4: linear layers of blocks "
                                 "multiply FP8 or FP4 values, everything else is bf16 (docs/precision.md)")
          .alias({"dtype"}),
      choice<&Config::master_weights>("master_weights", refused,
                                      "master weights updated by the optimizer. With precision bf16: split = bf16 "
                                      "weights plus 16 extra bits, bit-identical to fp32 (a run may switch between the "
                                      "two); bf16 = bf16 weights only, with stochastic rounding")
          .interchangeable({"fp32", "split"}),
      choice<&Config::grad_dtype>(
          "grad_dtype", notice,
          "type in which weight gradients are accumulated and reduced over ranks; bf16 rounds to nearest after each "
          "micro-batch and needs precision bf16, FP8 or FP4 (docs/precision.md)"),
      choice<&Config::fp8_format>("fp8.format", refused,
                                  "FP8 type of gradients in GEMMs; hybrid = E5M2 (activations and weights stay E4M3), "
                                  "e4m3 = E4M3, auto = hybrid for fp8_tensorwise and fp8_delayed, else e4m3"),
      option("fp8.power_of_two_scales", &Config::fp8_power_of_two_scales, refused,
             "restrict scales to powers of two (always true for mxfp8)")
          .developer(),
      number("fp8.amax_history_len", &Config::fp8_amax_history_len, between(1, 65536), refused, "steps",
             "fp8_delayed: number of past steps whose amax determines the scale"),
      choice<&Config::fp8_amax_compute_algo>(
          "fp8.amax_compute_algo", refused,
          "fp8_delayed: max = maximum amax over fp8.amax_history_len steps, most_recent = amax of the last step")
          .developer(),
      number("fp8.margin", &Config::fp8_margin, between(0, 16), refused, "bits",
             "fp8_delayed: the amax is mapped to the format's maximum divided by 2^margin, headroom for tensors that "
             "grow"),
      custom("fp8.exclude", names<&Config::fp8_exclude>("list of patterns"), refused,
             "linear layers kept in bf16: patterns (* and ?) of parameter names such as *.mlp.down_proj.weight"),
      number("fp8.min_size", &Config::fp8_min_size, at_least(0), refused, "",
             "linear layers with fewer inputs or outputs than this stay in bf16")
          .developer(),
      option("fp8.lm_head", &Config::fp8_lm_head, refused,
             "run the output head (logits and their gradients) in FP8 too"),
      number("fp8.num_layers_at_start_in_bf16", &Config::num_layers_at_start_in_bf16, between(0, kMaxCount), refused,
             "blocks", "number of first blocks kept in bf16"),
      number("fp8.num_layers_at_end_in_bf16", &Config::num_layers_at_end_in_bf16, between(0, kMaxCount), refused,
             "blocks", "number of last blocks kept in bf16")
          .unset_is("0; with nvfp4 15 % of the blocks, rounded up"),
      number("fp16.loss_scale", &Config::loss_scale, at_least(0), notice, "", "constant loss scale; 0 = dynamic"),
      number("fp16.initial_loss_scale", &Config::initial_loss_scale, above(0), refused, "",
             "initial dynamic loss scale")
          .developer(),
      number("fp16.loss_scale_window", &Config::loss_scale_window, between(1, kMaxCount - 1), notice, "steps",
             "finite steps before the loss scale doubles")
          .developer(),
      number("fp16.hysteresis", &Config::hysteresis, between(1, kMaxCount - 1), notice, "steps",
             "overflows before the loss scale halves")
          .developer(),
      number("fp16.min_loss_scale", &Config::min_loss_scale, above(0), notice, "",
             "lower bound of the dynamic loss scale")
          .developer(),
  };
}

Fields memory_group() {
  return {
      choice<&Config::recompute_granularity>(
          "recompute_granularity", free,
          "activation checkpointing: none, selective = recompute cheap activations, full = recompute whole blocks; a "
          "minimum: the plan recomputes more if memory requires it or the modelled step gets shorter"),
      number("recompute_num_layers", &Config::recompute_num_layers, between(1, 65536), free, "blocks",
             "with full: every n-th block is recomputed whole, the others selectively"),
      number("memory_limit_gib", &Config::memory_limit_gib, at_least(0), free, "GiB",
             "memory limit per device; 0 = all memory of the device or control group"),
      number("runtime_reserve_mib", &Config::runtime_reserve_mib, at_least(0), free, "MiB",
             "memory left to libraries and the system; auto = 256 on CPU, 1024 on GPU")
          .or_word("auto", -1)
          .developer(),
      number("loss_chunk_rows", &Config::loss_chunk_rows, at_least(0), free, "rows",
             "rows of logits computed at a time; 0 = up to 8192, fewer if memory is short")
          .developer(),
      choice<&Config::offload_optimizer>("offload.optimizer", free,
                                         "on a GPU: cpu = master weights and optimizer states stay in pinned host "
                                         "memory and are streamed through the GPU in each update, bit-identical "
                                         "results; auto = only if the plan does not fit otherwise (docs/training.md)"),
      choice<&Config::offload_activations>(
          "offload.activations", free,
          "on a GPU, with recompute_granularity full: cpu = inputs of recomputed blocks are kept in pinned host memory "
          "until backward, bit-identical results; auto = only if the plan does not fit otherwise"),
      choice<&Config::offload_params>(
          "offload.params", free,
          "on a GPU, with one rank or zero_stage 3: cpu = weights and gradients of idle units (embedding, each block, "
          "head) are kept in pinned host memory, bit-identical results; auto = for as few units as the plan needs "
          "(docs/training.md)"),
      number("offload.host_memory_limit_gib", &Config::host_memory_limit_gib, at_least(0), free, "GiB",
             "host memory per rank for offloading; 0 = the available memory, divided among the ranks of the machine"),
  };
}

Fields ranks_group() {
  return {
      number("zero_stage", &Config::zero_stage, between(0, 3), free, "",
             "what data-parallel ranks shard: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights "
             "(docs/distributed.md)"),
      option("zero_quantized_gradients", &Config::zero_quantized_gradients, notice,
             "zero_stage 1 and 2: reduce gradients in 4 bits; with data_parallel_replicate_size above 1, 8 bits within "
             "a replica and 4 bits between replicas (docs/distributed.md)"),
      option("zero_quantized_weights", &Config::zero_quantized_weights, refused,
             "zero_stage 1 and 2, precision bf16: ranks send the change of their weights since the last step, "
             "quantized to 4 bits (docs/distributed.md)"),
      number("data_parallel_shard_size", &Config::data_parallel_shard_size, between(0, 65536), free, "ranks",
             "ranks that shard one replica; 0 = all ranks divided by data_parallel_replicate_size")
          .developer()
          .alias({"data_parallel_shard_degree"}),
      number("data_parallel_replicate_size", &Config::data_parallel_replicate_size, between(1, 65536), free, "ranks",
             "replicas of the sharded state (HSDP), for example one per machine")
          .alias({"data_parallel_replicate_degree"}),
      number("pipeline_parallel_size", &Config::pipeline_parallel_size, between(1, 65536), free, "ranks",
             "pipeline stages; each stage holds some of the blocks and sends micro-batches to the next "
             "(docs/distributed.md)")
          .alias({"pipeline_model_parallel_size", "pipeline_parallel_degree"}),
      number("tensor_parallel_size", &Config::tensor_parallel_size, between(1, 65536), free, "ranks",
             "tensor-parallel ranks, which split heads, feed-forward columns and the vocabulary and read the same "
             "samples (docs/distributed.md)")
          .alias({"tensor_model_parallel_size", "tensor_parallel_degree"}),
      option("sequence_parallel", &Config::sequence_parallel, free,
             "tensor-parallel ranks also split the tokens of activations between GEMMs; seq_length must be divisible "
             "by tensor_parallel_size"),
      number("context_parallel_size", &Config::context_parallel_size, between(1, 65536), free, "ranks",
             "context-parallel ranks, which split every sequence, two chunks each; seq_length must be divisible by "
             "twice this (docs/distributed.md)")
          .alias({"context_parallel_degree"}),
      choice<&Config::context_parallel_method>(
          "context_parallel_method", free,
          "exchange of keys and values among context-parallel ranks: gather = all-gather before attention, ring = one "
          "rank's at a time, overlapped with attention; auto = the shorter modelled step (docs/distributed.md)")
          .developer(),
      number("expert_parallel_size", &Config::expert_parallel_size, between(1, 65536), free, "ranks",
             "data-parallel ranks that split the experts of each layer; tokens are sent to the ranks of their experts "
             "and back (docs/distributed.md)")
          .alias({"expert_model_parallel_size", "expert_parallel_degree"}),
      choice<&Config::deterministic_reduction>(
          "deterministic_reduction", notice,
          "order of sums over ranks: fixed_order = same bits for the same number of ranks; rank_invariant = same bits "
          "for every number of ranks that divides logical_shards, at the cost of memory (docs/distributed.md)"),
      number("logical_shards", &Config::logical_shards, between(1, 65536), notice, "",
             "rank_invariant: parts of a step whose gradients are added in a fixed tree; a power of two and the "
             "maximum number of data-parallel ranks")
          .developer(),
      choice<&Config::pipeline_schedule>(
          "pipeline.schedule", free,
          "order of micro-batches on a pipeline stage: 1f1b = alternate forward and backward; interleaved = 1f1b with "
          "several model parts per stage, smaller bubbles and more communication; gpipe = all forward, then all "
          "backward, most memory; zb1p = 1f1b that delays weight gradients into the bubbles; zbv = zb1p with two parts "
          "per stage, the first and the last part on the first stage"),
      number("pipeline.virtual_size", &Config::virtual_pipeline_size, between(0, 1024), free, "",
             "model parts per stage (virtual pipeline); 0 = 2 with interleaved and zbv, else 1")
          .alias({"virtual_pipeline_model_parallel_size"}),
      custom("pipeline.layout", Custom<Config>{read_layout, write_layout, layout_schema, "null, or list of integers"},
             free,
             "number of blocks of each model part, first to last; part p is on stage p mod pipeline_parallel_size; "
             "null = balanced by modelled time, including the head"),
      number("timeouts.connect", &Config::distributed_timeout, at_least(0), free, "s",
             "time within which all ranks must connect; 0 = timeouts.startup")
          .developer(),
      number("timeouts.startup", &Config::startup_timeout, above(0), free, "s",
             "before the first step (connecting, loading, planning, autotuning): a rank that others wait for is lost "
             "after this time without progress"),
      number("timeouts.step", &Config::step_timeout, at_least(0), free, "s",
             "during a step: a rank that others wait for is lost after this time; 0 = 9 s or three times the 99th "
             "percentile of recent steps, whichever is longer"),
      number("timeouts.eval", &Config::eval_timeout, above(0), free, "s",
             "during an evaluation: a rank that others wait for is lost after this time")
          .developer(),
      number("timeouts.save", &Config::save_timeout, above(0), free, "s",
             "while a checkpoint is written: a rank that others wait for is lost after this time")
          .developer(),
      number("timeouts.heartbeat", &Config::heartbeat_timeout, above(0), free, "s",
             "a process is lost (stopped or disconnected) after this time without a heartbeat")
          .developer(),
  };
}

Fields report_group() {
  return {
      number("eval_interval", &Config::eval_interval, at_least(0), free, "steps",
             "steps between evaluations; 0 = never"),
      number("eval_iters", &Config::eval_iters, at_least(0), free, "batches",
             "global batches per evaluation, spread over all of valid_data; 0 = all windows of valid_data"),
      number("stop_at_loss", &Config::stop_at_loss, at_least(0), free, "nats",
             "end the run at the first evaluation whose loss on valid_data is at most this; 0 = off"),
      option("multiple_choice_data", &Config::multiple_choice_data, free,
             "JSON lines file of multiple-choice questions (data/README.md), scored at every evaluation; empty = none")
          .path(),
      number("log_interval", &Config::log_interval, at_least(1), free, "steps", "steps between log lines")
          .alias({"log_freq", "steps_per_print"}),
      option("profile", &Config::profile, free,
             "write a Chrome trace of all ops (on a GPU: kernels) to this path and print a table of ops at the end; "
             "empty = off")
          .path(),
      choice<&Config::log_level>("logging.level", free, "minimum severity of messages shown"),
      option("logging.noise_scale", &Config::log_noise_scale, free,
             "log the gradient noise scale, the batch size in tokens above which larger batches save few steps; it "
             "compares the gradients of a step and of its first micro-batch, so each rank needs at least two "
             "micro-batches"),
      number("logging.quantization_interval", &Config::log_quantization_interval, at_least(0), free, "steps",
             "steps between metrics.jsonl records of quantization error per linear layer: saturated and underflowed "
             "values and amax; does not change the run; 0 = never"),
      number("logging.routing_interval", &Config::log_routing_interval, at_least(0), free, "steps",
             "steps between metrics.jsonl records of each router: load of the most and least used expert, unused "
             "experts, entropy; does not change the run; 0 = never"),
      option("logging.tensorboard", &Config::tensorboard, free, "write TensorBoard event files to the run folder"),
      option("logging.jsonl", &Config::log_jsonl, free, "write metrics.jsonl to the run folder, one record per step")
          .developer(),
      choice<&Config::progress>("logging.progress", free, "show a progress line; auto = on a terminal"),
      number("logging.peak_tflops", &Config::peak_tflops, at_least(0), free, "TFLOP/s",
             "peak TFLOP/s of one device for MFU; 0 = from the data sheet, on CPUs from cores, clock and vector width, "
             "else measured at the start")
          .developer(),
  };
}

Fields checkpoint_group() {
  return {
      number("save_interval", &Config::save_interval, at_least(0), free, "steps",
             "steps between checkpoints; 0 = only at the end")
          .alias({"checkpoint_interval"}),
      number("exit_duration_in_mins", &Config::exit_duration_in_mins, at_least(0), free, "min",
             "time after which the run saves a checkpoint and stops; 0 = no limit"),
      number("checkpoint.interval_minutes", &Config::save_interval_minutes, at_least(0), free, "min",
             "minutes between checkpoints, in addition to save_interval; 0 = off"),
      choice<&Config::async_save>(
          "checkpoint.async_save", free,
          "write checkpoints in the background from a host copy (12 bytes per parameter, divided by the ranks); auto = "
          "on devices with their own memory; the last checkpoint of a run is always waited for"),
      number("checkpoint.keep_latest_k", &Config::keep_latest_k, at_least(0), free, "",
             "number of checkpoints kept, older ones are deleted; 0 = keep all")
          .alias({"most_recent_k", "save_num_checkpoints_to_keep"}),
      number("checkpoint.memory_interval", &Config::memory_interval, at_least(0), free, "steps",
             "steps between checkpoints in host memory, each machine's with a copy on the next machine, from which the "
             "same command continues after a crash; 0 = off"),
      option("checkpoint.memory_folder", &Config::memory_folder, free,
             "folder in memory for these checkpoints; empty = below /dev/shm")
          .path(),
      number("checkpoint.exit_signal_budget", &Config::exit_signal_budget, above(0), free, "s",
             "time allowed from a stop signal to the end of the final checkpoint")
          .developer(),
  };
}

void append(Fields& all, std::string_view group, Fields rows) {
  for (auto& row : rows) {
    row.group = group;
    row.former = former_keys(row.key);
    all.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Field<Config>> config_fields() {
  Fields all;
  append(all, "Model", model_group());
  append(all, "Run", run_group());
  append(all, "Training", train_group());
  append(all, "Optimizer", optimizer_fields());
  append(all, "Schedules", schedule_fields());
  append(all, "Loss and regularization", loss_fields());
  append(all, "Experts", expert_fields());
  append(all, "Local updates", local_update_fields());
  append(all, "Distillation", distillation_fields());
  append(all, "Pruning", pruning_fields());
  append(all, "Adapters", adapter_fields());
  append(all, "Precision", precision_group());
  append(all, "Memory", memory_group());
  append(all, "Ranks", ranks_group());
  append(all, "Data", data_fields());
  append(all, "Evaluation and reports", report_group());
  append(all, "Checkpoints and limits", checkpoint_group());
  return all;
}

}  // namespace athanor
