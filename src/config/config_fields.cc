// The options of a run, one row each. C++ type and default are those of the member in config.h. Resume rules: free =
// may change silently, notice = may change and is logged, refused = may not change, because it would be another run.
#include "base/error.h"
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
  Json schema = Json::object(), types = Json::array(), pair = Json::object(), number = Json::object();
  types.items = {Json::of("array"), Json::of("null")};
  schema.set("type", std::move(types));
  number.set("type", Json::of("integer"));
  number.set("minimum", Json::of(int64_t{0}));
  pair.set("type", Json::of("array"));
  pair.set("minItems", Json::of(int64_t{2}));
  pair.set("maxItems", Json::of(int64_t{2}));
  pair.set("items", std::move(number));
  schema.set("items", std::move(pair));
  return schema;
}

void read_layout(Config& out, const Json& value, const std::string& path, Notices) {
  out.pipeline_layout.clear();
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array) || value.items.empty())
    bad_value(value, path, "null, or a list with the number of blocks of each part, each at least 1");
  for (size_t i = 0; i < value.items.size(); ++i)
    out.pipeline_layout.push_back(read_integer(value.items[i], cat(path, "[", i, "]"), at_least(1)));
}

Json write_layout(const Config& in) {
  if (in.pipeline_layout.empty()) return {};
  Json list = Json::array();
  for (const int64_t blocks : in.pipeline_layout) list.items.push_back(Json::of(blocks));
  return list;
}

// Schema: a list of integers above 0, or null.
Json counts_schema() {
  Json schema = Json::object(), types = Json::array(), number = Json::object();
  types.items = {Json::of("array"), Json::of("null")};
  schema.set("type", std::move(types));
  number.set("type", Json::of("integer"));
  number.set("minimum", Json::of(int64_t{1}));
  schema.set("items", std::move(number));
  return schema;
}

Json ramp_schema() {
  Json schema = counts_schema();
  schema.set("minItems", Json::of(int64_t{3}));
  schema.set("maxItems", Json::of(int64_t{3}));
  return schema;
}

void read_model_member(Config& out, const Json& value, const std::string& path, Notices notices) {
  out.model = read_model(value, path, notices);
}
Json write_model_member(const Config& in) { return write_model(in.model); }
Json model_member_schema() {
  Json path = Json::object(), either = Json::object(), any = Json::array();
  path.set("type", Json::of("string"));
  any.items = {std::move(path), model_schema()};
  either.set("anyOf", std::move(any));
  return either;
}

Fields model_group() {
  return {
      custom("model",
             Custom<Config>{read_model_member, write_model_member, model_member_schema,
                            "object, or path of a config.json"},
             refused, "shape of the model; a path is relative to the file that names it")
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
             "what to go on from: auto = the newest valid checkpoint in `save`, none = start anew, or the folder of a "
             "checkpoint or of a run")
          .path()
          .alias({"resume"}),
      number("load_step", &Config::load_step, at_least(-1), free, "step", "go on from this step; -1 = the newest")
          .alias({"ckpt_step"}),
      option("init_from", &Config::init_from, free,
             "folder of a model (config.json and safetensors, as Hugging Face has them) whose weights a new run starts "
             "with; empty = random ones. Its shape is the run's unless `model` is given")
          .path()
          .alias({"init_weights"}),
      number("seed", &Config::seed, at_least(0), refused, "", "initial weights and data order follow from it")
          .alias({"global_seed"}),
      choice<&Config::device>("device", notice, "where to compute; auto = a GPU if there is one"),
      number("threads", &Config::threads, between(0, 65536), free, "",
             "CPU threads; 0 = every core that the process may use")
          .alias({"num_threads"}),
      choice<&Config::cpu_gemm>("cpu_gemm", notice,
                                "CPU GEMM implementation; onednn needs its plug-in beside the program"),
      option("cuda_graph", &Config::cuda_graph, free,
             "capture micro-batch and optimizer as CUDA graphs and replay them: the same kernels, fewer launches")
          .developer(),
      option("programmatic_launch", &Config::programmatic_launch, free,
             "let the program's kernels start on a GPU of compute capability 9.0 or later before the one ahead has "
             "ended; they set up and wait there")
          .developer(),
      choice<&Config::attention>("attention", notice,
                                 "attention kernels on a GPU: auto = cuDNN's where they support the case, memory "
                                 "suffices and autotuning finds no others faster (of documents and windows: where it "
                                 "finds them faster), else the program's own"),
      number(
          "autotune_seconds", &Config::autotune_seconds, at_least(0), free, "s",
          "time limit for autotuning of algorithms and fused epilogues of GEMMs, and with attention auto of "
          "its "
          "kernels, at the start of a run on a GPU; 0 = the library's first answers, nothing fused, cuDNN's attention "
          "of whole sequences"),
      option("tuning_cache", &Config::tuning_cache, free,
             "folder for results of autotuning and cuDNN's plans, for later runs; auto = athanor in XDG_CACHE_HOME or "
             "~/.cache, none")
          .path()
          .developer(),
  };
}

