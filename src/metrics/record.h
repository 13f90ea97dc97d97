// Records of a run (per step, evaluation, quantized matrix, event, ...) and the one table of their fields, from which
// the JSON lines, the TensorBoard tags and the table in configs/LOGS.md are generated.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace athanor {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

using NamedValues = std::vector<std::pair<std::string, double>>;

// One optimizer step. Times are host wall-clock; data + forward + backward + optimizer + other = step.
struct StepMetrics {
  int64_t step = 0;               // steps finished, including this one: the first is 1
  int64_t total_steps = 0;        // steps of the whole run
  int64_t consumed_samples = 0;   // samples since step 0 of the run
  int64_t consumed_tokens = 0;    // tokens since step 0 of the run
  int64_t global_batch_size = 0;  // sequences in this step
  double loss = kUnknown;         // mean over the predicted tokens of the step, nats
  double grad_norm = kUnknown;    // before clipping
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t skipped_steps = 0;  // since step 0 of the run
  int64_t nan_steps = 0;      // steps whose loss was not finite, since step 0 of the run
  bool skipped = false;       // this step left the parameters unchanged
  double step_ms = 0;
  double data_ms = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double communication_ms = 0;
  double optimizer_ms = 0;
  double other_ms = 0;
  double tokens_per_second = 0;
  double tflops = 0;            // per device, FLOPs by the causal count
  double mfu = kUnknown;        // fraction of the peak, causal count (flops.h); above 1 if the measured peak is too low
  double mfu_full = kUnknown;   // MFU by the full count of FLOPs
  uint64_t memory_planned = 0;  // bytes
  uint64_t memory_used = 0;     // bytes resident
  double eta_seconds = kUnknown;
  // GPU sensor readings at most a second old; absent without sensors.
  std::optional<double> gpu_watts = std::nullopt;
  std::optional<double> gpu_celsius = std::nullopt;
  std::optional<double> gpu_sm_mhz = std::nullopt;
  std::optional<double> gpu_memory_mhz = std::nullopt;
  std::optional<int64_t> gpu_throttle = std::nullopt;
  std::optional<int64_t> spikes = std::nullopt;              // steps skipped as spikes, since step 0 of the run
  std::optional<double> momentum = std::nullopt;             // only if momentum has a schedule
  std::optional<double> weight_decay = std::nullopt;         // only if weight decay has a schedule
  std::optional<double> noise_scale = std::nullopt;          // tokens; with logging.noise_scale
  std::optional<double> max_attention_logit = std::nullopt;  // with qk_clip_threshold
  std::optional<double> distill_loss = std::nullopt;         // mean over the predicted tokens; with a teacher
  std::optional<double> sparsity = std::nullopt;  // fraction of zeros in the pruned matrices; with pruning.sparsity
  std::optional<int64_t> chunk_length = std::nullopt;  // tokens; with curriculum.total_curriculum_step
  NamedValues source_losses = {};  // by source_name() of train_data's entries with tokens in this step; if several
  double loss_z = kUnknown;        // filled by MetricFanOut
  double grad_norm_z = kUnknown;   // filled by MetricFanOut
  double time = 0;                 // Unix seconds; 0: MetricFanOut fills it
};

// Prefix of the names of evaluations of a single entry, if valid_data has several, and the name of those of all
// entries.
inline constexpr std::string_view kOneSource = "valid/";
inline constexpr std::string_view kAllSources = "valid";

// One evaluation of one validation set.
struct EvalMetrics {
  int64_t step = 0;
  std::string name = "valid";
  double loss = kUnknown;           // mean over the predicted tokens, nats
  double loss_error = kUnknown;     // standard error of loss
  double perplexity = kUnknown;     // exp(loss); NaN: MetricFanOut fills it
  double bits_per_byte = kUnknown;  // bits of loss per byte of text; NaN if the tokenizer is unknown
  double accuracy = kUnknown;       // fraction of correct answers, or of images with the right class
  double accuracy_norm = kUnknown;
  int64_t tokens = 0;
  int64_t windows = 0, windows_all = 0;  // windows evaluated, and in the validation set; 0: the set has no windows
  double seconds = 0;
  double time = 0;  // Unix seconds; 0: MetricFanOut fills it
};

// Quantization statistics of one FP8/FP4 operand of a linear layer, since the previous record.
struct QuantizedMetrics {
  int64_t step = 0;
  std::string layer;        // name of the layer's weight
  std::string operand;      // name_of(Operand)
  std::string dtype;        // data type of the quantized values
  int64_t values = 0;       // number of non-zero values
  int64_t saturated = 0;    // values that saturated
  int64_t underflowed = 0;  // values that were quantized to zero
  double amax = 0;          // amax
  double time = 0;          // Unix seconds; 0: MetricFanOut fills it
};

