#include "metrics/record.h"

#include <array>

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, 10> kEventNames = {"start", "checkpoint", "resume", "restart", "branch",
                                                          "skip",  "signal",     "warn",   "error",   "end"};

using S = StepMetrics;
constexpr std::array<RecordField<S>, 43> kStepFields = {{
    {"step", "", "optimizer steps finished, including this one", "", false, &S::step},
    {"total_steps", "", "optimizer steps of the whole run", "", false, &S::total_steps},
    {"consumed_samples", "sequences", "seen since the start of the run", "data/consumed_samples", false,
     &S::consumed_samples},
    {"consumed_tokens", "tokens", "seen since the start of the run", "data/consumed_tokens", false,
     &S::consumed_tokens},
    {"global_batch_size", "sequences", "in this step, on all ranks", "data/global_batch_size", false,
     &S::global_batch_size},
    {"loss", "nats", "mean cross-entropy over the predicted tokens of the step", "train/loss", false, &S::loss},
    {"grad_norm", "", "global L2 norm of the gradient before clipping", "train/grad_norm", false, &S::grad_norm},
    {"learning_rate", "", "used in this step", "train/learning_rate", false, &S::learning_rate},
    {"loss_scale", "", "loss scale in this step (fp16), else 1", "train/loss_scale", false, &S::loss_scale},
    {"skipped_steps", "", "steps skipped since the start of the run (no update)", "train/skipped_steps", false,
     &S::skipped_steps},
    {"nan_steps", "", "steps with a non-finite loss since the start of the run", "train/nan_steps", false,
     &S::nan_steps},
    {"skipped", "", "this step was skipped: the parameters did not change", "", false, &S::skipped},
    {"step_ms", "ms", "wall-clock time of the step: the sum of the next six fields", "time/step_ms", false,
     &S::step_ms},
    {"data_ms", "ms", "time waiting for the data loader", "time/data_ms", false, &S::data_ms},
    {"forward_ms", "ms", "forward passes of all micro-batches", "time/forward_ms", false, &S::forward_ms},
    {"backward_ms", "ms", "backward passes of all micro-batches", "time/backward_ms", false, &S::backward_ms},
    {"communication_ms", "ms",
     "exposed communication: reductions after backward and gathers after the update that overlapped no computation; "
     "with cuda_graph, waiting at the end of backward counts as backward",
     "time/communication_ms", false, &S::communication_ms},
    {"optimizer_ms", "ms", "gradient norm, clipping and update", "time/optimizer_ms", false, &S::optimizer_ms},
    {"other_ms", "ms", "the rest of the step", "time/other_ms", false, &S::other_ms},
    {"tokens_per_second", "tokens/s", "tokens of the step on all ranks, divided by its time", "speed/tokens_per_second",
     false, &S::tokens_per_second},
    {"tflops", "TFLOP/s", "model FLOPs per second and device, causal count", "speed/tflops", false, &S::tflops},
    {"mfu", "share",
     "tflops divided by the device's peak, causal count; may exceed 1 if the peak was measured under load at the "
     "start; null: peak unknown",
     "speed/mfu", true, &S::mfu},
    {"mfu_full", "share", "mfu with attention counted in full; null: peak unknown", "speed/mfu_full", true,
     &S::mfu_full},
    {"memory_planned", "bytes", "memory planned for this rank", "memory/planned", false, &S::memory_planned},
    {"memory_used", "bytes", "anonymous memory of this process; on a GPU its device memory", "memory/used", false,
     &S::memory_used},
    {"eta_seconds", "s", "expected time to the last step; null: unknown", "time/eta_seconds", true, &S::eta_seconds},
    {"gpu_watts", "W", "power draw of this rank's GPU; absent without sensors (NVML)", "gpu/watts", false,
     &S::gpu_watts},
    {"gpu_celsius", "°C", "temperature of the GPU; absent without sensors", "gpu/celsius", false, &S::gpu_celsius},
    {"gpu_sm_mhz", "MHz", "SM clock; absent without sensors", "gpu/sm_mhz", false, &S::gpu_sm_mhz},
    {"gpu_memory_mhz", "MHz", "clock of the GPU's memory; absent without sensors", "gpu/memory_mhz", false,
     &S::gpu_memory_mhz},
    {"gpu_throttle", "bits",
     "bit mask of NVML's clocks event reasons: 1 idle, 2 set clocks, 4 power limit, 8 hardware, 32 and 64 thermal, 128 "
     "power brake; absent without sensors",
     "gpu/throttle", false, &S::gpu_throttle},
    {"spikes", "", "steps skipped by loss_spikes.zscore since the start of the run; absent without it", "train/spikes",
     false, &S::spikes},
    {"momentum", "", "first-moment decay in this step; absent if constant", "train/momentum", false, &S::momentum},
    {"weight_decay", "", "weight decay in this step; absent if constant", "train/weight_decay", false,
     &S::weight_decay},
    {"noise_scale", "tokens",
     "gradient noise scale: the batch size above which larger batches save few steps, from averages over about 100 "
     "steps (saved in checkpoints); absent without logging.noise_scale and until the estimate is positive",
     "train/noise_scale", false, &S::noise_scale},
    {"max_attention_logit", "", "maximum attention logit of the step over all heads; absent without qk_clip_threshold",
     "train/max_attention_logit", false, &S::max_attention_logit},
    {"distill_loss", "nats",
     "mean of distillation.loss over the predicted tokens, times distillation.temperature^2; absent without a teacher",
     "train/distill_loss", false, &S::distill_loss},
    {"sparsity", "share", "fraction of zeros in pruned matrices in this step; absent without pruning.sparsity",
     "train/sparsity", false, &S::sparsity},
    {"curriculum_seqlen", "tokens", "sequence length in this step; absent without curriculum.total_curriculum_step",
     "data/curriculum_seqlen", false, &S::chunk_length},
    {"source_losses", "nats",
     "mean cross-entropy by entry of train_data, an object of names and values (null: not finite); entries without a "
     "token in this step are left out; absent with one entry",
     "train/loss/{name}", false, &S::source_losses},
    {"loss_z", "", "z-score of loss in the last 128 steps; null until there are 128", "train/loss_z", true, &S::loss_z},
    {"grad_norm_z", "", "z-score of grad_norm in the last 128 steps; null until there are 128", "train/grad_norm_z",
     true, &S::grad_norm_z},
    {"time", "s", "Unix time", "", false, &S::time},
}};

