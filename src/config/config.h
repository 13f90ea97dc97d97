// Everything a run can be told, as plain data, and the ways in and out of JSON. Keys, defaults, ranges, help and resume
// rules of all members live in the tables of config_fields.cc and optimizer_fields.cc. Nothing here opens data or looks
// at the machine.
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

// One entry of train_data_stages: the weights of train_data from some token of the run on.
struct DataStage {
  int64_t from_tokens = 0;
  std::vector<std::pair<std::string, double>> weights;  // by source_name(); sources left out keep their weight
};

// A token, by its id or by its text in the tokenizer that lies in the folder of train_data.
struct TokenName {
  int64_t id = -1;   // -1: that of `text`
  std::string text;  // "" where the id is given
  bool operator==(const TokenName&) const = default;
};

// fim_tokens: the sentinels of fill-in-the-middle.
struct FimTokens {
  TokenName prefix, suffix, middle;
  bool operator==(const FimTokens&) const = default;
};

// One entry of param_groups. What is not given is the run's own.
struct ParamGroupConfig {
  std::string match = "*";  // pattern of names in files: * and ?
  std::optional<Role> role;
  std::optional<RuleName> optimizer;
  double lr_factor = 1.0;
  double weight_decay = -1.0;  // these: below 0 = not given
  double beta1 = -1.0, beta2 = -1.0, eps = -1.0, momentum = -1.0;
  bool frozen = false;
  bool operator==(const ParamGroupConfig&) const = default;
};
// What the groups behind those of a configuration follow from.
struct GroupDefaults {
  RuleName optimizer = RuleName::adamw;
  ModelType model = ModelType::gpt2;
  double mup_width = 1, weight_decay = 0;  // with a width of 1, the others have no part in it
};
// Vectors do not decay, and Muon updates hidden matrices alone. With muP the rate of hidden matrices (not Muon's) and
// of the final norm, which stands for the scale of the logits, is divided by the width.
std::vector<ParamGroupConfig> default_param_groups(const GroupDefaults&);

// rampup_batch_size: the batch grows from `start` by `increment` up to global_batch_size, in equal parts of the first
// `samples` sequences of a run.
struct BatchRamp {
  int64_t start = 0, increment = 0, samples = 0;  // sequences; start 0: no ramp
};

// sliding_window_schedule: from a step on, counted from 0, sliding layers see so many tokens.
struct WindowStage {
  int64_t from_step = 0, tokens = 0;
};

// An entry of multi_token_prediction: the weight of one more token ahead, which falls linearly to 0 between two steps.
struct AheadToken {
  double weight = 0;
  int64_t decay_start = 0, decay_end = 0;  // steps, counted from 0; decay_end 0: it stays
};

