// Causal attention through cuDNN's graph interface, for sequences of equal length without gaps, optionally divided into
// documents, and with windows; other cases use the kernels of attention.h. lse has the format of ops/attention.h, so
// forward and backward may be computed by different kernels. Deterministic: backward needs a workspace of two bytes per
// score instead of atomics. Plans are built on first use, which takes most of a second, or restored (plan_files.h).
// Launches allocate nothing and may be captured. An instance serves one thread and one stream.
//
// Documents are masked by a comparison within the graph, with the begin or end of each token's document
// (document_bounds.h), which is computed from the table of spans at each launch. Scores of other documents are computed
// and then masked; rows outside every span are treated as documents of one token.
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
  int64_t batch = 0, tokens = 0;  // number of sequences, and the length of each
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  DType dtype{};
  int64_t stride_q = 0, stride_k = 0, stride_v = 0;           // elements between tokens
  int64_t stride_dq = 0, stride_dk = 0, stride_dv = 0;        // used in backward only
  int64_t window = 0;                                         // 0: none, or one that hides nothing
  bool documents = false;                                     // false: each sequence is one document
  auto operator<=>(const AttentionProblem&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
AttentionProblem problem_of(const AttentionFwd& op, int64_t tokens);
AttentionProblem problem_of(const AttentionBwd& op, int64_t tokens);
std::ostream& operator<<(std::ostream& out, const AttentionProblem& p);

// The graph and plan of one problem, for a GPU or a described one.
class AttentionPlan {
 public:
  // Restores the plan if a file has it, else builds and stores it.
  AttentionPlan(const CudnnTable& cudnn, CudnnTarget target, const AttentionProblem& p, const PlanFiles& files = {});
  const std::string& why_not() const { return why_not_; }  // reason why no engine supports it; empty if one does
  int64_t engine() const { return graph_.engine(); }       // -1: unknown, since the plan was restored
  size_t scratch() const;                                  // in bytes

  void run(const AttentionFwd& op, void* scratch, cudaStream_t stream) const;
  void run(const AttentionBwd& op, void* scratch, cudaStream_t stream) const;

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
  Node hide(const Node& scores, cudnnPointwiseMode_t visible, const Node& a, const Node& b, int64_t hidden);
  Node masked(const Node& scores);
  void forward();
  void backward();
  void add_key_gradient(const Node& weights, const Node& rows_of_queries, const Node& out);
  bool restore(const PlanFiles& files);
  void launch(std::vector<CudnnGraph::Binding> tensors, const Tensor& spans, void* scratch, cudaStream_t stream) const;
  size_t row_sums_offset() const;
  size_t row_sums_end() const;
  size_t bounds_offset() const;

  AttentionProblem p_;
  CudnnGraph graph_;
  cudnnDataType_t type_;
  std::string why_not_;
};

class CudnnAttention {
 public:
  struct Options {
    // The caller promises: if the span table has one row per `tokens` queries, and there are as many keys as queries,
    // the spans are whole sequences of that length. The table is in device memory and is not read.
    int64_t tokens = 0;
    // True: the caller promises that for other span tables, if there are as many keys as queries, each span is a
    // document within one of the sequences, and its queries are its keys. False: such tables are not supported.
    bool documents = false;
    size_t most_scratch = SIZE_MAX;  // problems whose plan needs more are not supported
    PlanFiles files = {};
    // While a forward plan is built, another thread builds the matching backward plan; that thread calls this first, to
    // select the GPU. Empty: no such thread.
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
  // Whether run() supports the op; if not, `why` receives the reason.
  template <class Op>
  bool supports(const Op& op, std::string* why = nullptr);
  // Scratch memory that the op's plan needs, if only most_scratch prevents its use; else 0.
  template <class Op>
  size_t wanted_scratch(const Op& op);
  size_t most_scratch() const { return options_.most_scratch; }
  // Sets most_scratch and returns the previous limit.
  size_t allow_scratch(size_t most) { return std::exchange(options_.most_scratch, most); }
  template <class Op>
  size_t scratch(const Op& op) {
    return plan_of(problem_of(op)).scratch();
  }
  template <class Op>
  void run(const Op& op, void* scratch) {
    plan_of(problem_of(op)).run(op, scratch, stream_);
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
  std::future<Ahead> ahead_;  // backward plan; its thread uses backward_ until take_ahead()
};
}  // namespace athanor::cuda
