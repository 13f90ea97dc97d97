#include "metrics/record.h"

#include <array>

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, 10> kEventNames = {"start", "checkpoint", "resume", "restart", "branch",
                                                          "skip",  "signal",     "warn",   "error",   "end"};

using S = StepMetrics;
constexpr std::array<RecordField<S>, 43> kStepFields = {{
    {"step", "", &S::step, "optimizer steps finished, including this one"},
    {"total_steps", "", &S::total_steps, "optimizer steps of the whole run"},
    {"consumed_samples", "sequences", &S::consumed_samples, "seen since the start of the run", "data/consumed_samples"},
    {"consumed_tokens", "tokens", &S::consumed_tokens, "seen since the start of the run", "data/consumed_tokens"},
    {"global_batch_size", "sequences", &S::global_batch_size, "in this step, on all ranks", "data/global_batch_size"},
    {"loss", "nats", &S::loss, "mean cross-entropy over the predicted tokens of the step", "train/loss"},
    {"grad_norm", "", &S::grad_norm, "global L2 norm of the gradient before clipping", "train/grad_norm"},
    {"learning_rate", "", &S::learning_rate, "used in this step", "train/learning_rate"},
    {"loss_scale", "", &S::loss_scale, "loss scale in this step (fp16), else 1", "train/loss_scale"},
    {"skipped_steps", "", &S::skipped_steps, "steps skipped since the start of the run (no update)",
     "train/skipped_steps"},
    {"nan_steps", "", &S::nan_steps, "steps with a non-finite loss since the start of the run", "train/nan_steps"},
    {"skipped", "", &S::skipped, "this step was skipped: the parameters did not change"},
    {"step_ms", "ms", &S::step_ms, "wall-clock time of the step: the sum of the next six fields", "time/step_ms"},
    {"data_ms", "ms", &S::data_ms, "time waiting for the data loader", "time/data_ms"},
    {"forward_ms", "ms", &S::forward_ms, "forward passes of all micro-batches", "time/forward_ms"},
    {"backward_ms", "ms", &S::backward_ms, "backward passes of all micro-batches", "time/backward_ms"},
    {"communication_ms", "ms", &S::communication_ms,
     "exposed communication: reductions after backward and gathers after the update that overlapped no computation; "
     "with cuda_graph, waiting at the end of backward counts as backward",
     "time/communication_ms"},
    {"optimizer_ms", "ms", &S::optimizer_ms, "gradient norm, clipping and update", "time/optimizer_ms"},
    {"other_ms", "ms", &S::other_ms, "the rest of the step", "time/other_ms"},
    {"tokens_per_second", "tokens/s", &S::tokens_per_second, "tokens of the step on all ranks, divided by its time",
     "speed/tokens_per_second"},
    {"tflops", "TFLOP/s", &S::tflops, "model FLOPs per second and device, causal count", "speed/tflops"},
    {"mfu", "share", &S::mfu,
     "tflops divided by the device's peak, causal count; may exceed 1 if the peak was measured under load at the "
     "start; null: peak unknown",
     "speed/mfu", true},
    {"mfu_full", "share", &S::mfu_full, "mfu with attention counted in full; null: peak unknown", "speed/mfu_full",
     true},
    {"memory_planned", "bytes", &S::memory_planned, "memory planned for this rank", "memory/planned"},
    {"memory_used", "bytes", &S::memory_used, "anonymous memory of this process; on a GPU its device memory",
     "memory/used"},
    {"eta_seconds", "s", &S::eta_seconds, "expected time to the last step; null: unknown", "time/eta_seconds", true},
    {"gpu_watts", "W", &S::gpu_watts, "power draw of this rank's GPU; absent without sensors (NVML)", "gpu/watts"},
    {"gpu_celsius", "°C", &S::gpu_celsius, "temperature of the GPU; absent without sensors", "gpu/celsius"},
    {"gpu_sm_mhz", "MHz", &S::gpu_sm_mhz, "SM clock; absent without sensors", "gpu/sm_mhz"},
    {"gpu_memory_mhz", "MHz", &S::gpu_memory_mhz, "clock of the GPU's memory; absent without sensors",
     "gpu/memory_mhz"},
    {"gpu_throttle", "bits", &S::gpu_throttle,
     "bit mask of NVML's clocks event reasons: 1 idle, 2 set clocks, 4 power limit, 8 hardware, 32 and 64 thermal, 128 "
     "power brake; absent without sensors",
     "gpu/throttle"},
    {"spikes", "", &S::spikes, "steps skipped by loss_spikes.zscore since the start of the run; absent without it",
     "train/spikes"},
    {"momentum", "", &S::momentum, "first-moment decay in this step; absent if constant", "train/momentum"},
    {"weight_decay", "", &S::weight_decay, "weight decay in this step; absent if constant", "train/weight_decay"},
    {"noise_scale", "tokens", &S::noise_scale,
     "gradient noise scale: the batch size above which larger batches save few steps, from averages over about 100 "
     "steps (saved in checkpoints); absent without logging.noise_scale and until the estimate is positive",
     "train/noise_scale"},
    {"max_attention_logit", "", &S::max_attention_logit,
     "maximum attention logit of the step over all heads; absent without qk_clip_threshold",
     "train/max_attention_logit"},
    {"distill_loss", "nats", &S::distill_loss,
     "mean of distillation.loss over the predicted tokens, times distillation.temperature^2; absent without a teacher",
     "train/distill_loss"},
    {"sparsity", "share", &S::sparsity,
     "fraction of zeros in pruned matrices in this step; absent without pruning.sparsity", "train/sparsity"},
    {"curriculum_seqlen", "tokens", &S::chunk_length,
     "sequence length in this step; absent without curriculum.total_curriculum_step", "data/curriculum_seqlen"},
    {"source_losses", "nats", &S::source_losses,
     "mean cross-entropy by entry of train_data, an object of names and values (null: not finite); entries without a "
     "token in this step are left out; absent with one entry",
     "train/loss/{name}"},
    {"loss_z", "", &S::loss_z, "z-score of loss in the last 128 steps; null until there are 128", "train/loss_z", true},
    {"grad_norm_z", "", &S::grad_norm_z, "z-score of grad_norm in the last 128 steps; null until there are 128",
     "train/grad_norm_z", true},
    {"time", "s", &S::time, "Unix time"},
}};

