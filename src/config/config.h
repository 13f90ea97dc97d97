// All settings of a run as plain data, and their conversion from and to JSON. Keys, defaults, ranges, help and resume
// rules of all members are in the tables (fields.h); a member is named as its option was before options had sections.
// Nothing here opens data or queries the machine.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "config/choices.h"
#include "config/model_config.h"

namespace athanor {

// One entry of train_data or valid_data: files that are read as one stream.
struct DataSource {
  std::string path;     // file or glob
  double weight = 1.0;  // share of the blend, relative to the other entries
  TokenDtype dtype = TokenDtype::automatic;
  std::string name = {};  // "" = path
};
inline const std::string& source_name(const DataSource& source) {
  return source.name.empty() ? source.path : source.name;
}

// One entry of train_data_stages: weights of train_data from a token count of the run on.
struct DataStage {
  int64_t from_tokens = 0;
  std::vector<std::pair<std::string, double>> weights;  // by source_name(); sources not listed keep their weight
};

// A token, given by its id or by its text in the tokenizer stored in the folder of train_data.
struct TokenName {
  int64_t id = -1;   // -1: look up `text`
  std::string text;  // "" if the id is given
  bool operator==(const TokenName&) const = default;
};

// fim.tokens: sentinel tokens for fill-in-the-middle.
struct FimTokens {
  TokenName prefix, suffix, middle;
  bool operator==(const FimTokens&) const = default;
};

// One entry of param_groups. Values that are not given are those of the run.
struct ParamGroupConfig {
  std::string match = "*";  // pattern (* and ?) of tensor names in files
  std::optional<Role> role;
  std::optional<RuleName> optimizer;
  double lr_factor = 1.0;
  double weight_decay = -1.0;  // here and in the next line: below 0 = not given
  double beta1 = -1.0, beta2 = -1.0, eps = -1.0, momentum = -1.0;
  bool frozen = false;
  bool operator==(const ParamGroupConfig&) const = default;
};
// Inputs of default_param_groups().
struct GroupDefaults {
  RuleName optimizer = RuleName::adamw;
  ModelType model = ModelType::gpt2;
  double mup_width = 1, weight_decay = 0;  // weight_decay is used only if mup_width is not 1
};
// The default groups, which come after those of the configuration: no weight decay for vectors; Muon updates only
// hidden matrices. With muP the learning rates of hidden matrices (unless Muon updates them) and of the final norm,
// which sets the scale of the logits, are divided by the width.
std::vector<ParamGroupConfig> default_param_groups(const GroupDefaults&);

// rampup_batch_size: the batch grows from `start` by `increment` up to global_batch_size; each size is used for an
// equal part of the first `samples` sequences of a run.
struct BatchRamp {
  int64_t start = 0, increment = 0, samples = 0;  // sequences; start 0: no ramp
};

// One stage of sliding_window_schedule: window of sliding-window layers, in tokens, from a step on (counted from 0).
struct WindowStage {
  int64_t from_step = 0, tokens = 0;
};

// An entry of multi_token_prediction: the weight of one more token ahead, which falls linearly to 0 between two steps.
struct AheadToken {
  double weight = 0;
  int64_t decay_start = 0, decay_end = 0;  // steps, counted from 0; decay_end 0: no decay
};

inline constexpr double kUnsetMinLr = 0.1;  // schedule.min_lr that is not given, as a part of learning_rate

struct Config {
  ModelConfig model;
  // run
  std::string save;            // run folder; "" = nothing is written
  std::string load = "auto";   // "auto" = newest valid checkpoint in `save`, "none", or a folder
  int64_t load_step = -1;      // -1 = newest
  std::string init_from;       // folder of a model that initializes the weights of a new run; "" = random weights
  std::string teacher;         // distillation: folder of the teacher model; "" = none
  std::string teacher_logits;  // distillation: folder of cached teacher logits, used instead of `teacher`; "" = none
  DistillLoss distill_loss = DistillLoss::kl;
  double distill_temperature = 1.0;
  double distill_ce_weight = 1.0;  // factor of the cross-entropy in the loss
  double prune_sparsity = 0.0;     // final fraction of zeros in each pruned matrix; 0 = off
  PruneMethod prune_method = PruneMethod::magnitude;
  double srste_decay = 2e-4;  // SR-STE: this times the weight is added to the gradient of pruned weights
  PrunePattern prune_pattern = PrunePattern::unstructured;
  PruneScope prune_scope = PruneScope::layer;
  int64_t prune_start = 0, prune_interval = 100;  // steps
  int64_t prune_end = -1;                         // -1 = unset; validate() sets it to prune_start
  std::vector<std::string> prune_exclude = {};    // patterns of tensor names in files
  std::string prune_mask_from;  // folder of a model whose smallest weights give the mask; "" = the run's own weights
  int64_t seed = 1234;
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // 0 = all cores this process may use
  bool cuda_graph = true;
  bool programmatic_launch = true;
  CudaAttention attention = CudaAttention::automatic;
  double autotune_seconds = 10;
  std::string tuning_cache = "auto";  // folder; "auto" = ~/.cache/athanor, "none"
  log::Level log_level = log::Level::info;
  // train
  int64_t train_iters = 0;
  int64_t train_tokens = 0;       // alternative to train_iters; 0 after validate()
  int64_t global_batch_size = 0;  // sequences per step
  BatchRamp rampup_batch_size;
  int64_t micro_batch_size = 0;                      // sequences per device and micro-batch; 0 = "auto"
  int64_t gradient_accumulation_steps = 0;           // 0 = not checked
  int64_t seq_length = 0;                            // tokens; never 0 after validate()
  std::vector<WindowStage> sliding_window_schedule;  // empty: model.sliding_window in all steps
  int64_t total_curriculum_step = 0;                 // steps of the sequence length warm-up; 0 = none
  int64_t min_difficulty = 64;                       // tokens; length at the start of the warm-up
  int64_t difficulty_step = 8;                       // tokens; lengths of the warm-up are multiples of it
  // low-rank adapters
  int64_t lora_rank = 0;  // 0 = none
  double lora_alpha = 16.0;
  double lora_dropout = 0.0;
  std::vector<std::string> lora_targets = {"all-linear"};
  LoraVariant lora_variant = LoraVariant::lora;
  BasePrecision base_precision = BasePrecision::none;
  bool base_double_quant = true;
  std::string adapter;  // folder of adapters that initialize a new run; "" = random A, zero B
  // optimizer
  RuleName optimizer = RuleName::adamw;
  double learning_rate = 0.0;
  double min_lr = -1.0;  // -1 = unset; validate() sets kUnsetMinLr of learning_rate; with 1cycle lr_warmup_init / 1e4
  DecayStyle lr_decay_style = DecayStyle::cosine;
  int64_t lr_warmup_iters = 0;   // with 1cycle 0 = unset; validate() sets it to 30 % of lr_decay_iters
  double lr_warmup_init = -1.0;  // -1 = unset; validate() sets it to 0, or with 1cycle to learning_rate / 25
  int64_t lr_decay_iters = 0;    // 0 = unset; validate() sets it to train_iters
  WsdDecay lr_wsd_decay_style = WsdDecay::minus_sqrt;
  int64_t lr_wsd_decay_iters = 0;  // WSD: last part of lr_decay_iters; 0 = unset; validate() sets it to a tenth of it
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  int64_t momentum_warmup_iters = 0;
  double low_momentum = 0.85;  // momentum before the momentum warm-up, and at the peak of 1cycle
  double weight_decay = 0.1;
  bool cautious_weight_decay = false;
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9;
  double lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  MuonScale muon_scale = MuonScale::match_rms;
  MuonCoefficients muon_coefficients = MuonCoefficients::quintic;
  double normuon_beta2 = 0.95;
  int64_t min_8bit_size = 4096;
  double update_clip_threshold = 0.0;     // adamw: maximum RMS of a tensor's update; 0 = off
  double router_bias_update_rate = 1e-3;  // dots1, deepseek_v3: update rate of router biases per step
  AuxLossScope aux_loss_scope = AuxLossScope::sequence;
  double expert_buffer_factor = 0.0;    // slots per expert-parallel rank relative to balanced routing; 0 = any routing
  double expert_capacity_factor = 0.0;  // maximum load of an expert relative to an equal share; 0 = unlimited
  double qk_clip_threshold = 0.0;       // maximum attention logit that is not scaled down; 0 = off
  double ema_decay = 0.0;               // decay of the moving average of the weights; 0 = off
  int64_t tail_average_start = 0;       // first steps left out of the equal-weight average; 0 = no average
  int64_t freeze_step = 0;              // 1-bit optimizers: first steps, with uncompressed gradients
  int64_t local_steps = 0;              // local SGD/DiLoCo: steps between two averages over
                                        // data_parallel_replicate_size; 0 = off
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  int64_t local_fragments = 1;  // parts of the model that are averaged in rotation within local_steps
  int64_t outer_delay = 0;      // steps from the end of a fragment's round to its outer step
  double outer_mixing = 0.0;    // fraction of a worker's own weights that an outer step keeps
  DeltaDtype outer_delta_dtype = DeltaDtype::fp32;
  int64_t mup_base_width = 0;  // 0 = off
  std::vector<ParamGroupConfig> param_groups = default_param_groups({});
  WeightDecayStyle weight_decay_style = WeightDecayStyle::constant;
  double end_weight_decay = -1.0;  // -1 = unset; validate() sets it to weight_decay
  double hidden_dropout = 0.0;     // probability with which elements of embeddings and branches are dropped
  double stochastic_depth = 0.0;   // probability with which the last block's branches are dropped
  StochasticDepthMode stochastic_depth_mode = StochasticDepthMode::linear;
  double z_loss = 0.0;
  std::vector<AheadToken> multi_token_prediction;  // weights of the second token ahead, the third, ...
  double clip_grad = 1.0;                          // maximum global gradient norm; 0 = off
  int64_t max_skipped_steps = 20;                  // consecutive non-finite steps before the run stops
  double loss_spike_zscore = 0.0;                  // 0 = off
  int64_t max_consecutive_spikes = 3;
  bool rollback = false;
  // precision
  Precision precision = Precision::bf16;
  GradientFormat fp8_format = GradientFormat::automatic;
  bool fp8_power_of_two_scales = false;
  int64_t fp8_amax_history_len = 1024;
  AmaxComputeAlgo fp8_amax_compute_algo = AmaxComputeAlgo::max;
  int64_t fp8_margin = 0;
  std::vector<std::string> fp8_exclude = {};  // patterns of tensor names in files
  int64_t fp8_min_size = 0;
  bool fp8_lm_head = false;
  int64_t num_layers_at_start_in_bf16 = 0;
  int64_t num_layers_at_end_in_bf16 = -1;  // -1 = unset; validate() sets it to 0, or with nvfp4 to 15 % of the blocks
  MasterWeights master_weights = MasterWeights::fp32;
  SumDtype grad_dtype = SumDtype::fp32;
  SumDtype exp_avg_dtype = SumDtype::fp32;
  SumDtype exp_avg_sq_dtype = SumDtype::fp32;
  double loss_scale = 0.0;  // fp16 only; 0 = dynamic
  double initial_loss_scale = 65536.0;
  int64_t loss_scale_window = 1000;  // finite steps before the scale doubles
  int64_t hysteresis = 2;            // overflows before the scale halves
  double min_loss_scale = 1.0;
  // memory
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  int64_t recompute_num_layers = 1;  // every k-th block is recomputed
  double memory_limit_gib = 0.0;     // 0 = memory of the machine or its control group
  int64_t runtime_reserve_mib = -1;  // memory that the plan leaves free for libraries and the system; -1: auto
  int64_t loss_chunk_rows = 0;       // rows of logits computed at once; 0 = chosen by the plan
  Offload offload_optimizer = Offload::none;
  Offload offload_activations = Offload::none;
  Offload offload_params = Offload::none;
  double host_memory_limit_gib = 0.0;  // 0 = available memory, divided among the ranks of a machine
  // ranks
  int64_t data_parallel_replicate_size = 1;
  int64_t data_parallel_shard_size = 0;  // 0 = all remaining ranks
  int64_t zero_stage = 1;                // 0 = nothing is sharded
  bool zero_quantized_gradients = false, zero_quantized_weights = false;
  int64_t pipeline_parallel_size = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::one_f_one_b;
  int64_t virtual_pipeline_size = 0;          // model chunks per stage; 0 = unset; validate() sets it by the schedule
  std::vector<int64_t> pipeline_layout = {};  // blocks of each chunk; empty = balanced
  int64_t tensor_parallel_size = 1;
  bool sequence_parallel = false;
  int64_t context_parallel_size = 1;
  int64_t expert_parallel_size = 1;
  ContextMethod context_parallel_method = ContextMethod::automatic;
  DeterministicReduction deterministic_reduction = DeterministicReduction::fixed_order;
  int64_t logical_shards = 8;        // used by rank_invariant
  double distributed_timeout = 0.0;  // seconds, like all timeouts below; 0 = startup_timeout
  double startup_timeout = 600.0;
  double step_timeout = 0.0;  // 0 = derived from measured step times
  double eval_timeout = 600.0;
  double save_timeout = 600.0;
  double heartbeat_timeout = 8.0;
  // data
  std::vector<DataSource> train_data;
  std::vector<DataStage> train_data_stages;
  std::vector<DataSource> valid_data;
  Packing packing = Packing::contiguous;
  int64_t packing_documents = 65536;  // consecutive documents that are packed together
  int64_t bos_token_id = -1;          // -1 = none
  bool reset_attention_mask = false;
  bool reset_position_ids = false;
  bool eod_mask_loss = false;
  int64_t eod_token_id = -1;               // -1 = the end-of-document token of the tokenizer next to train_data
  int64_t max_documents_per_sequence = 0;  // 0 = unset; validate() sets it if reset_attention_mask is on
  double fim_rate = 0.0;                   // fraction of documents reordered so that the middle comes last; 0 = off
  double fim_spm_rate = 0.5;               // fraction of the reordered documents in the order suffix, prefix, middle
  std::optional<FimTokens> fim_tokens;
  FimLevel fim_level = FimLevel::token;
  bool horizontal_flip = false;  // see Augmentation
  int64_t crop_padding = 0;
  // evaluation
  int64_t eval_interval = 250;  // steps; 0 = never
  int64_t eval_iters = 20;      // global batches per evaluation
  EvalWeights eval_weights = EvalWeights::current;
  double stop_at_loss = 0.0;         // 0 = off
  std::string multiple_choice_data;  // multiple-choice questions, JSON lines; "" = none
  // checkpoints and limits
  int64_t save_interval = 1000;  // steps; 0 = only at the end
  AsyncSave async_save = AsyncSave::automatic;
  double save_interval_minutes = 0.0;  // 0 = off
  int64_t keep_latest_k = 0;           // 0 = all
  int64_t memory_interval = 0;         // steps between checkpoints in memory; 0 = off
  std::string memory_folder;           // of checkpoints in memory; "": below /dev/shm
  double exit_signal_budget = 20.0;    // maximum seconds between a stop signal and the end of the last checkpoint
  double exit_duration_in_mins = 0.0;  // 0 = no limit
  // reports
  int64_t log_interval = 10;  // steps
  bool log_noise_scale = false;
  int64_t log_quantization_interval = 0;  // steps; 0 = never
  int64_t log_routing_interval = 100;     // steps; 0 = never
  bool tensorboard = true;
  bool log_jsonl = true;
  Progress progress = Progress::automatic;
  double peak_tflops = 0.0;  // peak of the device, for MFU; 0 = from a table or measured
  std::string profile;       // path of a Chrome trace of all ops; "" = off
};

// The loaders throw Error(..., Exit::usage) naming file, line and key. Overrides are "a.b=value", where value is JSON
// or else a string; they win over the file. Notes, for example on aliases, are appended to `notices` unless it is null.
// Path "-" reads standard input. The result is validated and complete.
Config load_config(const std::string& path, std::span<const std::string> overrides = {},
                   std::vector<std::string>* notices = nullptr);
// `name` is the file name in messages; a model path is relative to `base_dir`.
Config parse_config(std::string_view text, const std::string& name, const std::string& base_dir,
                    std::span<const std::string> overrides = {}, std::vector<std::string>* notices = nullptr);

// Parses only a model shape, from the text of a "model" object.
ModelConfig parse_model_config(std::string_view text, const std::string& name);
// Reads a published config.json: missing keys get the defaults of transformers' classes, dropout is ignored; notices
// say so.
ModelConfig load_model_config(const std::string& path, std::vector<std::string>* notices = nullptr);

// Refuses combinations that cannot work and fills values derived from other keys (min_lr, lr_decay_iters, ...).
void validate(Config&);
void validate_pipeline(Config&);  // the parts of validate() for the keys of one topic
void validate_tensor_parallel(const Config&);
void validate_context_parallel(const Config&);
void validate_experts(const Config&);
void validate_images(const Config&);
void validate_one_bit(const Config&);
void validate_offload(const Config&);
void validate_packed(const Config&);
void validate_pruning(Config&);
void validate_adapters(const Config&);
void validate_distillation(const Config&);
void validate_data(Config&);  // also fills derived values

// True if weights are pruned after this many steps; and the fraction of zeros after the most recent pruning.
bool prunes_after(const Config&, int64_t steps);
double sparsity_after(const Config&, int64_t steps);
// True if a tensor name in files matches one of the patterns (* and ?), for example of pruning.exclude.
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

// True if the run has a teacher or its cached logits.
bool distills(const Config&);

// For a validated config: one line for each key that differs from its default but has no effect with the other keys.
std::vector<std::string> keys_without_effect(const Config&);
// True if the run, or one of its param groups, uses the optimizer.
bool updates_by(const Config&, RuleName);
// True if the data_parallel_replicate_size replicas do not all-reduce their gradients: with local_steps, or with an
// optimizer that compresses momentum.
bool copies_are_workers(const Config&);
// For an optimizer that compresses momentum: its counterpart with uncompressed gradients.
std::string_view without_compression(RuleName);

// Sequences in the step that starts after `consumed` sequences.
int64_t batch_size_at(const Config&, int64_t consumed);
// Number of sequences in the first `steps` steps of a run.
int64_t samples_after(const Config&, int64_t steps);
// Number of steps until at least `samples` sequences are consumed.
int64_t steps_for(const Config&, int64_t samples);
// Window of sliding-window layers, in tokens, at a step counted from 0.
int64_t sliding_window_at(const Config&, int64_t step);
// Weights of multi_token_prediction in a step, counted from 0.
std::vector<float> ahead_weights_at(const Config&, int64_t step);
// Tokens per chunk of this sequence of the run; seq_length: the sequence is not cut.
int64_t chunk_length_at(const Config&, int64_t sample);
// Maximum number of chunks of a sequence.
int64_t max_chunks(const Config&);
// First sample of a stage of train_data_stages; all its tokens are at or after from_tokens.
int64_t first_sample_of(const Config&, const DataStage&);
// Weights of train_data in stage `stage` of a run: stage 0 has those of its entries, stage k those of
// train_data_stages[k - 1].
std::vector<double> source_weights(const Config&, size_t stage);
// Greatest common divisor of the batch sizes of all steps.
int64_t common_batch_size(const Config&);

// Every key with its current value; parse_config() of the text gives the same Config.
std::string dump_resolved(const Config&);
// One line for each key and value, except for the dotted keys `without`.
std::string dump_lines(const Config&, std::span<const std::string_view> without);
std::string json_schema();
std::string defaults();             // a JSON object of all defaults; null where a value must be given
std::string config_reference();     // configs/README.md
std::string developer_reference();  // docs/contributing.md: options that are not in the schema and not in
                                    // configs/README.md

struct ConfigChange {
  std::string key;
  std::string old_value;  // as JSON
  std::string new_value;
  OnResume rule = OnResume::free;
};
// Differences between the configuration stored in a checkpoint (dump_resolved) and the current one, in table order.
std::vector<ConfigChange> resume_changes(const std::string& old_resolved_json, const Config& now);

}  // namespace athanor