struct Config {
  ModelConfig model;
  // run
  std::string save;            // run folder; "" = nothing is written
  std::string load = "auto";   // "auto" = newest valid checkpoint in save, "none", or a folder
  int64_t load_step = -1;      // -1 = newest
  std::string init_from;       // folder of a model whose weights a new run starts with; "" = random ones
  std::string teacher;         // folder of a model whose distribution the run's learns from; "" = none
  std::string teacher_logits;  // folder of such a model's cached logits, in place of it; "" = none
  DistillLoss distill_loss = DistillLoss::kl;
  double distill_temperature = 1.0;
  double distill_ce_weight = 1.0;  // factor of the cross-entropy in the loss
  double prune_sparsity = 0.0;     // share of each pruned matrix that is zero in the end; 0 = off
  PruneMethod prune_method = PruneMethod::magnitude;
  double srste_decay = 2e-4;  // factor of the weights that are not kept in their gradients
  PrunePattern prune_pattern = PrunePattern::unstructured;
  PruneScope prune_scope = PruneScope::layer;
  int64_t prune_start = 0, prune_interval = 100;  // steps
  int64_t prune_end = -1;                         // -1 until validate(): prune_start
  std::vector<std::string> prune_exclude = {};    // patterns of names in files
  std::string prune_mask_from;  // folder of a model whose smallest weights are pruned; "" = the run's own
  int64_t seed = 1234;
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // 0 = all cores this process may use
  CpuGemm cpu_gemm = CpuGemm::builtin;
  bool cuda_graph = true;
  bool programmatic_launch = true;
  CudaAttention attention = CudaAttention::automatic;
  double autotune_seconds = 10;
  std::string tuning_cache = "auto";  // folder; "auto" = ~/.cache/athanor, "none"
  log::Level log_level = log::Level::info;
  // train
  int64_t train_iters = 0;
  int64_t train_tokens = 0;       // alternative to train_iters; 0 after validate()
  int64_t global_batch_size = 0;  // sequences
  BatchRamp rampup_batch_size;
  int64_t micro_batch_size = 0;                      // sequences; 0 = "auto"
  int64_t gradient_accumulation_steps = 0;           // 0 = not checked
  int64_t seq_length = 0;                            // tokens; after validate() never 0
  std::vector<WindowStage> sliding_window_schedule;  // empty: model.sliding_window in all steps
  int64_t total_curriculum_step = 0;                 // steps of the warm-up of sequences; 0 = none
  int64_t min_difficulty = 64;                       // tokens of the first sequences
  int64_t difficulty_step = 8;                       // tokens; lengths are multiples of it
  // low-rank adapters
  int64_t lora_rank = 0;  // 0 = none
  double lora_alpha = 16.0;
  double lora_dropout = 0.0;
  std::vector<std::string> lora_targets = {"all-linear"};
  LoraVariant lora_variant = LoraVariant::lora;
  BasePrecision base_precision = BasePrecision::none;
  bool base_double_quant = true;
  std::string adapter;  // folder of adapters that a new run starts with; "" = random A, zero B
  // optimizer
  RuleName optimizer = RuleName::adamw;
  double learning_rate = 0.0;
  double min_lr = -1.0;  // -1 until validate(): 10 % of learning_rate; with 1cycle lr_warmup_init / 1e4
  DecayStyle lr_decay_style = DecayStyle::cosine;
  int64_t lr_warmup_iters = 0;   // with 1cycle 0 until validate(): 30 % of lr_decay_iters
  double lr_warmup_init = -1.0;  // -1 until validate(): 0; with 1cycle learning_rate / 25
  int64_t lr_decay_iters = 0;    // 0 until validate(): train_iters
  WsdDecay lr_wsd_decay_style = WsdDecay::minus_sqrt;
  int64_t lr_wsd_decay_iters = 0;  // last part of lr_decay_iters; with WSD 0 until validate(): a tenth of it
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  int64_t momentum_warmup_iters = 0;
  double low_momentum = 0.85;  // before the momentum warm-up, and at the peak of 1cycle
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
  double update_clip_threshold = 0.0;     // adamw: largest root mean square of a tensor's update; 0 = off
  double router_bias_update_rate = 1e-3;  // per step, of dots1
  double qk_clip_threshold = 0.0;         // largest attention score that is not scaled down; 0 = off
  double ema_decay = 0.0;                 // decay of the moving average of the weights; 0 = off
  int64_t tail_average_start = 0;         // steps before those of an equal-weight average of the weights; 0 = off
  int64_t freeze_step = 0;                // compresses(optimizer): steps with whole gradients
  int64_t local_steps = 0;                // steps between two averages over data_parallel_replicate_size; 0 = off
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  int64_t local_fragments = 1;  // parts of the model that take turns within local_steps
  int64_t mup_base_width = 0;   // 0 = off
  std::vector<ParamGroupConfig> param_groups = default_param_groups({});
  WeightDecayStyle weight_decay_style = WeightDecayStyle::constant;
  double end_weight_decay = -1.0;  // -1 until validate(): weight_decay
  double hidden_dropout = 0.0;     // probability with which elements of embeddings and branches are dropped
  double stochastic_depth = 0.0;   // probability with which the last block's branches are dropped
  StochasticDepthMode stochastic_depth_mode = StochasticDepthMode::linear;
  double z_loss = 0.0;
  std::vector<AheadToken> multi_token_prediction;  // of the second token ahead, the third, ...
  double clip_grad = 1.0;                          // largest global gradient norm; 0 = off
  int64_t max_skipped_steps = 20;                  // consecutive non-finite steps before the run stops
  double loss_spike_zscore = 0.0;                  // 0 = off
  int64_t max_consecutive_spikes = 3;
  bool rollback = false;
  // precision
  Precision precision = Precision::bf16;
  GradientCodes fp8_format = GradientCodes::automatic;
  bool fp8_power_of_two_scales = false;
  int64_t fp8_amax_history_len = 1024;
  AmaxComputeAlgo fp8_amax_compute_algo = AmaxComputeAlgo::max;
  int64_t fp8_margin = 0;
  std::vector<std::string> fp8_exclude = {};  // patterns of names in files
  int64_t fp8_min_size = 0;
  bool fp8_lm_head = false;
  int64_t num_layers_at_start_in_bf16 = 0;
  int64_t num_layers_at_end_in_bf16 = -1;  // -1 until validate(): 0; with nvfp4 15 % of the blocks
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
  double memory_limit_gib = 0.0;     // 0 = what the machine or its control group has
  int64_t runtime_reserve_mib = -1;  // kept free of the plan for libraries and the system; -1: auto
  int64_t loss_chunk_rows = 0;       // rows of logits held at once; 0 = chosen by the plan
  Offload offload_optimizer = Offload::none;
  Offload offload_activations = Offload::none;
  Offload offload_params = Offload::none;
  double host_memory_limit_gib = 0.0;  // 0 = what is available, shared among the ranks of a machine
  // ranks
  int64_t data_parallel_replicate_size = 1;
  int64_t data_parallel_shard_size = 0;  // 0 = the ranks that are left
  int64_t zero_stage = 1;                // 0 = nothing is sharded
  int64_t pipeline_parallel_size = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::one_f_one_b;
  int64_t virtual_pipeline_size = 0;          // parts of the model on each stage; 0 = by the schedule, until validate()
  std::vector<int64_t> pipeline_layout = {};  // blocks of each part; none = balanced
  int64_t tensor_parallel_size = 1;
  bool sequence_parallel = false;
  int64_t context_parallel_size = 1;
  int64_t expert_parallel_size = 1;
  ContextMethod context_parallel_method = ContextMethod::automatic;
  DeterministicReduction deterministic_reduction = DeterministicReduction::fixed_order;
  int64_t logical_shards = 8;          // used by rank_invariant
  double distributed_timeout = 600.0;  // seconds, as all that follow
  double startup_timeout = 600.0;
  double step_timeout = 0.0;  // 0 = from the times of steps
  double eval_timeout = 600.0;
  double save_timeout = 600.0;
  double heartbeat_timeout = 8.0;
  // data
  std::vector<DataSource> train_data;
  std::vector<DataStage> train_data_stages;
  std::vector<DataSource> valid_data;
  Packing packing = Packing::contiguous;
  int64_t packing_documents = 65536;  // of a window
  int64_t bos_token_id = -1;          // -1 = none
  bool reset_attention_mask = false;
  bool reset_position_ids = false;
  bool eod_mask_loss = false;
  int64_t eod_token_id = -1;               // -1 = that of the tokenizer beside train_data
  int64_t max_documents_per_sequence = 0;  // 0 after validate() only without reset_attention_mask
  double fim_rate = 0.0;                   // share of documents whose middle is learned last; 0 = off
  double fim_spm_rate = 0.5;               // share of these in the order suffix, prefix, middle
  std::optional<FimTokens> fim_tokens;
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
  double exit_signal_budget = 20.0;    // seconds between a stop signal and the end of the last checkpoint
  double exit_duration_in_mins = 0.0;  // 0 = no limit
  // reports
  int64_t log_interval = 10;  // steps
  bool log_noise_scale = false;
  int64_t log_quantization_interval = 0;  // steps; 0 = never
  int64_t log_routing_interval = 100;     // steps; 0 = never
  bool tensorboard = true;
  bool log_jsonl = true;
  Progress progress = Progress::automatic;
  double peak_tflops = 0.0;  // peak of the device, for MFU; 0 = known or measured
  std::string profile;       // path of a Chrome trace of all ops; "" = off
};

