// Records of a run, per step, evaluation, matrix in 8 bits and event, and the single table of their fields from which
// the JSON lines, the TensorBoard tags and the table in configs/LOGS.md are generated.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace athanor {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// One optimizer step. Times are host wall-clock; data + forward + backward + optimizer + other = step.
struct StepMetrics {
  int64_t step = 0;               // steps finished, this one included: the first is 1
  int64_t total_steps = 0;        // steps of the whole run
  int64_t consumed_samples = 0;   // since step 0 of the run
  int64_t consumed_tokens = 0;    // since step 0 of the run
  int64_t global_batch_size = 0;  // sequences in this step
  double loss = kUnknown;         // mean over the predicted tokens of the step, nats
  double grad_norm = kUnknown;    // before clipping
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t skipped_steps = 0;  // since step 0 of the run
  int64_t nan_steps = 0;      // since step 0 of the run: steps whose loss was not finite
  bool skipped = false;       // this step left the parameters unchanged
  double step_ms = 0;
  double data_ms = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double communication_ms = 0;
  double optimizer_ms = 0;
  double other_ms = 0;
  double tokens_per_second = 0;
  double tflops = 0;           // per device, causal count
  double mfu = kUnknown;       // share of the peak, causal count (flops.h); above 1 where the peak was measured too low
  double mfu_full = kUnknown;  // mfu by the full count
  uint64_t memory_planned = 0;  // bytes
  uint64_t memory_used = 0;     // bytes resident
  double eta_seconds = kUnknown;
  // GPU sensor readings at most a second old; absent without sensors.
  std::optional<double> gpu_watts = std::nullopt;
  std::optional<double> gpu_celsius = std::nullopt;
  std::optional<double> gpu_sm_mhz = std::nullopt;
  std::optional<double> gpu_memory_mhz = std::nullopt;
  std::optional<int64_t> gpu_throttle = std::nullopt;
  std::optional<int64_t> spikes = std::nullopt;              // since step 0 of the run: steps skipped as spikes
  std::optional<double> momentum = std::nullopt;             // if it has a schedule
  std::optional<double> weight_decay = std::nullopt;         // if it has a schedule
  std::optional<double> noise_scale = std::nullopt;          // tokens; with log_noise_scale
  std::optional<double> max_attention_logit = std::nullopt;  // with qk_clip_threshold
  std::optional<double> distill_loss = std::nullopt;         // mean over the predicted tokens; with a teacher
  std::optional<double> sparsity = std::nullopt;       // share of the pruned matrices that is zero; with prune_sparsity
  std::optional<int64_t> chunk_length = std::nullopt;  // tokens; with total_curriculum_step
  double loss_z = kUnknown;                            // filled by MetricFanOut
  double grad_norm_z = kUnknown;                       // filled by MetricFanOut
  double time = 0;                                     // Unix seconds; 0: MetricFanOut fills it
};

// Names of evaluations of one of several entries of valid_data begin with it; the mean of all entries is "valid".
inline constexpr std::string_view kOneSource = "valid/";

// One evaluation of one held-out set.
struct EvalMetrics {
  int64_t step = 0;
  std::string name = "valid";
  double loss = kUnknown;           // mean over the predicted tokens, nats
  double loss_error = kUnknown;     // standard error of loss
  double perplexity = kUnknown;     // exp(loss); NaN: MetricFanOut fills it
  double bits_per_byte = kUnknown;  // bits of loss per byte of text; NaN: the tokenizer is not known
  double accuracy = kUnknown;       // multiple choice: share of right answers
  double accuracy_norm = kUnknown;
  int64_t tokens = 0;
  int64_t windows = 0, windows_all = 0;  // evaluated, and in the held-out set; 0: not windows
  double seconds = 0;
  double time = 0;  // Unix seconds; 0: MetricFanOut fills it
};

// What products read in 8 bits of one matrix of a linear layer, over the steps since the record before.
struct QuantizedMetrics {
  int64_t step = 0;
  std::string layer;        // name of its weight
  std::string operand;      // name_of(Operand)
  std::string codes;        // their type
  int64_t values = 0;       // that are not zero
  int64_t saturated = 0;    // values that saturated
  int64_t underflowed = 0;  // values that became zero
  double largest = 0;       // magnitude
  double time = 0;          // Unix seconds; 0: MetricFanOut fills it
};