using E = EvalMetrics;
constexpr std::array<RecordField<E>, 13> kEvalFields = {{
    {"step", "", "optimizer steps finished before the evaluation", "", false, &E::step},
    {"name", "",
     "evaluation set: valid, choices, or valid/NAME for one of several entries of valid_data; part of the TensorBoard "
     "tag",
     "", false, &E::name},
    {"loss", "nats", "mean cross-entropy over the predicted tokens", "eval/{name}/loss", false, &E::loss},
    {"loss_error", "nats", "standard error of loss, from its variance over windows; null: unknown",
     "eval/{name}/loss_error", true, &E::loss_error},
    {"perplexity", "", "exp(loss)", "eval/{name}/perplexity", false, &E::perplexity},
    {"bits_per_byte", "bits", "loss in bits per byte of text; null without a tokenizer next to the data",
     "eval/{name}/bits_per_byte", true, &E::bits_per_byte},
    {"accuracy", "0..1",
     "fraction of multiple-choice questions, or of images, that are answered correctly; null without them",
     "eval/{name}/accuracy", true, &E::accuracy},
    {"accuracy_norm", "0..1", "accuracy with likelihoods normalized by characters; null without questions",
     "eval/{name}/accuracy_norm", true, &E::accuracy_norm},
    {"tokens", "tokens", "predicted", "", false, &E::tokens},
    {"windows", "",
     "windows of the evaluation set that were evaluated, spread over all of it; 0: not an evaluation on windows", "",
     false, &E::windows},
    {"windows_all", "", "windows of the evaluation set; if equal to `windows`, loss equals that of `athanor eval`", "",
     false, &E::windows_all},
    {"seconds", "s", "duration of the evaluation", "", false, &E::seconds},
    {"time", "s", "Unix time", "", false, &E::time},
}};

using Q = QuantizedMetrics;
constexpr std::array<RecordField<Q>, 9> kQuantizedFields = {{
    {"step", "", "optimizer steps finished; the counts are of the steps since the record before", "", false, &Q::step},
    {"layer", "", "parameter name of the linear layer", "", false, &Q::layer},
    {"operand", "",
     "GEMM and operand: forward_x, forward_w, input_dy, input_w (gradient of the input), weight_dy or weight_x "
     "(gradient of the weight); operands that reuse another's quantized values have no record",
     "", false, &Q::operand},
    {"dtype", "", "data type of the quantized values", "", false, &Q::dtype},
    {"values", "",
     "nonzero values in blocks without Inf and NaN, on all ranks (like all counts here, except those of weights, which "
     "are of one rank)",
     "", false, &Q::values},
    {"saturated", "", "of these, values that saturated", "", false, &Q::saturated},
    {"underflowed", "", "of these, values quantized to zero", "", false, &Q::underflowed},
    {"amax", "", "amax over all values", "", false, &Q::amax},
    {"time", "s", "Unix time", "", false, &Q::time},
}};

