#include "cuda/attention/cudnn_attention.h"

#include <limits>
#include <ostream>

#include "base/int.h"
#include "base/log.h"
#include "cuda/attention/document_bounds.h"
namespace athanor::cuda {
namespace {

enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kLse,
  kDy,
  kDq,
  kDk,
  kDv,
  kRowSums,
  kScale,
  kMinusInfinity,
  kOne,
  kWindow,
  kBeforeWindow,
  kBounds,
  kOtherDocument
};

constexpr float kMinusInfinityValue = -std::numeric_limits<float>::infinity();
// Mask value for windows and documents, as in cudnn-frontend. A row may begin with blocks of hidden keys only, where a
// row maximum of -inf would give -inf - -inf.
constexpr float kHiddenValue = -0x1p30F;
constexpr size_t kAlign = 256;
constexpr int64_t kVectorElements = 8;  // 16 bytes of 16-bit elements, the access width of cuDNN's kernels

cudnnDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF; }

// Reason why the op is not supported, as far as it is known without a call of the library; empty: it may be supported.
template <class Op>
std::string why_not(const Op& op, const CudnnAttention::Options& options) {
  const int64_t tokens = options.tokens;
  const AttentionShape& s = op.shape;
  const int64_t rows = op.q.rows();
  if (op.q.dtype != DType::bf16 && op.q.dtype != DType::f16) return cat("q is ", op.q.dtype, ", not bf16 or f16");
  if constexpr (std::is_same_v<Op, AttentionFwd>)
    if (op.top) return "qk_clip_threshold needs the largest scores, which cuDNN does not return";
  if (!s.causal) return "attention is not causal, which plans are built for";
  if (s.softcap > 0) return cat("attn_logit_softcapping ", s.softcap, ": cuDNN cannot cap scores");
  if (s.sparse.group > 0) return cat("sparse_attention in groups of ", s.sparse.group, ": cuDNN has no such mask");
  if (s.head_dim % kVectorElements != 0) return cat("head_dim ", s.head_dim, " is no multiple of ", kVectorElements);
  if (rows == 0 || rows % tokens != 0 || op.k.rows() != rows ||
      (!options.documents && op.spans.rows() != rows / tokens))
    return cat(op.spans.rows(), " spans of ", rows, " queries and ", op.k.rows(), " keys are not ",
               options.documents ? "documents in" : "whole", " sequences of length ", tokens);
  const AttentionProblem p = problem_of(op, tokens);
  for (const int64_t stride : {p.stride_q, p.stride_k, p.stride_v, p.stride_dq, p.stride_dk, p.stride_dv})
    if (stride % kVectorElements != 0) return cat("rows ", stride, " elements apart, no multiple of ", kVectorElements);
  return "";
}

}  // namespace

AttentionProblem problem_of(const AttentionFwd& op, int64_t tokens) {
  return {.backward = false,
          .batch = op.q.rows() / tokens,
          .tokens = tokens,
          .heads = op.shape.heads,
          .kv_heads = op.shape.kv_heads,
          .head_dim = op.shape.head_dim,
          .dtype = op.q.dtype,
          .stride_q = op.q.stride(),
          .stride_k = op.k.stride(),
          .stride_v = op.v.stride(),
          .window = op.shape.window < tokens ? op.shape.window : 0,
          .documents = op.spans.rows() != op.q.rows() / tokens};
}

AttentionProblem problem_of(const AttentionBwd& op, int64_t tokens) {
  AttentionProblem p =
      problem_of(AttentionFwd{.q = op.q, .k = op.k, .v = op.v, .spans = op.spans, .shape = op.shape}, tokens);
  p.backward = true;
  p.stride_dq = op.dq.stride();
  p.stride_dk = op.dk.stride();
  p.stride_dv = op.dv.stride();
  return p;
}

std::ostream& operator<<(std::ostream& out, const AttentionProblem& p) {
  out << "attention " << (p.backward ? "backward" : "forward") << " of " << p.batch << " x " << p.tokens << " tokens, "
      << p.heads << "/" << p.kv_heads << " heads of " << p.head_dim << ", " << p.dtype;
  if (p.window > 0) out << ", a window of " << p.window;
  return out << (p.documents ? ", documents" : "");
}

