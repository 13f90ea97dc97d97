#include "cuda/attention/runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "base/int.h"
#include "base/log.h"
#include "cuda/attention/attention.h"
#include "cuda/autotune.h"
#include "cuda/check.h"
#include "cuda/compare.h"
#include "cuda/kernels.h"
#include "cuda/quantize/quantize.h"
namespace athanor::cuda {
namespace {

constexpr double kLeastGain = 0.01;  // required advantage of a candidate over those before it
constexpr size_t kAlign = 256;

// Text that identifies a problem.
std::string text_of(const AttentionProblem& p) {
  std::string name = cat(p, ", rows ", p.stride_q, " ", p.stride_k, " ", p.stride_v);
  if (p.backward) name += cat(" ", p.stride_dq, " ", p.stride_dk, " ", p.stride_dv);
  return name;
}

// An op with its own memory for timing: random numbers, and whole sequences or documents_to_measure(); backward also
// has the results of forward.
template <class Op>
class AttentionTimer {
 public:
  AttentionTimer(const Op& like, int64_t tokens, size_t scratch_bytes, cudaStream_t stream)
      : op_(like), stream_(stream), memory_(padded_bytes(op_) + scratch_bytes), watch_(stream) {
    char* at = memory_.data();
    uint64_t draws = 0;
    for (const Field& field : op_.fields()) {
      if (!*field.t) continue;
      field.t->data = at;
      at += padded_bytes(*field.t);
      if (field.t->dtype != DType::i32)
        cuda::run(RandomNormal{.x = {field.t->data, field.t->dtype, {elements(*field.t)}}, .stream = draws++, .std = 1},
                  nullptr, stream);
    }
    scratch_ = at;
    write_spans(tokens);
    if constexpr (std::is_same_v<Op, AttentionBwd>) {
      if (op_.cos_sin)
        write(op_.positions, positions_to_measure(op_.positions.numel(), std::min(tokens, op_.cos_sin.rows())).data());
      cuda::run(
          AttentionFwd{
              .y = op_.y, .lse = op_.lse, .q = op_.q, .k = op_.k, .v = op_.v, .spans = op_.spans, .shape = op_.shape},
          nullptr, stream);
    }
  }
  // Microseconds per launch.
  template <class Launch>
  double microseconds(int launches, Launch&& launch) {
    const auto all = [&] {
      for (int i = 0; i < launches; ++i) launch(op_, scratch_);
    };
    return watch_.microseconds(all) / launches;
  }
  template <class Expected, class Candidate>
  std::string difference(Expected&& expected, Candidate&& candidate) {  // see cuda/compare.h
    return cuda::difference(
        op_, stream_, [&] { expected(op_, scratch_); }, [&] { candidate(op_, scratch_); });
  }