// All of these throw Error(..., Exit::usage) naming file, line and key. Overrides are "a.b=value": value is JSON, or
// else a string; they win over the file. Aliases and other remarks are appended to `notices` if it is given. path "-"
// reads standard input. The result is validated and complete.
Config load_config(const std::string& path, std::span<const std::string> overrides = {},
                   std::vector<std::string>* notices = nullptr);
// `name` stands for the file in messages; a model path is relative to `base_dir`.
Config parse_config(std::string_view text, const std::string& name, const std::string& base_dir,
                    std::span<const std::string> overrides = {}, std::vector<std::string>* notices = nullptr);

// A model shape alone, from the text of a "model" object.
ModelConfig parse_model_config(std::string_view text, const std::string& name);
// Reads a published file: missing keys are those of transformers' classes, dropout is left out; notices say so.
ModelConfig load_model_config(const std::string& path, std::vector<std::string>* notices = nullptr);

// Refuses combinations that cannot work and fills what follows from other keys (min_lr, lr_decay_iters, ...).
void validate(Config&);
void validate_pipeline(Config&);            // what validate() asks of its keys
void validate_experts(const Config&);       // likewise
void validate_one_bit(const Config&);       // likewise
void validate_offload(const Config&);       // likewise
void validate_pruning(Config&);             // likewise
void validate_adapters(const Config&);      // likewise
void validate_distillation(const Config&);  // likewise
void validate_data(Config&);                // likewise, and of what follows from them