AttentionPlan::AttentionPlan(const CudnnTable& cudnn, CudnnTarget target, const AttentionProblem& p,
                             const PlanFiles& files)
    : p_(p), graph_(cudnn, target), type_(type_of(p.dtype)) {
  with_context(cat(p), [&] {
    p_.backward ? backward() : forward();
    if (restore(files)) return;
    std::string why;
    if (graph_.plan(&why))
      files.store(graph_.description(), graph_.plan_text());
    else
      why_not_ = cat("cuDNN has no ", p_, " for this GPU: ", why);
  });
}

bool AttentionPlan::restore(const PlanFiles& files) {
  const std::string text = files.load(graph_.description());
  std::string why;
  if (text.empty() || graph_.restore(text, &why)) return !text.empty();
  log::warn("tuning_cache: the plan of ", p_, " cannot be used and is built again: ", why);
  return false;
}

// A tensor [batch, head, token, dim] whose tokens are rows in memory.
AttentionPlan::Node AttentionPlan::rows(int64_t id, int64_t heads, int64_t stride) {
  return graph_.memory(id, {p_.batch, heads, p_.tokens, p_.head_dim}, {p_.tokens * stride, p_.head_dim, stride, 1},
                       type_);
}

AttentionPlan::Inputs AttentionPlan::inputs() {
  // k is the right operand of a matmul, and so is v in backward: their rows are columns of the operand.
  const auto columns = [this](int64_t id, int64_t stride) {
    return graph_.memory(id, {p_.batch, p_.kv_heads, p_.head_dim, p_.tokens},
                         {p_.tokens * stride, p_.head_dim, 1, stride}, type_);
  };
  return {.q = rows(kQ, p_.heads, p_.stride_q),
          .k = columns(kK, p_.stride_k),
          .v = p_.backward ? columns(kV, p_.stride_v) : rows(kV, p_.kv_heads, p_.stride_v),
          .y = rows(kY, p_.heads, p_.heads * p_.head_dim),
          .lse = graph_.memory(kLse, {p_.batch, p_.heads, p_.tokens, 1}, {p_.tokens * p_.heads, 1, p_.heads, 1},
                               CUDNN_DATA_FLOAT)};
}

AttentionPlan::Node AttentionPlan::like(const Node& x, cudnnDataType_t type) {
  return graph_.temporary(x.dims, x.strides, type);
}
AttentionPlan::Node AttentionPlan::apply(cudnnPointwiseMode_t mode, const Node& x, const Node& b) {
  return graph_.pointwise({.mode = mode, .b = &b}, x, like(x));
}
AttentionPlan::Node AttentionPlan::apply(cudnnPointwiseMode_t mode, const Node& x) {
  return graph_.pointwise({.mode = mode}, x, like(x));
}

AttentionPlan::Node AttentionPlan::scaled_scores(const Inputs& in, const Node& scale) {
  const int64_t b = p_.batch, h = p_.heads, t = p_.tokens;
  const Node scores = graph_.temporary({b, h, t, t}, {h * t * t, t * t, t, 1}, CUDNN_DATA_FLOAT);
  return apply(CUDNN_POINTWISE_MUL, graph_.matmul(in.q, in.k, scores), scale);
}

// Returns scores where the comparison `visible` holds between a and b, else the scalar with the id `hidden`.
AttentionPlan::Node AttentionPlan::hide(const Node& scores, cudnnPointwiseMode_t visible, const Node& a, const Node& b,
                                        int64_t hidden) {
  const Node seen =
      graph_.pointwise({.mode = visible, .b = &b, .precision = CUDNN_DATA_BOOLEAN}, a, like(a, CUDNN_DATA_BOOLEAN));
  const Node value = graph_.scalar(hidden);
  return graph_.pointwise({.mode = CUDNN_POINTWISE_BINARY_SELECT, .b = &value, .t = &seen}, scores, like(scores));
}