 private:
  static int64_t elements(const Tensor& t) { return t.shape.rank > 1 ? t.rows() * t.stride() : t.numel(); }
  static size_t padded_bytes(const Tensor& t) {
    if (!t) return 0;
    return round_up(static_cast<size_t>(elements(t)) * size_of(t.dtype), kAlign);
  }
  static size_t padded_bytes(Op& op) {
    size_t bytes = 0;
    for (const Field& field : op.fields()) bytes += padded_bytes(*field.t);
    return bytes;
  }
  void write_spans(int64_t tokens) {
    const int64_t rows = op_.spans.rows(), sequences = op_.q.rows() / tokens;
    std::vector<Span> spans = documents_to_measure(sequences, tokens, rows / sequences);
    spans.resize(static_cast<size_t>(rows));
    write(op_.spans, spans.data());
  }
  void write(const Tensor& t, const void* values) {
    CUDA_CHECK(cudaMemcpyAsync(t.data, values, t.bytes(), cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  Op op_;
  cudaStream_t stream_;
  DeviceMemory memory_;
  Stopwatch watch_;
  void* scratch_ = nullptr;
};

const char* words_of(AttentionKernels by) {
  return by == AttentionKernels::cudnn ? "cuDNN's" : "the program's own kernels";
}

}  // namespace

AttentionRunner::AttentionRunner(std::unique_ptr<CudnnAttention> cudnn, bool autotuned)
    : cudnn_(std::move(cudnn)), autotuned_(autotuned) {}

void AttentionRunner::take(const AttentionChoices& choices) {
  for (const auto& [problem, choice] : choices) choices_[problem] = choice;
}

template <class Op>
std::string AttentionRunner::name_of(const Op& op) const {
  std::string name = text_of(problem_of(op, tokens()));
  if constexpr (std::is_same_v<Op, AttentionBwd>)
    if (op.cos_sin) name += ", rotated back";
  return name;
}

template <class Op>
std::vector<AttentionKernels> AttentionRunner::candidates(const Op& op) const {
  if (!cudnn_ || !cudnn_->supports(op)) return {AttentionKernels::builtin};
  if (!autotuned_) return {AttentionKernels::cudnn};
  return {AttentionKernels::cudnn, AttentionKernels::builtin};
}

template <class Op>
AttentionKernels AttentionRunner::chosen(const Op& op) const {
  const std::vector<AttentionKernels> all = candidates(op);
  if (all.size() == 1) return all[0];
  const auto choice = choices_.find(name_of(op));
  if (choice != choices_.end() && std::ranges::find(all, choice->second.by) != all.end()) return choice->second.by;
  const AttentionProblem p = problem_of(op, tokens());
  return p.window == 0 && !p.documents ? all[0] : AttentionKernels::builtin;
}

template <class Op>
size_t AttentionRunner::scratch_of(AttentionKernels by, const Op& op) const {
  return by == AttentionKernels::cudnn ? cudnn_->scratch(op) : cuda::scratch(op);
}

template <class Op>
size_t AttentionRunner::scratch(const Op& op) const {
  size_t most = 0;
  for (const AttentionKernels by : candidates(op)) most = std::max(most, scratch_of(by, op));
  return most;
}

void AttentionRunner::run_cudnn(const AttentionFwd& op, void* scratch, cudaStream_t stream) const {
  cudnn_->run(op, scratch);
  find_amax(op.amax, op.y, stream);
}
void AttentionRunner::run_cudnn(const AttentionBwd& op, void* scratch, cudaStream_t stream) const {
  in_parts(op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, AttentionBwd>)
      cudnn_->run(part, scratch);
    else
      cuda::run(part, nullptr, stream);
  });
}

template <class Op>
void AttentionRunner::run_by(AttentionKernels by, const Op& op, void* scratch, cudaStream_t stream) const {
  if (by == AttentionKernels::cudnn) return run_cudnn(op, scratch, stream);
  cuda::run(op, scratch, stream);
}

bool AttentionRunner::fuses(const AttentionBwd& op) const {
  return warpgroups_take(op) && candidates(op) != std::vector{AttentionKernels::cudnn};
}

template <class Op>
void AttentionRunner::run(const Op& op, void* scratch, cudaStream_t stream) const {
  run_by(chosen(op), op, scratch, stream);
}

size_t AttentionRunner::wanted_scratch(const Tunable& ops) const {
  size_t most = 0;
  const auto add = [&](const auto& op) {
    if (cudnn_) most = std::max(most, cudnn_->wanted_scratch(op));
  };
  for (const AttentionFwd& op : ops.forward) add(op);
  for (const AttentionBwd& op : ops.backward) add(op);
  return most;
}

size_t AttentionRunner::allow_scratch(size_t bytes) { return cudnn_ ? cudnn_->allow_scratch(bytes) : bytes; }

// Whether cuDNN's or the program's own kernels compute the op, and the reason.
template <class Op>
std::string AttentionRunner::whose(const Op& op) const {
  std::string why = own_.why;
  const bool cudnn = cudnn_ && cudnn_->supports(op, &why), choice = candidates(op).size() > 1;
  const bool tried = choice && choices_.contains(name_of(op));
  const AttentionKernels by = chosen(op);
  if (by == AttentionKernels::cudnn)
    return cat(words_of(by), ", ", tried ? "by autotuning" : choice ? "without autotuning" : "as configured");
  const char* own = words_of(by);
  if (tried) return cat(own, ", faster when autotuned", cudnn || why.empty() ? "" : ": ", cudnn ? "" : why);
  if (cudnn) return cat(own, ", without autotuning");
  return cat(own, why.empty() ? "" : ": ", why);
}

std::string AttentionRunner::describe(const Tunable& ops) const {
  std::string text;
  const auto add = [&]<class Op>(const char* name, std::span<const Op> all) {
    std::vector<std::string> different;
    for (const Op& op : all)
      if (std::string words = whose(op); std::find(different.begin(), different.end(), words) == different.end())
        different.push_back(std::move(words));
    for (size_t i = 0; i < different.size(); ++i)
      text += cat(i == 0 ? cat(text.empty() ? "" : "; ", name, " by ") : " and ", different[i]);
  };
  add("forward", ops.forward);
  add("backward", ops.backward);
  return text;
}

template <class Op>
AttentionChoice AttentionRunner::time_all(const Op& like, double* first_microseconds, cudaStream_t stream) const {
  AttentionTimer<Op> timer(like, tokens(), scratch(like), stream);
  const std::vector<AttentionKernels> all = candidates(like);
  const auto launch_of = [&](AttentionKernels by) {
    return [this, by, stream](const Op& op, void* memory) { run_by(by, op, memory, stream); };
  };
  const std::vector<double> times = best_interleaved(
      all.size(), [&](size_t i, int launches) { return timer.microseconds(launches, launch_of(all[i])); });
  *first_microseconds = times[0];
  const auto expected = [stream](const Op& op, void* memory) { cuda::run_without_wgmma(op, memory, stream); };
  std::optional<size_t> best;
  for (size_t i = 0; i < all.size(); ++i) {
    if (best && times[i] >= (1 - kLeastGain) * times[*best]) continue;
    const std::string why = timer.difference(expected, launch_of(all[i]));
    if (why.empty()) {
      best = i;
      continue;
    }
    log::warn("attention: ", words_of(all[i]), " are not used for ", name_of(like),
              ", since in autotuning their results are not those of the program's kernels without wgmma: ", why,
              "; please report it");
  }
  if (!best)
    throw Error(
        cat("in autotuning no attention kernels agree with the program's kernels without wgmma; set attention to "
            "builtin or cudnn, and please report it"));
  return {.by = all[*best], .microseconds = times[*best]};
}

AttentionRunner::SearchReport AttentionRunner::search(const Tunable& ops, double seconds, cudaStream_t stream) {
  SearchReport report;
  if (!autotuned_) return report;
  const auto start = std::chrono::steady_clock::now();
  const auto search_ops = [&]<class Op>(std::span<const Op> all) {
    std::map<std::string, std::pair<Op, int>> distinct;  // each with its number of launches
    for (const Op& op : all)
      if (candidates(op).size() > 1) ++distinct.try_emplace(name_of(op), op, 0).first->second.second;
    report.problems += static_cast<int>(distinct.size());
    for (const auto& [problem, work] : distinct) {
      if (choices_.contains(problem)) continue;
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) return;
      double first = 0;
      const Op& op = work.first;
      const AttentionChoice choice =
          with_context(cat("choosing the kernels of ", problem), [&] { return time_all(op, &first, stream); });
      choices_[problem] = choice;
      ++report.timed;
      report.own += choice.by != AttentionKernels::cudnn;
      report.first_microseconds += work.second * first;
      report.best_microseconds += work.second * choice.microseconds;
    }
  };
  search_ops(ops.forward);
  search_ops(ops.backward);
  return report;
}

template size_t AttentionRunner::scratch(const AttentionFwd&) const;
template size_t AttentionRunner::scratch(const AttentionBwd&) const;
template void AttentionRunner::run(const AttentionFwd&, void*, cudaStream_t) const;
template void AttentionRunner::run(const AttentionBwd&, void*, cudaStream_t) const;

}  // namespace athanor::cuda