Fields train_group() {
  return {
      number("train_iters", &Config::train_iters, at_least(0), free, "steps",
             "length of the run; give this or train_tokens")
          .alias({"steps", "max_iters", "max_steps", "train_steps"}),
      number("train_tokens", &Config::train_tokens, at_least(0), free, "tokens",
             "length of the run; becomes train_iters, rounded up")
          .alias({"max_tokens"}),
      number("global_batch_size", &Config::global_batch_size, between(1, kMaxCount), refused, "sequences",
             "sequences of one step, over all devices and micro-batches")
          .alias({"train_batch_size", "global_train_batch_size"})
          .required(),
      custom(
          "rampup_batch_size",
          Custom<Config>{read_ramp, write_ramp, ramp_schema, "null, or [start, increment, samples]"}, refused,
          "the batch begins with `start` sequences and grows by `increment` up to global_batch_size, in equal parts "
          "of the first `samples` sequences of the run; [start, global_batch_size - start, samples] is one jump; the "
          "order of samples stays what it is; null = always global_batch_size"),
      number("micro_batch_size", &Config::micro_batch_size, between(1, kMaxCount), free, "sequences",
             "sequences that one device computes at once; auto = what fits in memory and takes the shortest steps")
          .or_word("auto", 0)
          .alias({"batch_size", "train_micro_batch_size_per_gpu"}),
      number("gradient_accumulation_steps", &Config::gradient_accumulation_steps, between(0, kMaxCount), free, "",
             "follows from the batch sizes; if given it must agree with them; 0 = not given")
          .developer(),
      number("seq_length", &Config::seq_length, between(0, kMaxCount), refused, "tokens",
             "tokens of one sequence; 0 = max_position_embeddings of the model")
          .alias({"block_size", "sequence_length", "max_seq_length", "max_seq_len"}),
      custom(
          "sliding_window_schedule",
          Custom<Config>{read_windows, write_windows, windows_schema, "null, or list of [step, tokens]"}, notice,
          "sliding windows that change in training: from a step on, counted from 0, layers with a window see so many "
          "tokens, as in [[0, 128], [1000, 512]]; evaluations in the run too; the last is model.sliding_window, "
          "which the saved model has; null = that in all steps"),
      number("curriculum.total_curriculum_step", &Config::total_curriculum_step, between(0, kMaxCount), notice, "steps",
             "sequences warm up: they are cut into chunks that see only themselves, of curriculum.min_difficulty "
             "tokens at first, then linearly more, up to seq_length from this step on; a step keeps its tokens, and "
             "samples their order; 0 = never cut"),
      number("curriculum.min_difficulty", &Config::min_difficulty, between(1, kMaxCount), notice, "tokens",
             "length of the first chunks"),
      number("curriculum.difficulty_step", &Config::difficulty_step, between(1, kMaxCount), notice, "tokens",
             "lengths are multiples of this, 8 for speed")
          .developer(),
  };
}