// Masks the scores of keys after their query, outside its window or in another document. Forward engines recognize "key
// + window > query" and skip the blocks of keys before the window; if it is written differently, they do not. Forward
// compares documents per query, because engines then load four times less. Backward compares them per key, because only
// the engines of compute capability 9.0 accept the per-query form.
AttentionPlan::Node AttentionPlan::masked(const Node& scores) {
  const auto index = [&](int64_t axis) {
    return graph_.pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .axis = axis, .precision = CUDNN_DATA_INT32}, scores,
                            like(scores, CUDNN_DATA_INT32));
  };
  const Node query = index(2), key = index(3);
  Node seen = hide(scores, CUDNN_POINTWISE_CMP_GE, query, key, kMinusInfinity);
  if (p_.window > 0) {
    const Node window = graph_.scalar(kWindow, CUDNN_DATA_INT32);
    const Node end = graph_.pointwise({.mode = CUDNN_POINTWISE_ADD, .b = &window, .precision = CUDNN_DATA_INT32}, key,
                                      like(key, CUDNN_DATA_INT32));
    seen = hide(seen, CUDNN_POINTWISE_CMP_GT, end, query, kBeforeWindow);
  }
  if (!p_.documents) return seen;
  const int64_t b = p_.batch, t = p_.tokens;
  if (p_.backward) {
    const Node ends = graph_.memory(kBounds, {b, 1, 1, t}, {t, t, t, 1}, CUDNN_DATA_INT32);
    return hide(seen, CUDNN_POINTWISE_CMP_LT, query, ends, kOtherDocument);
  }
  const Node begins = graph_.memory(kBounds, {b, 1, t, 1}, {t, t, 1, 1}, CUDNN_DATA_INT32);
  return hide(seen, CUDNN_POINTWISE_CMP_GE, key, begins, kOtherDocument);
}

// y = softmax(masked(q k^T scale)) v; lse = max + log(sum).
void AttentionPlan::forward() {
  const Inputs in = inputs();
  const CudnnGraph::Dims dims{p_.batch, p_.heads, p_.tokens, 1}, strides{p_.heads * p_.tokens, p_.tokens, 1, 1};
  const auto column = [&] { return graph_.temporary(dims, strides, CUDNN_DATA_FLOAT); };
  const Node scores = masked(scaled_scores(in, graph_.scalar(kScale)));
  const Node largest = graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, column());
  const Node exponentials = apply(CUDNN_POINTWISE_EXP, apply(CUDNN_POINTWISE_SUB, scores, largest));
  const Node sum = graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, column());
  const Node log = apply(CUDNN_POINTWISE_LOG, sum);
  graph_.pointwise({.mode = CUDNN_POINTWISE_ADD, .b = &log}, largest, in.lse);
  const Node weights =
      graph_.pointwise({.mode = CUDNN_POINTWISE_DIV, .b = &sum}, exponentials, like(exponentials, type_));
  graph_.matmul(weights, in.v, in.y);
}

// out = weights^T rows, summed over the query heads that share a key head.
void AttentionPlan::add_key_gradient(const Node& weights, const Node& rows_of_queries, const Node& out) {
  const int64_t b = p_.batch, h = p_.heads, t = p_.tokens, d = p_.head_dim;
  const Node transposed = graph_.reshape(weights, graph_.temporary({b, h, t, t}, {h * t * t, t * t, 1, t}, type_));
  if (p_.heads == p_.kv_heads) {
    graph_.matmul(transposed, rows_of_queries, out);
    return;
  }
  const Node each = graph_.temporary({b, h, t, d}, {h * t * d, t * d, d, 1}, type_);
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.matmul(transposed, rows_of_queries, each), out);
}