using E = EvalMetrics;
constexpr std::array<RecordField<E>, 13> kEvalFields = {{
    {"step", "", &E::step, "optimizer steps finished before the evaluation"},
    {"name", "", &E::name,
     "evaluation set: valid, choices, or valid/NAME for one of several entries of valid_data; part of the TensorBoard "
     "tag"},
    {"loss", "nats", &E::loss, "mean cross-entropy over the predicted tokens", "eval/{name}/loss"},
    {"loss_error", "nats", &E::loss_error, "standard error of loss, from its variance over windows; null: unknown",
     "eval/{name}/loss_error", true},
    {"perplexity", "", &E::perplexity, "exp(loss)", "eval/{name}/perplexity"},
    {"bits_per_byte", "bits", &E::bits_per_byte,
     "loss in bits per byte of text; null without a tokenizer next to the data", "eval/{name}/bits_per_byte", true},
    {"accuracy", "0..1", &E::accuracy,
     "fraction of multiple-choice questions, or of images, that are answered correctly; null without them",
     "eval/{name}/accuracy", true},
    {"accuracy_norm", "0..1", &E::accuracy_norm,
     "accuracy with likelihoods normalized by characters; null without questions", "eval/{name}/accuracy_norm", true},
    {"tokens", "tokens", &E::tokens, "predicted"},
    {"windows", "", &E::windows,
     "windows of the evaluation set that were evaluated, spread over all of it; 0: not an evaluation on windows"},
    {"windows_all", "", &E::windows_all,
     "windows of the evaluation set; if equal to `windows`, loss equals that of `athanor eval`"},
    {"seconds", "s", &E::seconds, "duration of the evaluation"},
    {"time", "s", &E::time, "Unix time"},
}};