Fields precision_group() {
  return {
      choice<&Config::precision>("precision", refused,
                                 "type of activations and GEMMs; fp8_*, mxfp8, nvfp4: linear layers of "
                                 "blocks multiply FP8 or FP4 values, everything else is as with bf16 "
                                 "(docs/precision.md)")
          .alias({"dtype"}),
      choice<&Config::master_weights>(
          "master_weights", refused,
          "weights that the optimizer updates. precision bf16: split = the weights and 16 more bits, with exactly the "
          "values of fp32 (a run may change between the two); bf16 = the weights themselves, rounded at random")
          .interchangeable({"fp32", "split"}),
      choice<&Config::grad_dtype>(
          "grad_dtype", notice,
          "type in which gradients of weights are summed over micro-batches and sent to other ranks; bf16 is rounded "
          "to nearest after each micro-batch and needs precision bf16 or one of 8 or 4 bits: see docs/precision.md"),
      choice<&Config::fp8_format>("fp8.format", refused,
                                  "type of gradients in GEMMs; hybrid = E5M2, e4m3 = E4M3 as everything else, auto "
                                  "= hybrid for fp8_tensorwise and fp8_delayed, else e4m3"),
      option("fp8.power_of_two_scales", &Config::fp8_power_of_two_scales, refused,
             "scales are powers of two, as those of mxfp8 always are")
          .developer(),
      number("fp8.amax_history_len", &Config::fp8_amax_history_len, between(1, 65536), refused, "steps",
             "fp8_delayed: a scale follows from the largest magnitude of so many steps before"),
      choice<&Config::fp8_amax_compute_algo>(
          "fp8.amax_compute_algo", refused,
          "fp8_delayed: max = the largest of fp8.amax_history_len steps, most_recent = of the last step alone")
          .developer(),
      number("fp8.margin", &Config::fp8_margin, between(0, 16), refused, "bits",
             "fp8_delayed: the largest magnitude becomes the largest code divided by 2 to this power, which leaves "
             "room for tensors that grow"),
      custom("fp8.exclude", names<&Config::fp8_exclude>("list of patterns"), refused,
             "linear layers that stay in bf16: patterns (* and ?) of names in files, such as *.mlp.down_proj.weight"),
      number("fp8.min_size", &Config::fp8_min_size, at_least(0), refused, "",
             "linear layers with fewer inputs or outputs stay in bf16")
          .developer(),
      option("fp8.lm_head", &Config::fp8_lm_head, refused,
             "the GEMM that gives logits, and its gradients, read FP8 values, too"),
      number("fp8.num_layers_at_start_in_bf16", &Config::num_layers_at_start_in_bf16, between(0, kMaxCount), refused,
             "blocks", "first blocks that stay in bf16"),
      number("fp8.num_layers_at_end_in_bf16", &Config::num_layers_at_end_in_bf16, between(0, kMaxCount), refused,
             "blocks", "last blocks that stay in bf16")
          .unset_is("0; with nvfp4 15 % of the blocks, rounded up"),
      number("fp16.loss_scale", &Config::loss_scale, at_least(0), notice, "", "constant loss scale; 0 = dynamic"),
      number("fp16.initial_loss_scale", &Config::initial_loss_scale, above(0), notice, "", "first dynamic loss scale")
          .developer(),
      number("fp16.loss_scale_window", &Config::loss_scale_window, at_least(1), notice, "steps",
             "finite steps after which the scale doubles")
          .developer(),
      number("fp16.hysteresis", &Config::hysteresis, at_least(1), notice, "steps", "overflows before the scale halves")
          .developer(),
      number("fp16.min_loss_scale", &Config::min_loss_scale, above(0), notice, "", "the scale never falls below")
          .developer(),
  };
}