// Router statistics of one MoE layer over all ranks, since the previous record.
struct RoutingMetrics {
  int64_t step = 0;
  int64_t layer = 0;
  int64_t tokens = 0;
  double largest_share = 0;   // fraction of tokens routed to the most chosen expert
  double smallest_share = 0;  // fraction of tokens routed to the least chosen expert
  int64_t dead_experts = 0;   // experts that no token chose
  double entropy = 0;         // mean entropy of the router's probabilities, relative to its maximum
  double balance_loss = 0;    // mean over tokens, without coefficient
  double z_loss = 0;          // mean over tokens, without coefficient
  double dropped_share = 0;   // fraction of the choices that were dropped beyond the experts' capacity
  double time = 0;            // Unix seconds; 0: MetricFanOut fills it
};

// State of one matrix after pruning.
struct PrunedMetrics {
  int64_t step = 0;
  std::string layer;  // name of the matrix
  int64_t weights = 0;
  int64_t zeros = 0;  // pruned weights
  double time = 0;    // Unix seconds; 0: MetricFanOut fills it
};

// Communication of one kind of collective in one process group, for one unit of the model, over the profiled steps.
struct CommunicationMetrics {
  int64_t step = 0;
  std::string layer;                         // FSDP unit; "": the whole step
  std::string group;                         // process group name of ProcessMesh, such as "tp"
  std::string collective;                    // kind, such as "all_gather"
  double calls = 0, exposed_ms = 0, ms = 0;  // per step
  double time = 0;                           // Unix seconds; 0: MetricFanOut fills it
};

enum class EventKind { start, checkpoint, resume, restart, branch, skip, signal, warn, error, end };
std::string_view to_string(EventKind);
std::optional<EventKind> event_kind(std::string_view name);

// Something that happened at a step.
struct EventRecord {
  EventKind kind = EventKind::warn;
  int64_t step = 0;
  std::string text = {};
  double seconds = 0;        // duration, if any
  double stall_seconds = 0;  // time during which training was blocked
  uint64_t bytes = 0;        // bytes written, if any
  std::optional<int64_t> supersedes_from =
      std::nullopt;  // set by the JSON-lines sink: earlier records from this step on are invalid
  std::optional<int64_t> tokens = std::nullopt;             // tokens consumed by the run; in event `end`
  std::optional<double> first_step_seconds = std::nullopt;  // from the start to the end of the first step; in `end`
  std::optional<double> suggested_rate = std::nullopt;      // learning rate suggested by a range test; in `end`
  std::optional<double> peak_tflops = std::nullopt;         // the denominator of MFU; in events `start` and `resume`
  // Bytes of this rank's memory plan by kind; in events `start` and `resume`.
  std::optional<int64_t> planned_weights = std::nullopt;
  std::optional<int64_t> planned_masters = std::nullopt;
  std::optional<int64_t> planned_gradients = std::nullopt;
  std::optional<int64_t> planned_optimizer = std::nullopt;
  std::optional<int64_t> planned_activations = std::nullopt;
  std::optional<int64_t> planned_inputs = std::nullopt;
  std::optional<int64_t> planned_constants = std::nullopt;
  double time = 0;  // Unix seconds; 0: MetricFanOut fills it
};

// Description of one field of a record. Fields with a `tag` become TensorBoard scalars. NaN means "unknown" if
// `nan_is_unknown`; otherwise it is an actual value.
template <class Record>
struct RecordField {
  using Member =
      std::variant<int64_t Record::*, uint64_t Record::*, double Record::*, bool Record::*, std::string Record::*,
                   std::optional<double> Record::*, std::optional<int64_t> Record::*, NamedValues Record::*>;
  std::string_view name;
  std::string_view unit;
  Member member;
  std::string_view help;
  std::string_view tag = {};
  bool nan_is_unknown = false;
};

std::span<const RecordField<StepMetrics>> step_fields();
std::span<const RecordField<EvalMetrics>> eval_fields();
std::span<const RecordField<QuantizedMetrics>> quantized_fields();
std::span<const RecordField<RoutingMetrics>> routing_fields();
std::span<const RecordField<PrunedMetrics>> pruned_fields();
std::span<const RecordField<CommunicationMetrics>> communication_fields();
std::span<const RecordField<EventRecord>> event_fields();

// The table in configs/LOGS.md, as Markdown.
std::string fields_markdown();

}  // namespace athanor
