#include "cuda/attention/runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "base/int.h"
#include "cuda/check.h"
#include "cuda/kernels.h"
#include "cuda/trial.h"
namespace athanor::cuda {
namespace {

constexpr double kLeastGain = 0.01;  // required advantage of own kernels
constexpr size_t kAlign = 256;

// Unique per problem.
std::string name_of(const AttentionProblem& p) {
  std::string name = cat(p, ", rows ", p.stride_q, " ", p.stride_k, " ", p.stride_v);
  if (p.backward) name += cat(" ", p.stride_dq, " ", p.stride_dk, " ", p.stride_dv);
  return name;
}

// An op on its own memory: random numbers, whole sequences or documents_to_measure(); for backward, also the results of
// forward.
template <class Op>
class Trial {
 public:
  Trial(const Op& like, int64_t tokens, size_t scratch_bytes, cudaStream_t stream)
      : op_(like), stream_(stream), memory_(room_of(op_) + scratch_bytes), watch_(stream) {
    char* at = memory_.data();
    uint64_t draws = 0;
    for (const Field& field : op_.fields()) {
      if (!*field.t) continue;
      field.t->data = at;
      at += room_of(*field.t);
      if (field.t->dtype != DType::i32)
        cuda::run(RandomNormal{.x = {field.t->data, field.t->dtype, {elements(*field.t)}}, .stream = draws++, .std = 1},
                  nullptr, stream);
    }
    scratch_ = at;
    write_spans(tokens);
    if constexpr (std::is_same_v<Op, AttentionBwd>)
      cuda::run(
          AttentionFwd{
              .y = op_.y, .lse = op_.lse, .q = op_.q, .k = op_.k, .v = op_.v, .spans = op_.spans, .shape = op_.shape},
          nullptr, stream);
  }
  // Per launch.
  template <class Launch>
  double microseconds(int launches, Launch&& launch) {
    const auto all = [&] {
      for (int i = 0; i < launches; ++i) launch(op_, scratch_);
    };
    return watch_.microseconds(all) / launches;
  }

 private:
  static int64_t elements(const Tensor& t) { return t.rows() * t.stride(); }
  static size_t room_of(const Tensor& t) {
    if (!t) return 0;
    return round_up(static_cast<size_t>(elements(t)) * size_of(t.dtype), kAlign);
  }
  static size_t room_of(Op& op) {
    size_t bytes = 0;
    for (const Field& field : op.fields()) bytes += room_of(*field.t);
    return bytes;
  }
  void write_spans(int64_t tokens) {
    const int64_t rows = op_.spans.rows(), sequences = op_.q.rows() / tokens;
    std::vector<Span> spans = documents_to_measure(sequences, tokens, rows / sequences);
    spans.resize(static_cast<size_t>(rows));
    CUDA_CHECK(cudaMemcpyAsync(op_.spans.data, spans.data(), op_.spans.bytes(), cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  Op op_;
  cudaStream_t stream_;
  DeviceMemory memory_;
  Stopwatch watch_;
  void* scratch_ = nullptr;
};

}  // namespace

AttentionRunner::AttentionRunner(std::unique_ptr<CudnnAttention> cudnn, bool by_trial)
    : cudnn_(std::move(cudnn)), by_trial_(by_trial) {}

void AttentionRunner::take(const AttentionChoices& choices) {
  for (const auto& [problem, choice] : choices) choices_[problem] = choice;
}

template <class Op>
bool AttentionRunner::by_cudnn(const Op& op) const {
  return cudnn_ && cudnn_->supports(op) && is_chosen(cudnn_->problem_of(op));
}

bool AttentionRunner::is_chosen(const AttentionProblem& p) const {
  if (!by_trial_) return true;
  const auto choice = choices_.find(name_of(p));
  return choice == choices_.end() ? p.window == 0 && !p.documents : !choice->second.own;
}

template <class Op>
size_t AttentionRunner::scratch(const Op& op) const {
  if (!cudnn_ || !cudnn_->supports(op)) return cuda::scratch(op);
  return by_trial_ ? std::max(cudnn_->scratch(op), cuda::scratch(op)) : cudnn_->scratch(op);
}

template <class Op>
void AttentionRunner::run(const Op& op, void* scratch, cudaStream_t stream) const {
  by_cudnn(op) ? cudnn_->run(op, scratch) : cuda::run(op, scratch, stream);
}

size_t AttentionRunner::wanted_scratch(const Tunable& ops) const {
  size_t most = 0;
  if (!cudnn_) return most;
  for (const AttentionFwd& op : ops.forward) most = std::max(most, cudnn_->wanted_scratch(op));
  for (const AttentionBwd& op : ops.backward) most = std::max(most, cudnn_->wanted_scratch(op));
  return most;
}

// Whose kernels are used, and why.
template <class Op>
std::string AttentionRunner::whose(const Op& op) const {
  std::string why = why_own_;
  if (!cudnn_ || !cudnn_->supports(op, &why)) return cat("the program's own kernels", why.empty() ? "" : ": ", why);
  if (!by_trial_) return "cuDNN's, as configured";
  const AttentionProblem p = cudnn_->problem_of(op);
  const bool tried = choices_.contains(name_of(p));
  if (!is_chosen(p)) return cat("the program's own kernels, ", tried ? "faster in a trial" : "without a trial");
  return cat("cuDNN's, ", tried ? "by a trial" : "without a trial");
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
AttentionChoice AttentionRunner::time_both(const Op& like, double* cudnn_microseconds, cudaStream_t stream) const {
  Trial<Op> trial(like, cudnn_->tokens(), scratch(like), stream);
  const std::vector<double> best = best_in_turns(2, [&](size_t own, int launches) {
    return trial.microseconds(launches, [&](const Op& op, void* scratch_memory) {
      own ? cuda::run(op, scratch_memory, stream) : cudnn_->run(op, scratch_memory);
    });
  });
  *cudnn_microseconds = best[false];
  const bool own = best[true] < (1 - kLeastGain) * best[false];
  return {.own = own, .microseconds = best[own]};
}

AttentionRunner::SearchReport AttentionRunner::search(const Tunable& ops, double seconds, cudaStream_t stream) {
  SearchReport report;
  if (!cudnn_ || !by_trial_) return report;
  const auto start = std::chrono::steady_clock::now();
  const auto search_ops = [&]<class Op>(std::span<const Op> all) {
    std::map<std::string, std::pair<Op, int>> distinct;  // with its number of launches
    for (const Op& op : all)
      if (cudnn_->supports(op)) ++distinct.try_emplace(name_of(cudnn_->problem_of(op)), op, 0).first->second.second;
    report.problems += static_cast<int>(distinct.size());
    for (const auto& [problem, work] : distinct) {
      if (choices_.contains(problem)) continue;
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) return;
      double cudnn = 0;
      const Op& op = work.first;
      const AttentionChoice choice =
          with_context(cat("choosing whose kernels compute ", problem), [&] { return time_both(op, &cudnn, stream); });
      choices_[problem] = choice;
      ++report.timed;
      report.own += choice.own;
      report.first_microseconds += work.second * cudnn;
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