Fields memory_group() {
  return {
      choice<&Config::recompute_granularity>("recompute_granularity", free,
                                             "activations recomputed in the backward pass: none, selective = the cheap "
                                             "ones, full = whole blocks; at least: the plan takes more where memory "
                                             "needs it or steps become faster"),
      number("recompute_num_layers", &Config::recompute_num_layers, between(1, 65536), free, "blocks",
             "full: every n-th block is recomputed as a whole, the others selectively"),
      number("memory_limit_gib", &Config::memory_limit_gib, at_least(0), free, "GiB",
             "memory that the run may use on one device; 0 = what the device or the control group has"),
      number("runtime_reserve_mib", &Config::runtime_reserve_mib, at_least(0), free, "MiB",
             "part of the limit that the plan leaves to libraries and the system; auto = 256, on a GPU 1024")
          .or_word("auto", -1)
          .developer(),
      number("loss_chunk_rows", &Config::loss_chunk_rows, at_least(0), free, "rows",
             "rows of logits held at once; 0 = up to 8192, fewer where memory is short")
          .developer(),
      choice<&Config::offload_optimizer>(
          "offload.optimizer", free,
          "on a GPU: cpu = masters and optimizer states live in pinned host memory and pass through the GPU in each "
          "update, which changes no bit; auto = only where the plan does not fit the GPU otherwise; see "
          "docs/training.md"),
      choice<&Config::offload_activations>(
          "offload.activations", free,
          "on a GPU, with recompute_granularity full: cpu = the inputs of recomputed blocks wait for backward in "
          "pinned host memory, which changes no bit; auto = only where the plan does not fit the GPU otherwise"),
      choice<&Config::offload_params>(
          "offload.params", free,
          "on a GPU, of one rank or with zero_stage 3: cpu = weights and gradients of units (embedding, each block, "
          "head) are in pinned host memory "
          "while "
          "the unit is not in use, which changes no bit; auto = those of as few units as the plan needs to fit; see "
          "docs/training.md"),
      number("offload.host_memory_limit_gib", &Config::host_memory_limit_gib, at_least(0), free, "GiB",
             "offload.optimizer, offload.activations, offload.params: host memory that a rank may use for them; 0 = "
             "what is available, divided among the machine's ranks"),
  };
}