// [Dao et al. 2022, algorithm 4] P = exp(S - lse), dv = P^T dy, dS = P (dy v^T - rowsum(dy y)) scale, dk = dS^T q, dq =
// dS k. With dq as a direct output cuDNN uses the path without atomics, instead of sums in f32 memory.
void AttentionPlan::backward() {
  const int64_t b = p_.batch, h = p_.heads, t = p_.tokens, d = p_.head_dim;
  const Inputs in = inputs();
  const Node dy = rows(kDy, h, h * d), dq = rows(kDq, h, p_.stride_dq);
  const Node dk = rows(kDk, p_.kv_heads, p_.stride_dk), dv = rows(kDv, p_.kv_heads, p_.stride_dv);
  const CudnnGraph::Dims column{b, h, t, 1}, column_strides{h * t, t, 1, 1};
  const Node products =
      graph_.pointwise({.mode = CUDNN_POINTWISE_MUL, .b = &in.y}, dy,
                       graph_.temporary({b, h, t, d}, {h * t * d, t * d, h * d, 1}, CUDNN_DATA_FLOAT));
  const Node sums =
      graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, products, graph_.temporary(column, column_strides, CUDNN_DATA_FLOAT));
  const Node one = graph_.scalar(kOne);  // multiplication by 1, since the engines require the sums in memory
  const Node row_sums = graph_.pointwise({.mode = CUDNN_POINTWISE_MUL, .b = &one}, sums,
                                         graph_.memory(kRowSums, column, column_strides, CUDNN_DATA_FLOAT));
  const Node scale = graph_.scalar(kScale);
  const Node weights = apply(CUDNN_POINTWISE_EXP, masked(apply(CUDNN_POINTWISE_SUB, scaled_scores(in, scale), in.lse)));
  add_key_gradient(weights, dy, dv);
  const Node dp = graph_.matmul(dy, in.v, like(weights));
  const Node ds =
      apply(CUDNN_POINTWISE_MUL, apply(CUDNN_POINTWISE_MUL, apply(CUDNN_POINTWISE_SUB, dp, row_sums), weights), scale);
  add_key_gradient(ds, in.q, dk);
  const Node keys =
      graph_.reshape(in.k, graph_.temporary({b, p_.kv_heads, t, d}, {t * p_.stride_k, d, p_.stride_k, 1}, type_));
  graph_.matmul(ds, keys, dq);
}

size_t AttentionPlan::row_sums_offset() const { return round_up(graph_.workspace_bytes(), kAlign); }

size_t AttentionPlan::row_sums_end() const {
  const int64_t row_sums = p_.backward ? p_.batch * p_.heads * p_.tokens : 0;
  return row_sums_offset() + static_cast<size_t>(row_sums) * sizeof(float);
}

size_t AttentionPlan::bounds_offset() const { return round_up(row_sums_end(), kAlign); }

size_t AttentionPlan::scratch() const {
  if (!p_.documents) return row_sums_end();
  return bounds_offset() + static_cast<size_t>(p_.batch * p_.tokens) * sizeof(int32_t);
}

// tensors: the bindings that every mask needs; launch() adds those of windows and documents.
void AttentionPlan::launch(std::vector<CudnnGraph::Binding> tensors, const Tensor& spans, void* scratch,
                           cudaStream_t stream) const {
  const auto window = static_cast<int32_t>(p_.window);
  if (p_.window > 0) {
    tensors.push_back({kWindow, &window});
    tensors.push_back({kBeforeWindow, &kHiddenValue});
  }
  with_context(cat(p_), [&] {
    if (p_.documents) {
      auto* bounds = reinterpret_cast<int32_t*>(static_cast<char*>(scratch) + bounds_offset());
      cuda::run(
          DocumentBounds{
              .bounds = bounds, .ends = p_.backward, .rows = p_.batch * p_.tokens, .tokens = p_.tokens, .spans = spans},
          stream);
      tensors.push_back({kBounds, bounds});
      tensors.push_back({kOtherDocument, &kHiddenValue});
    }
    graph_.launch(tensors, scratch);
  });
}

void AttentionPlan::run(const AttentionFwd& op, void* scratch, cudaStream_t stream) const {
  launch({{kQ, op.q.data},
          {kK, op.k.data},
          {kV, op.v.data},
          {kY, op.y.data},
          {kLse, op.lse.data},
          {kScale, &op.shape.scale},
          {kMinusInfinity, &kMinusInfinityValue}},
         op.spans, scratch, stream);
}

