// See attention_graph.h.
#include "attention_graph.h"

#include <utility>

namespace emu::fakes {

AttentionGraph::AttentionGraph(const athanor::CudnnTable& table, cudnnHandle_t handle, const AttentionShape& shape)
    : table_(table), handle_(handle), s_(shape) {
  describe_inputs();
  s_.backward ? backward() : forward();
}

AttentionGraph::~AttentionGraph() {
  for (auto d = owned_.rbegin(); d != owned_.rend(); ++d) table_.cudnnBackendDestroyDescriptor(*d);
}

void AttentionGraph::keep(cudnnStatus_t status) {
  if (status_ == CUDNN_STATUS_SUCCESS) status_ = status;
}

cudnnBackendDescriptor_t AttentionGraph::make(cudnnBackendDescriptorType_t kind) {
  cudnnBackendDescriptor_t d = nullptr;
  keep(table_.cudnnBackendCreateDescriptor(kind, &d));
  if (d) owned_.push_back(d);
  return d;
}

template <class V>
void AttentionGraph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         V value) {
  keep(table_.cudnnBackendSetAttribute(d, name, type, 1, &value));
}

void AttentionGraph::link(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, const T* x) {
  if (x) set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, x->descriptor);
}

AttentionGraph::T AttentionGraph::tensor(int64_t id, Dims dims, Dims strides, cudnnDataType_t type, Kind kind) {
  cudnnBackendDescriptor_t d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  keep(table_.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data()));
  keep(table_.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data()));
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{kind == kReal ? 16 : 4});
  set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind == kVirtual);
  set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind == kByValue);
  keep(table_.cudnnBackendFinalize(d));
  return {d, std::move(dims), std::move(strides)};
}

AttentionGraph::T AttentionGraph::temporary(Dims dims, Dims strides, cudnnDataType_t type) {
  return tensor(next_++, std::move(dims), std::move(strides), type, kVirtual);
}

AttentionGraph::T AttentionGraph::scalar(int64_t id) {
  return tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, kByValue);
}

AttentionGraph::T AttentionGraph::finish(cudnnBackendDescriptor_t operation, const T& out) {
  keep(table_.cudnnBackendFinalize(operation));
  operations_.push_back(operation);
  return out;
}

AttentionGraph::T AttentionGraph::matmul(const T& a, const T& b, const T& c) {
  T how{make(CUDNN_BACKEND_MATMUL_DESCRIPTOR), {}, {}};
  set(how.descriptor, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  keep(table_.cudnnBackendFinalize(how.descriptor));
  cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, &how);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c);
  return finish(op, c);
}

AttentionGraph::T AttentionGraph::pointwise(cudnnPointwiseMode_t mode, const T& x, const T* b, const T* t, const T& y,
                                            int64_t axis) {
  T how{make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), {}, {}};
  set(how.descriptor, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  set(how.descriptor, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (axis >= 0) set(how.descriptor, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  keep(table_.cudnnBackendFinalize(how.descriptor));
  cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &how);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y);
  return finish(op, y);
}

AttentionGraph::T AttentionGraph::reduce(cudnnReduceTensorOp_t mode, const T& x, const T& y) {
  T how{make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR), {}, {}};
  set(how.descriptor, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
  set(how.descriptor, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  keep(table_.cudnnBackendFinalize(how.descriptor));
  cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y);
  return finish(op, y);
}

AttentionGraph::T AttentionGraph::reshape(const T& x, const T& y) {
  cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &x);
  link(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y);
  return finish(op, y);
}

// [batch, head, token, dim] over memory [batch, token, head, dim].
AttentionGraph::T AttentionGraph::rows(int64_t id, int64_t heads, bool transpose) {
  Dims dims{s_.batch, heads, s_.tokens, s_.dim}, strides{s_.tokens * heads * s_.dim, s_.dim, heads * s_.dim, 1};
  if (transpose) {
    std::swap(dims[2], dims[3]);
    std::swap(strides[2], strides[3]);
  }
  return tensor(id, dims, strides, s_.type);
}

void AttentionGraph::describe_inputs() {
  const int64_t b = s_.batch, h = s_.heads, n = s_.tokens;
  q_ = rows(kQ, h);
  k_ = rows(kK, s_.kv_heads, true);
  v_ = rows(kV, s_.kv_heads, s_.backward);
  o_ = rows(kO, h);
  stats_ = tensor(kStats, {b, h, n, 1}, {h * n, n, 1, 1}, CUDNN_DATA_FLOAT);
  minus_infinity_ = scalar(kMinusInfinity);
  scale_ = scalar(kScale);
}

// scale Q K^T (minus the statistics, in backward), with the masks at -infinity.
AttentionGraph::T AttentionGraph::masked_scores(const T* minus) {
  const int64_t b = s_.batch, h = s_.heads, n = s_.tokens;
  T s = matmul(q_, k_, temporary({b, h, n, n}, {h * n * n, n * n, n, 1}));
  s = pointwise(CUDNN_POINTWISE_MUL, s, &scale_, nullptr, like(s));
  auto index = [&](int64_t axis) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, s, nullptr, nullptr, like(s, CUDNN_DATA_INT32), axis);
  };
  if (minus) s = pointwise(CUDNN_POINTWISE_SUB, s, minus, nullptr, like(s));
  if (s_.causal) {
    const T rows = index(2), columns = index(3);
    const T mask = pointwise(CUDNN_POINTWISE_CMP_GE, rows, &columns, nullptr, like(rows, CUDNN_DATA_BOOLEAN));
    s = pointwise(CUDNN_POINTWISE_BINARY_SELECT, s, &minus_infinity_, &mask, like(s));
  }
  return s;
}