// What the router of one layer with experts did, over the steps since the record before, on all ranks.
struct RoutingMetrics {
  int64_t step = 0;
  int64_t layer = 0;
  int64_t tokens = 0;
  double largest_share = 0;   // of the tokens, that chose the most chosen expert
  double smallest_share = 0;  // likewise the least chosen one
  int64_t dead_experts = 0;   // that no token chose
  double entropy = 0;         // mean of the router's probabilities, over the largest possible one
  double balance_loss = 0;    // mean over tokens, without its factor
  double z_loss = 0;          // likewise
  double time = 0;            // Unix seconds; 0: MetricFanOut fills it
};

// One matrix after it was pruned.
struct PrunedMetrics {
  int64_t step = 0;
  std::string layer;  // name of the matrix
  int64_t weights = 0;
  int64_t zeros = 0;  // pruned weights
  double time = 0;    // Unix seconds; 0: MetricFanOut fills it
};

// What the ranks of a group sent for one unit of the model in the steps of a profile, as one kind of collective.
struct CommunicationMetrics {
  int64_t step = 0;
  std::string layer;                         // the unit; "": the whole step
  std::string group;                         // ProcessMesh's, such as "tensor"
  std::string collective;                    // such as "all_gather"
  double calls = 0, exposed_ms = 0, ms = 0;  // per step
  double time = 0;                           // Unix seconds; 0: MetricFanOut fills it
};

enum class EventKind { start, checkpoint, resume, restart, branch, skip, signal, warn, error, end };
std::string_view to_string(EventKind);
std::optional<EventKind> event_kind(std::string_view name);

// An event at a step.
struct EventRecord {
  EventKind kind = EventKind::warn;
  int64_t step = 0;
  std::string text = {};
  double seconds = 0;        // duration, if it has one
  double stall_seconds = 0;  // how long training was blocked
  uint64_t bytes = 0;        // bytes written, if any
  std::optional<int64_t> supersedes_from =
      std::nullopt;  // set by the JSON-lines sink: earlier records from this step on are void
  std::optional<int64_t> tokens = std::nullopt;             // consumed by the run; in event `end`
  std::optional<double> first_step_seconds = std::nullopt;  // from the start to the end of the first step; in `end`
  std::optional<double> suggested_rate = std::nullopt;      // by a learning-rate range test; in `end`
  std::optional<double> peak_tflops = std::nullopt;         // the denominator of MFU; in events `start` and `resume`
  // Bytes of the memory plan by kind, this rank; in events `start` and `resume`.
  std::optional<int64_t> planned_weights = std::nullopt;
  std::optional<int64_t> planned_masters = std::nullopt;
  std::optional<int64_t> planned_gradients = std::nullopt;
  std::optional<int64_t> planned_optimizer = std::nullopt;
  std::optional<int64_t> planned_activations = std::nullopt;
  std::optional<int64_t> planned_inputs = std::nullopt;
  std::optional<int64_t> planned_constants = std::nullopt;
  double time = 0;  // Unix seconds; 0: MetricFanOut fills it
};

// One field of a record. A `tag` makes it a TensorBoard scalar. NaN means "unknown" if `nan_is_unknown`, otherwise it
// is an actual value.
template <class Record>
struct RecordField {
  using Member = std::variant<int64_t Record::*, uint64_t Record::*, double Record::*, bool Record::*,
                              std::string Record::*, std::optional<double> Record::*, std::optional<int64_t> Record::*>;
  std::string_view name;
  std::string_view unit;
  std::string_view help;
  std::string_view tag;
  bool nan_is_unknown;
  Member member;
};

std::span<const RecordField<StepMetrics>> step_fields();
std::span<const RecordField<EvalMetrics>> eval_fields();
std::span<const RecordField<QuantizedMetrics>> quantized_fields();
std::span<const RecordField<RoutingMetrics>> routing_fields();
std::span<const RecordField<PrunedMetrics>> pruned_fields();
std::span<const RecordField<CommunicationMetrics>> communication_fields();
std::span<const RecordField<EventRecord>> event_fields();

// The table of configs/LOGS.md, as Markdown.
std::string fields_markdown();

}  // namespace athanor
