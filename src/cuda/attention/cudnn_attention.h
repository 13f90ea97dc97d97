// Causal attention through cuDNN's graph interface, for sequences of one length without gaps; everything else is for
// the kernels of attention.h. The log-sum-exp that forward stores and backward reads is that of ops/attention.h, so
// either may be computed elsewhere. Both repeat their bits: backward keeps the products that make dq in a workspace of
// two bytes per score instead of adding them up with atomics. Plans are made on first use, most of a second each,
// unless a file has them (plan_files.h); launches allocate nothing on the device and may be captured. For one thread
// and one stream.
#pragma once
#include <cuda_runtime_api.h>

#include <compare>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cuda/attention/cudnn_graph.h"
#include "cuda/plan_files.h"
#include "ops/attention.h"
namespace athanor::cuda {

// Everything that a plan depends on.
struct AttentionProblem {
  bool backward = false;
  int64_t batch = 0, tokens = 0;  // sequences, and the length of each
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  DType dtype{};
  int64_t stride_q = 0, stride_k = 0, stride_v = 0;           // elements between tokens
  int64_t stride_dq = 0, stride_dk = 0, stride_dv = 0;        // backward only
  auto operator<=>(const AttentionProblem&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
AttentionProblem problem_of(const AttentionFwd& op, int64_t tokens);
AttentionProblem problem_of(const AttentionBwd& op, int64_t tokens);
std::ostream& operator<<(std::ostream& out, const AttentionProblem& p);

// The graph of one problem, planned for a GPU or for a described one.
class AttentionPlan {
 public:
  // Loads the plan if a file has it, else builds and saves it.
  AttentionPlan(const CudnnTable& cudnn, CudnnTarget target, const AttentionProblem& p, const PlanFiles& files = {});
  const std::string& why_not() const { return why_not_; }  // no engine supports it; empty if one does
  int64_t engine() const { return graph_.engine(); }       // -1: restored
  size_t scratch() const;                                  // bytes

  void run(const AttentionFwd& op, void* scratch) const;
  void run(const AttentionBwd& op, void* scratch) const;

 private:
  using Node = CudnnGraph::Node;
  struct Inputs {
    Node q, k, v, y, lse;
  };
  Node rows(int64_t id, int64_t heads, int64_t stride);
  Inputs inputs();
  Node like(const Node& x, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Node apply(cudnnPointwiseMode_t mode, const Node& x, const Node& b);
  Node apply(cudnnPointwiseMode_t mode, const Node& x);
  Node scaled_scores(const Inputs& in, const Node& scale);
  Node causal(const Node& scores);
  void forward();
  void backward();
  void add_key_gradient(const Node& weights, const Node& rows_of_queries, const Node& out);
  bool restore(const PlanFiles& files);
  size_t row_sums_offset() const;

  AttentionProblem p_;
  CudnnGraph graph_;
  cudnnDataType_t type_;
  std::string why_not_;
};

class CudnnAttention {
 public:
  struct Options {
    // The caller promises that an op whose table of spans has one row for every `tokens` queries, as many keys as
    // queries, means whole sequences of that length; the table itself is in device memory and not looked at.
    int64_t tokens = 0;
    size_t most_scratch = SIZE_MAX;  // problems whose plan needs more are not supported
    PlanFiles files = {};
    // While the plan of forward is made, another thread makes that of the backward which follows it in training; first
    // it calls this, to use the same GPU. Empty: there is no such thread.
    std::function<void()> enter_thread = {};
  };
  CudnnAttention(const CudnnTable& cudnn, cudaStream_t stream, Options options);
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  size_t version() const { return cudnn_.cudnnGetVersion(); }
  int64_t tokens() const { return options_.tokens; }
  template <class Op>
  AttentionProblem problem_of(const Op& op) const {
    return cuda::problem_of(op, options_.tokens);
  }
  // Whether run() supports the op; if not, `why` gets the reason.
  template <class Op>
  bool supports(const Op& op, std::string* why = nullptr);
  // Scratch memory that a plan needs if only most_scratch prevents it; else 0.
  template <class Op>
  size_t wanted_scratch(const Op& op);
  // Returns the previous limit.
  size_t allow_scratch(size_t most) { return std::exchange(options_.most_scratch, most); }
  template <class Op>
  size_t scratch(const Op& op) {
    return plan_of(problem_of(op)).scratch();
  }
  template <class Op>
  void run(const Op& op, void* scratch) {
    plan_of(problem_of(op)).run(op, scratch);
  }

 private:
  using Handle = std::unique_ptr<cudnnContext, cudnnStatus_t (*)(cudnnHandle_t)>;
  using Plan = std::unique_ptr<AttentionPlan>;
  struct Ahead {
    AttentionProblem problem;
    Plan plan;
  };
  Handle open() const;
  const AttentionPlan& plan_of(const AttentionProblem& p);
  Plan make(const AttentionProblem& p);
  void begin_ahead(const AttentionProblem& p);
  void take_ahead();

  CudnnTable cudnn_;
  cudaStream_t stream_;
  Options options_;
  Handle forward_, backward_;  // each used by one thread at a time
  std::map<AttentionProblem, Plan> plans_;
  std::future<Ahead> ahead_;  // of a backward; its thread uses backward_ until it is taken
};
}  // namespace athanor::cuda