Fields ranks_group() {
  return {
      number("zero_stage", &Config::zero_stage, between(0, 3), free, "",
             "what the ranks share out instead of each holding all: 0 nothing, 1 optimizer states, 2 also gradients, 3 "
             "also weights; see docs/distributed.md"),
      option("zero_quantized_gradients", &Config::zero_quantized_gradients, notice,
             "zero_stage 1 and 2: ranks send gradients in 4 bits, or with data_parallel_replicate_size above 1 in 8 "
             "bits within a copy and 4 between copies: see docs/distributed.md"),
      option("zero_quantized_weights", &Config::zero_quantized_weights, refused,
             "zero_stage 1 and 2, precision bf16: ranks send how far their weights are from what they sent before, in "
             "4 bits: see docs/distributed.md"),
      number("data_parallel_shard_size", &Config::data_parallel_shard_size, between(0, 65536), free, "ranks",
             "ranks that share out one copy; 0 = all, divided by data_parallel_replicate_size")
          .developer()
          .alias({"data_parallel_shard_degree"}),
      number("data_parallel_replicate_size", &Config::data_parallel_replicate_size, between(1, 65536), free, "ranks",
             "copies of the sharded state, such as one per machine")
          .alias({"data_parallel_replicate_degree"}),
      number(
          "pipeline_parallel_size", &Config::pipeline_parallel_size, between(1, 65536), free, "ranks",
          "stages of a pipeline: ranks that each have some of the blocks, and pass micro-batches on to each other: see "
          "docs/distributed.md")
          .alias({"pipeline_model_parallel_size", "pipeline_parallel_degree"}),
      number("tensor_parallel_size", &Config::tensor_parallel_size, between(1, 65536), free, "ranks",
             "ranks that share the heads and the inner columns of every block and the vocabulary, and read the same "
             "samples: see docs/distributed.md")
          .alias({"tensor_model_parallel_size", "tensor_parallel_degree"}),
      option("sequence_parallel", &Config::sequence_parallel, free,
             "tensor_parallel_size: the ranks also share the rows of what lies between the GEMMs; seq_length must "
             "divide among them"),
      number("context_parallel_size", &Config::context_parallel_size, between(1, 65536), free, "ranks",
             "ranks that share every sequence, each with two of its pieces; seq_length must be a multiple of twice as "
             "many: see docs/distributed.md")
          .alias({"context_parallel_degree"}),
      choice<&Config::context_parallel_method>(
          "context_parallel_method", free,
          "context_parallel_size: ranks get each other's keys and values all at once (gather), or those of one rank "
          "after the other, beside attention (ring); auto = by the modelled step: see docs/distributed.md")
          .developer(),
      number("expert_parallel_size", &Config::expert_parallel_size, between(1, 65536), free, "ranks",
             "data-parallel ranks among which the experts of every layer are divided; tokens are sent to the ranks of "
             "their experts and back: see docs/distributed.md")
          .alias({"expert_model_parallel_size", "expert_parallel_degree"}),
      choice<&Config::deterministic_reduction>(
          "deterministic_reduction", notice,
          "sums over ranks: fixed_order = the same bits for the same ranks; rank_invariant = the same bits for any "
          "number of ranks that divides logical_shards, for more memory: see docs/distributed.md"),
      number("logical_shards", &Config::logical_shards, between(1, 65536), notice, "",
             "rank_invariant: a power of two; the parts of a step whose gradients are added in a fixed tree. As many "
             "ranks as this at most")
          .developer(),
      choice<&Config::pipeline_schedule>(
          "pipeline.schedule", free,
          "pipeline_parallel_size: in which order a stage runs its micro-batches. 1f1b = forward and backward in turn; "
          "interleaved = the same with several parts of the model on each stage, which wait less and send more; gpipe "
          "= all forward, then all backward, which keeps most in memory; zb1p = 1f1b that computes gradients of "
          "weights later, where a stage would wait; zbv = the same with two parts on each stage, the first and the "
          "last one on the first stage"),
      number("pipeline.virtual_size", &Config::virtual_pipeline_size, between(0, 1024), free, "",
             "pipeline.schedule interleaved: parts of the model on each stage; 0 = 2 with interleaved and zbv, else 1")
          .alias({"virtual_pipeline_model_parallel_size"}),
      custom("pipeline.layout", Custom<Config>{read_layout, write_layout, counts_schema, "null, or list of integers"},
             free,
             "pipeline_parallel_size: blocks of each part of the model, from the first one on; part p is on stage p "
             "mod pipeline_parallel_size; null = balanced, with the head counted as its GEMMs cost"),
      number("timeouts.connect", &Config::distributed_timeout, above(0), free, "s",
             "all ranks must connect within this time")
          .developer(),
      number("timeouts.startup", &Config::startup_timeout, above(0), free, "s",
             "a rank that others wait for must continue within this time before the first steps: loading, planning, "
             "search for algorithms"),
      number(
          "timeouts.step", &Config::step_timeout, at_least(0), free, "s",
          "the same, in a step; 0 = 9 s, or three times the 99th percentile of the latest steps, whichever is longer"),
      number("timeouts.eval", &Config::eval_timeout, above(0), free, "s", "the same, in an evaluation").developer(),
      number("timeouts.save", &Config::save_timeout, above(0), free, "s", "the same, while a checkpoint is written")
          .developer(),
      number("timeouts.heartbeat", &Config::heartbeat_timeout, above(0), free, "s",
             "a process without a heartbeat for this time is lost (stopped or disconnected), whatever it is doing")
          .developer(),
  };
}