using Q = QuantizedMetrics;
constexpr std::array<RecordField<Q>, 9> kQuantizedFields = {{
    {"step", "", &Q::step, "optimizer steps finished; the counts are of the steps since the record before"},
    {"layer", "", &Q::layer, "parameter name of the linear layer"},
    {"operand", "", &Q::operand,
     "GEMM and operand: forward_x, forward_w, input_dy, input_w (gradient of the input), weight_dy or weight_x "
     "(gradient of the weight); operands that reuse another's quantized values have no record"},
    {"dtype", "", &Q::dtype, "data type of the quantized values"},
    {"values", "", &Q::values,
     "nonzero values in blocks without Inf and NaN, on all ranks (like all counts here, except those of weights, which "
     "are of one rank)"},
    {"saturated", "", &Q::saturated, "of these, values that saturated"},
    {"underflowed", "", &Q::underflowed, "of these, values quantized to zero"},
    {"amax", "", &Q::amax, "amax over all values"},
    {"time", "s", &Q::time, "Unix time"},
}};

using R = RoutingMetrics;
constexpr std::array<RecordField<R>, 11> kRoutingFields = {{
    {"step", "", &R::step, "optimizer steps finished; the counts are of the steps since the record before"},
    {"layer", "", &R::layer, "block index, from 0"},
    {"tokens", "tokens", &R::tokens, "tokens routed in training, on all ranks"},
    {"largest_share", "0..1", &R::largest_share,
     "fraction of tokens that chose the most used expert; balanced is k / E"},
    {"smallest_share", "0..1", &R::smallest_share, "fraction of tokens that chose the least used expert"},
    {"dead_experts", "", &R::dead_experts, "experts chosen by no token"},
    {"entropy", "0..1", &R::entropy, "entropy of the router's probabilities, mean over tokens, divided by log(E)"},
    {"balance_loss", "", &R::balance_loss,
     "auxiliary load-balancing loss, mean over tokens, without router_aux_loss_coef; 1 if balanced"},
    {"z_loss", "", &R::z_loss, "router z-loss, mean over tokens, without router_z_loss_coef"},
    {"dropped_share", "0..1", &R::dropped_share,
     "fraction of the tokens' choices dropped beyond the capacity of experts (moe.expert_capacity_factor)"},
    {"time", "s", &R::time, "Unix time"},
}};

using P = PrunedMetrics;
constexpr std::array<RecordField<P>, 5> kPrunedFields = {{
    {"step", "", &P::step, "optimizer steps finished"},
    {"layer", "", &P::layer, "parameter name of the matrix"},
    {"weights", "", &P::weights, "that it has"},
    {"zeros", "", &P::zeros, "of these: pruned"},
    {"time", "s", &P::time, "Unix time"},
}};

using C = CommunicationMetrics;
constexpr std::array<RecordField<C>, 8> kCommunicationFields = {{
    {"step", "", &C::step, "optimizer steps finished at the end of the profile"},
    {"layer", "", &C::layer, "embedding, block or head; empty: the whole step, or unknown"},
    {"group", "", &C::group,
     "process group: tp, cp, ep, pp, dp_shard (zero_stage), dp_replicate (replicas), dp (data parallel), world (all "
     "ranks); empty: unknown"},
    {"collective", "", &C::collective, "all_reduce, all_gather, reduce_scatter, all_to_all, ...; empty: unknown"},
    {"calls", "", &C::calls, "per step; on a GPU the number of kernels"},
    {"exposed_ms", "ms", &C::exposed_ms,
     "exposed time per step, overlapping no computation; on the CPU, where ranks send and compute alternately, the "
     "whole time"},
    {"ms", "ms", &C::ms, "time per step, including waiting for other ranks"},
    {"time", "s", &C::time, "Unix time"},
}};