using R = RoutingMetrics;
constexpr std::array<RecordField<R>, 11> kRoutingFields = {{
    {"step", "", "optimizer steps finished; the counts are of the steps since the record before", "", false, &R::step},
    {"layer", "", "block index, from 0", "", false, &R::layer},
    {"tokens", "tokens", "tokens routed in training, on all ranks", "", false, &R::tokens},
    {"largest_share", "0..1", "fraction of tokens that chose the most used expert; balanced is k / E", "", false,
     &R::largest_share},
    {"smallest_share", "0..1", "fraction of tokens that chose the least used expert", "", false, &R::smallest_share},
    {"dead_experts", "", "experts chosen by no token", "", false, &R::dead_experts},
    {"entropy", "0..1", "entropy of the router's probabilities, mean over tokens, divided by log(E)", "", false,
     &R::entropy},
    {"balance_loss", "", "auxiliary load-balancing loss, mean over tokens, without router_aux_loss_coef; 1 if balanced",
     "", false, &R::balance_loss},
    {"z_loss", "", "router z-loss, mean over tokens, without router_z_loss_coef", "", false, &R::z_loss},
    {"dropped_share", "0..1",
     "fraction of the tokens' choices dropped beyond the capacity of experts (moe.expert_capacity_factor)", "", false,
     &R::dropped_share},
    {"time", "s", "Unix time", "", false, &R::time},
}};

using P = PrunedMetrics;
constexpr std::array<RecordField<P>, 5> kPrunedFields = {{
    {"step", "", "optimizer steps finished", "", false, &P::step},
    {"layer", "", "parameter name of the matrix", "", false, &P::layer},
    {"weights", "", "that it has", "", false, &P::weights},
    {"zeros", "", "of these: pruned", "", false, &P::zeros},
    {"time", "s", "Unix time", "", false, &P::time},
}};

using C = CommunicationMetrics;
constexpr std::array<RecordField<C>, 8> kCommunicationFields = {{
    {"step", "", "optimizer steps finished at the end of the profile", "", false, &C::step},
    {"layer", "", "embedding, block or head; empty: the whole step, or unknown", "", false, &C::layer},
    {"group", "",
     "process group: tp, cp, ep, pp, dp_shard (zero_stage), dp_replicate (replicas), "
     "dp (data parallel), world (all ranks); empty: unknown",
     "", false, &C::group},
    {"collective", "", "all_reduce, all_gather, reduce_scatter, all_to_all, ...; empty: unknown", "", false,
     &C::collective},
    {"calls", "", "per step; on a GPU the number of kernels", "", false, &C::calls},
    {"exposed_ms", "ms",
     "exposed time per step, overlapping no computation; on the CPU, where ranks send and compute alternately, the "
     "whole time",
     "", false, &C::exposed_ms},
    {"ms", "ms", "time per step, including waiting for other ranks", "", false, &C::ms},
    {"time", "s", "Unix time", "", false, &C::time},
}};

using V = EventRecord;
constexpr std::array<RecordField<V>, 18> kEventFields = {{
    {"step", "", "optimizer steps finished at the time of the event", "", false, &V::step},
    {"text", "", "description of the event", "", false, &V::text},
    {"seconds", "s", "duration; 0 if instantaneous; for a checkpoint, until it was durable", "", false, &V::seconds},
    {"stall_seconds", "s", "time that training waited for it", "", false, &V::stall_seconds},
    {"bytes", "bytes", "bytes written, all files of a checkpoint; 0 if none", "", false, &V::bytes},
    {"supersedes_from", "", "records above this line with step >= this are invalid; absent in most events", "", false,
     &V::supersedes_from},
    {"tokens", "tokens", "tokens consumed since the start of the run; in end only", "", false, &V::tokens},
    {"first_step_seconds", "s",
     "time from the program's start to the end of its first step; in end only, where `seconds` is the total time", "",
     false, &V::first_step_seconds},
    {"suggested_rate", "", "learning rate suggested by a range test; in its end only", "", false, &V::suggested_rate},
    {"peak_tflops", "TFLOP/s", "peak of one device, the denominator of MFU; in start and resume only", "", false,
     &V::peak_tflops},
    {"planned_weights", "bytes", "memory plan of this rank: weights; this and the next fields in start and resume only",
     "", false, &V::planned_weights},
    {"planned_masters", "bytes", "fp32 copies of the weights", "", false, &V::planned_masters},
    {"planned_gradients", "bytes", "gradients", "", false, &V::planned_gradients},
    {"planned_optimizer", "bytes", "moments of the optimizer", "", false, &V::planned_optimizer},
    {"planned_activations", "bytes", "activations and scratch of a step", "", false, &V::planned_activations},
    {"planned_inputs", "bytes", "tokens and targets", "", false, &V::planned_inputs},
    {"planned_constants", "bytes", "tables, such as RoPE's", "", false, &V::planned_constants},
    {"time", "s", "Unix time", "", false, &V::time},
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