void AttentionPlan::run(const AttentionBwd& op, void* scratch, cudaStream_t stream) const {
  const float one = 1;
  launch({{kQ, op.q.data},
          {kK, op.k.data},
          {kV, op.v.data},
          {kY, op.y.data},
          {kLse, op.lse.data},
          {kDy, op.dy.data},
          {kDq, op.dq.data},
          {kDk, op.dk.data},
          {kDv, op.dv.data},
          {kRowSums, static_cast<char*>(scratch) + row_sums_offset()},
          {kScale, &op.shape.scale},
          {kMinusInfinity, &kMinusInfinityValue},
          {kOne, &one}},
         op.spans, scratch, stream);
}

CudnnAttention::CudnnAttention(const CudnnTable& cudnn, cudaStream_t stream, Options options)
    : cudnn_(cudnn),
      stream_(stream),
      options_(std::move(options)),
      forward_(open()),
      backward_(nullptr, cudnn.cudnnDestroy) {
  CHECK(options_.tokens > 0, "attention over sequences of ", options_.tokens, " tokens");
}

CudnnAttention::Handle CudnnAttention::open() const {
  cudnnHandle_t made = nullptr;
  require_cudnn(cudnn_, cudnn_.cudnnCreate(&made), "cannot start (memory exhausted, or a driver older than 580?)");
  Handle handle(made, cudnn_.cudnnDestroy);
  require_cudnn(cudnn_, cudnn_.cudnnSetStream(made, stream_), "cannot use the stream");
  return handle;
}

CudnnAttention::Plan CudnnAttention::make(const AttentionProblem& p) {
  if (p.backward && !backward_) backward_ = open();
  const CudnnTarget target{.handle = p.backward ? backward_.get() : forward_.get()};
  return std::make_unique<AttentionPlan>(cudnn_, target, p, options_.files);
}

const AttentionPlan& CudnnAttention::plan_of(const AttentionProblem& p) {
  Plan& plan = plans_[p];
  if (plan) return *plan;
  take_ahead();  // the plan built ahead may be this one
  if (!p.backward) begin_ahead(p);
  if (!plan) plan = make(p);
  return *plan;
}

// Assumes that the gradients of q, k and v have the strides of q, k and v.
void CudnnAttention::begin_ahead(const AttentionProblem& forward) {
  AttentionProblem p = forward;
  p.backward = true;
  p.stride_dq = p.stride_q;
  p.stride_dk = p.stride_k;
  p.stride_dv = p.stride_v;
  if (!options_.enter_thread || plans_.contains(p)) return;
  try {
    ahead_ = std::async(std::launch::async, [this, p] {
      options_.enter_thread();
      return Ahead{p, make(p)};
    });
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): no thread; plan_of() builds the plan
  }
}

void CudnnAttention::take_ahead() {
  if (!ahead_.valid()) return;
  try {
    Ahead made = ahead_.get();
    plans_[made.problem] = std::move(made.plan);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): plan_of() tries again and throws
  }
}

template <class Op>
bool CudnnAttention::supports(const Op& op, std::string* why) {
  std::string reason = why_not(op, options_);
  if (reason.empty()) {
    const AttentionPlan& plan = plan_of(problem_of(op));
    reason = plan.why_not();
    if (reason.empty() && plan.scratch() > options_.most_scratch)
      reason = cat("cuDNN needs ", plan.scratch(), " bytes of scratch memory, more than ", options_.most_scratch);
  }
  if (why) *why = reason;
  return reason.empty();
}

template <class Op>
size_t CudnnAttention::wanted_scratch(const Op& op) {
  if (!why_not(op, options_).empty()) return 0;
  const AttentionPlan& plan = plan_of(problem_of(op));
  return plan.why_not().empty() && plan.scratch() > options_.most_scratch ? plan.scratch() : 0;
}

template size_t CudnnAttention::wanted_scratch(const AttentionFwd&);
template size_t CudnnAttention::wanted_scratch(const AttentionBwd&);
template bool CudnnAttention::supports(const AttentionFwd&, std::string*);
template bool CudnnAttention::supports(const AttentionBwd&, std::string*);

}  // namespace athanor::cuda