using V = EventRecord;
constexpr std::array<RecordField<V>, 18> kEventFields = {{
    {"step", "", &V::step, "optimizer steps finished at the time of the event"},
    {"text", "", &V::text, "description of the event"},
    {"seconds", "s", &V::seconds, "duration; 0 if instantaneous; for a checkpoint, until it was durable"},
    {"stall_seconds", "s", &V::stall_seconds, "time that training waited for it"},
    {"bytes", "bytes", &V::bytes, "bytes written, all files of a checkpoint; 0 if none"},
    {"supersedes_from", "", &V::supersedes_from,
     "records above this line with step >= this are invalid; absent in most events"},
    {"tokens", "tokens", &V::tokens, "tokens consumed since the start of the run; in end only"},
    {"first_step_seconds", "s", &V::first_step_seconds,
     "time from the program's start to the end of its first step; in end only, where `seconds` is the total time"},
    {"suggested_rate", "", &V::suggested_rate, "learning rate suggested by a range test; in its end only"},
    {"peak_tflops", "TFLOP/s", &V::peak_tflops, "peak of one device, the denominator of MFU; in start and resume only"},
    {"planned_weights", "bytes", &V::planned_weights,
     "memory plan of this rank: weights; this and the next fields in start and resume only"},
    {"planned_masters", "bytes", &V::planned_masters, "fp32 copies of the weights"},
    {"planned_gradients", "bytes", &V::planned_gradients, "gradients"},
    {"planned_optimizer", "bytes", &V::planned_optimizer, "moments of the optimizer"},
    {"planned_activations", "bytes", &V::planned_activations, "activations and scratch of a step"},
    {"planned_inputs", "bytes", &V::planned_inputs, "tokens and targets"},
    {"planned_constants", "bytes", &V::planned_constants, "tables, such as RoPE's"},
    {"time", "s", &V::time, "Unix time"},
}};

template <class Record>
void append_table(std::string& out, std::string_view title, std::span<const RecordField<Record>> fields) {
  out += cat("#### ", title, "\n\n| field | unit | meaning | TensorBoard tag |\n|---|---|---|---|\n");
  for (const auto& f : fields) {
    const std::string tag = f.tag.empty() ? "" : cat("`", f.tag, "`");
    out += cat("| `", f.name, "` | ", f.unit, " | ", f.help, " | ", tag, " |\n");
  }
  out += "\n";
}

}  // namespace

std::string_view to_string(EventKind kind) { return kEventNames.at(size_t(kind)); }

std::optional<EventKind> event_kind(std::string_view name) {
  for (size_t i = 0; i < kEventNames.size(); ++i)
    if (kEventNames[i] == name) return EventKind(i);
  return std::nullopt;
}

std::span<const RecordField<StepMetrics>> step_fields() { return kStepFields; }
std::span<const RecordField<EvalMetrics>> eval_fields() { return kEvalFields; }
std::span<const RecordField<QuantizedMetrics>> quantized_fields() { return kQuantizedFields; }
std::span<const RecordField<RoutingMetrics>> routing_fields() { return kRoutingFields; }
std::span<const RecordField<PrunedMetrics>> pruned_fields() { return kPrunedFields; }
std::span<const RecordField<CommunicationMetrics>> communication_fields() { return kCommunicationFields; }
std::span<const RecordField<EventRecord>> event_fields() { return kEventFields; }

std::string fields_markdown() {
  std::string out, names;
  for (std::string_view name : kEventNames) names += cat(names.empty() ? "`" : ", `", name, "`");
  append_table<StepMetrics>(out, "`\"event\": \"step\"`", step_fields());
  append_table<EvalMetrics>(out, "`\"event\": \"eval\"`", eval_fields());
  append_table<QuantizedMetrics>(out, "`\"event\": \"quantized\"`, with `logging.quantization_interval`",
                                 quantized_fields());
  append_table<RoutingMetrics>(
      out, "`\"event\": \"routing\"`, of each layer with experts, by `logging.routing_interval`", routing_fields());
  append_table<PrunedMetrics>(out, "`\"event\": \"pruned\"`, of each pruned matrix, whenever weights are pruned",
                              pruned_fields());
  append_table<CommunicationMetrics>(out, "`\"event\": \"communication\"`, at the end of a run with `--profile`",
                                     communication_fields());
  append_table<EventRecord>(out, cat("every other event: ", names), event_fields());
  return out;
}

}  // namespace athanor