Fields report_group() {
  return {
      number("eval_interval", &Config::eval_interval, at_least(0), free, "steps",
             "steps between evaluations; 0 = never"),
      number("eval_iters", &Config::eval_iters, at_least(0), free, "batches",
             "global batches of one evaluation, of windows that are spread over all of valid_data; 0 = every window"),
      number("stop_at_loss", &Config::stop_at_loss, at_least(0), free, "nats",
             "the run ends with the first evaluation whose loss on valid_data is this or less; 0 = off"),
      option("multiple_choice_data", &Config::multiple_choice_data, free,
             "JSON lines of multiple-choice questions (data/README.md) to answer at every evaluation; empty = none")
          .path(),
      number("log_interval", &Config::log_interval, at_least(1), free, "steps", "steps between log lines")
          .alias({"log_freq", "steps_per_print"}),
      option("profile", &Config::profile, free,
             "path of a Chrome trace of every op, of kernels on a GPU, and a table of ops at the end; empty = off")
          .path(),
      choice<&Config::log_level>("logging.level", free, "least severe messages that are shown"),
      option("logging.noise_scale", &Config::log_noise_scale, free,
             "log the gradient noise scale, the batch size in tokens above which larger batches save few steps; it "
             "compares the gradient of a step with that of its first micro-batch, so a step needs two on every rank"),
      number("logging.quantization_interval", &Config::log_quantization_interval, at_least(0), free, "steps",
             "steps between records in metrics.jsonl of what each linear layer lost by quantization: values that "
             "saturate or underflow, the largest; changes no bit of the run; 0 = never"),
      number("logging.routing_interval", &Config::log_routing_interval, at_least(0), free, "steps",
             "experts: steps between records in metrics.jsonl of each layer's router: shares of the most and the least "
             "chosen expert, experts that no token chose, entropy; changes no bit of the run; 0 = never"),
      option("logging.tensorboard", &Config::tensorboard, free, "write TensorBoard event files to the run folder"),
      option("logging.jsonl", &Config::log_jsonl, free, "write metrics.jsonl, one record a step, to the run folder")
          .developer(),
      choice<&Config::progress>("logging.progress", free, "progress line; auto = on a terminal"),
      number(
          "logging.peak_tflops", &Config::peak_tflops, at_least(0), free, "TFLOP/s",
          "peak of one device, which MFU is a fraction of; 0 = the data sheet's, on CPUs what their number of cores, "
          "clock and vector width allow, else measured at the start of a run")
          .developer(),
  };
}

Fields checkpoint_group() {
  return {
      number("save_interval", &Config::save_interval, at_least(0), free, "steps",
             "steps between checkpoints; 0 = only at the end")
          .alias({"checkpoint_interval"}),
      number("exit_duration_in_mins", &Config::exit_duration_in_mins, at_least(0), free, "min",
             "save and stop after this time; 0 = no limit"),
      number("checkpoint.interval_minutes", &Config::save_interval_minutes, at_least(0), free, "min",
             "minutes between checkpoints, besides save_interval; 0 = off"),
      choice<&Config::async_save>(
          "checkpoint.async_save", free,
          "write checkpoints while training goes on, from a copy in host memory (12 bytes per parameter, divided by "
          "the "
          "ranks); auto = where the device has memory of its own; the last one of a run is always waited for"),
      number("checkpoint.keep_latest_k", &Config::keep_latest_k, at_least(0), free, "",
             "older checkpoints are deleted; 0 = all are kept")
          .alias({"most_recent_k", "save_num_checkpoints_to_keep"}),
      number("checkpoint.exit_signal_budget", &Config::exit_signal_budget, above(0), free, "s",
             "time from a stop signal to the end of the last checkpoint")
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