// Whether weights are pruned after this many steps, and the share of them that is zero after the last time.
bool prunes_after(const Config&, int64_t steps);
double sparsity_after(const Config&, int64_t steps);
// Whether a name in files matches one of the patterns (* and ?) of prune_exclude.
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

// Whether a teacher, or its cached logits, are learned from.
bool distills(const Config&);

// A line for each key that was changed from its default and has no effect with the other keys, of a validated config.
std::vector<std::string> keys_without_effect(const Config&);
// Whether the run, or one of its groups, has the optimizer.
bool updates_by(const Config&, RuleName);
// Whether the data_parallel_replicate_size copies do not sum their gradients: with local_steps, or an optimizer that
// compresses momentum.
bool copies_are_workers(const Config&);
// The optimizer that does the same with whole gradients, of one that compresses.
std::string_view without_compression(RuleName);

// Sequences of the step that follows `consumed` of them.
int64_t batch_size_at(const Config&, int64_t consumed);
// Sequences that the first `steps` steps of a run take.
int64_t samples_after(const Config&, int64_t steps);
// Steps that take at least `samples` sequences.
int64_t steps_for(const Config&, int64_t samples);
// Tokens that layers with a sliding window see in a step, counted from 0.
int64_t sliding_window_at(const Config&, int64_t step);
// Weights of multi_token_prediction in a step, counted from 0.
std::vector<float> ahead_weights_at(const Config&, int64_t step);
// Tokens of the chunks that a sequence of the run is cut into; seq_length: it stays whole.
int64_t chunk_length_at(const Config&, int64_t sample);
// Chunks of a sequence at most.
int64_t max_chunks(const Config&);
// Sample with which a stage of train_data_stages begins: the first one without a token before from_tokens.
int64_t first_sample_of(const Config&, const DataStage&);
// Weights of train_data in stage `stage` of a run: 0 = those of its entries, k = those of train_data_stages[k - 1].
std::vector<double> source_weights(const Config&, size_t stage);
// What the batches of all steps are multiples of.
int64_t common_batch_size(const Config&);

// Every key with its value in force; parse_config of it gives the same Config.
std::string dump_resolved(const Config&);
std::string json_schema();
std::string defaults();             // a JSON object of all defaults; null where a value must be given
std::string config_reference();     // configs/README.md
std::string developer_reference();  // docs/contributing.md: options that the schema and configs/README.md leave out

struct ConfigChange {
  std::string key;
  std::string old_value;  // as JSON
  std::string new_value;
  OnResume rule = OnResume::free;
};
// Differences between the configuration stored in a checkpoint (dump_resolved) and the one of now, in table order.
std::vector<ConfigChange> resume_changes(const std::string& old_resolved_json, const Config& now);

}  // namespace athanor