void AttentionGraph::forward() {
  const int64_t b = s_.batch, h = s_.heads, n = s_.tokens;
  Dims dims{b, h, n, 1}, strides{h * n, n, 1, 1};
  T s = masked_scores(nullptr);
  T largest = reduce(CUDNN_REDUCE_TENSOR_MAX, s, temporary(dims, strides));
  T shifted = pointwise(CUDNN_POINTWISE_SUB, s, &largest, nullptr, like(s));
  T e = pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, nullptr, like(s));
  T sum = reduce(CUDNN_REDUCE_TENSOR_ADD, e, temporary(dims, strides));
  T log = pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, nullptr, like(sum));
  pointwise(CUDNN_POINTWISE_ADD, largest, &log, nullptr, stats_);
  T p = pointwise(CUDNN_POINTWISE_DIV, e, &sum, nullptr, like(e, s_.type));
  matmul(p, v_, o_);
}

AttentionGraph::T AttentionGraph::transposed(const T& x) {
  const int64_t b = s_.batch, h = s_.heads, n = s_.tokens;
  return reshape(x, temporary({b, h, n, n}, {h * n * n, n * n, 1, n}, s_.type));
}

// out = x^T rows, summed over the query heads that share a key head.
void AttentionGraph::keys_gradient(const T& x, const T& other, const T& out) {
  T xt = transposed(x);
  if (s_.heads == s_.kv_heads) {
    matmul(xt, other, out);
    return;
  }
  const int64_t b = s_.batch, h = s_.heads, t = s_.tokens, d = s_.dim;
  T all = matmul(xt, other, temporary({b, h, t, d}, {h * t * d, t * d, d, 1}, s_.type));
  reduce(CUDNN_REDUCE_TENSOR_ADD, all, out);
}

void AttentionGraph::backward() {
  const int64_t b = s_.batch, h = s_.heads, n = s_.tokens, d = s_.dim;
  T d_o = rows(kDO, h), dq = rows(kDQ, h);
  T dk = rows(kDK, s_.kv_heads), dv = rows(kDV, s_.kv_heads);
  T product = pointwise(CUDNN_POINTWISE_MUL, d_o, &o_, nullptr, temporary({b, h, n, d}, {h * n * d, n * d, d, 1}));
  T row = reduce(CUDNN_REDUCE_TENSOR_ADD, product, temporary({b, h, n, 1}, {h * n, n, 1, 1}));
  T one = scalar(kOne);
  T sum = pointwise(CUDNN_POINTWISE_MUL, row, &one, nullptr,
                    tensor(kSum, {b, h, n, 1}, {h * n, n, 1, 1}, CUDNN_DATA_FLOAT));
  T s = masked_scores(&stats_);
  T p = pointwise(CUDNN_POINTWISE_EXP, s, nullptr, nullptr, like(s));
  keys_gradient(p, d_o, dv);
  T dp = matmul(d_o, v_, temporary({b, h, n, n}, {h * n * n, n * n, n, 1}));
  T ds = pointwise(CUDNN_POINTWISE_SUB, dp, &sum, nullptr, like(dp));
  ds = pointwise(CUDNN_POINTWISE_MUL, ds, &p, nullptr, like(dp));
  ds = pointwise(CUDNN_POINTWISE_MUL, ds, &scale_, nullptr, like(dp));
  keys_gradient(ds, q_, dk);
  Dims dims = k_.dims, strides = k_.strides;
  std::swap(dims[2], dims[3]);
  std::swap(strides[2], strides[3]);
  T keys = reshape(k_, tensor(next_++, dims, strides, s_.type, kVirtual));
  matmul(ds, keys, dq);
}

cudnnStatus_t AttentionGraph::build() {
  if (status_ != CUDNN_STATUS_SUCCESS) return status_;
  cudnnBackendDescriptor_t graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  keep(table_.cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<int64_t>(operations_.size()), operations_.data()));
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  keep(table_.cudnnBackendFinalize(graph));
  cudnnBackendDescriptor_t heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  keep(table_.cudnnBackendFinalize(heuristic));
  if (status_ != CUDNN_STATUS_SUCCESS) return status_;
  int64_t count = 0;
  keep(table_.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                       &count, nullptr));
  std::vector<cudnnBackendDescriptor_t> configs;
  for (int64_t i = 0; i < count; ++i) configs.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  keep(table_.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                       &count, configs.data()));
  configs.resize(static_cast<size_t>(count));
  for (cudnnBackendDescriptor_t config : configs) {
    cudnnBackendDescriptor_t plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, config);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    if (table_.cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS) continue;
    plan_ = plan;
    keep(table_.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                         &workspace_));
    return status_;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t AttentionGraph::execute(const std::vector<int64_t>& ids, const std::vector<void*>& pointers,
                                      void* workspace) const {
  cudnnBackendDescriptor_t pack;
  table_.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
  table_.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                  static_cast<int64_t>(ids.size()), ids.data());
  table_.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                  static_cast<int64_t>(pointers.size()), pointers.data());
  table_.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  cudnnStatus_t status = table_.cudnnBackendFinalize(pack);
  if (status == CUDNN_STATUS_SUCCESS) status = table_.cudnnBackendExecute(handle_, plan_, pack);
  table_.cudnnBackendDestroyDescriptor(pack);
  return status;
}

}  // namespace emu::fakes
