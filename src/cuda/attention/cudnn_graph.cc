#include "cuda/attention/cudnn_graph.h"

#include "base/error.h"
namespace athanor::cuda {
namespace {

std::string words(const CudnnTable& cudnn, cudnnStatus_t status) {
  char text[1024] = {};
  cudnn.cudnnGetLastErrorString(text, sizeof text);
  return cat(cudnn.cudnnGetErrorString(status), *text ? ": " : "", text);
}

bool unsupported(cudnnStatus_t status) {
  return CUDNN_STATUS_CATEGORY(static_cast<int>(status)) == CUDNN_STATUS_NOT_SUPPORTED;
}

}  // namespace

void require_cudnn(const CudnnTable& cudnn, cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(cat("cuDNN: ", what, ": ", words(cudnn, status)));
}

CudnnGraph::~CudnnGraph() {
  for (auto d = owned_.rbegin(); d != owned_.rend(); ++d) (void)cudnn_.cudnnBackendDestroyDescriptor(*d);
}

cudnnBackendDescriptor_t CudnnGraph::make(cudnnBackendDescriptorType_t kind) {
  cudnnBackendDescriptor_t d = nullptr;
  require_cudnn(cudnn_, cudnn_.cudnnBackendCreateDescriptor(kind, &d), "cannot make a descriptor");
  owned_.push_back(d);
  return d;
}

void CudnnGraph::set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* values) const {
  require_cudnn(cudnn_, cudnn_.cudnnBackendSetAttribute(d, name, type, count, values), "cannot set an attribute");
}

void CudnnGraph::link(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                      cudnnBackendDescriptor_t other) const {
  set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other);
}

void CudnnGraph::finalize(cudnnBackendDescriptor_t d) const {
  require_cudnn(cudnn_, cudnn_.cudnnBackendFinalize(d), "cannot finish a descriptor");
}

CudnnGraph::Node CudnnGraph::tensor(Kind kind, int64_t id, const Dims& dims, const Dims& strides,
                                    cudnnDataType_t type) {
  const cudnnBackendDescriptor_t d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{kind == Kind::memory ? 16 : 4});
  set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind == Kind::temporary);
  set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind == Kind::by_value);
  finalize(d);
  description_ += cat("tensor ", id, " kind ", int(kind), " type ", int(type));
  for (const int64_t number : {dims[0], dims[1], dims[2], dims[3], strides[0], strides[1], strides[2], strides[3]})
    description_ += cat(" ", number);
  description_ += "; ";
  return {d, dims, strides, id};
}

CudnnGraph::Node CudnnGraph::memory(int64_t id, Dims dims, Dims strides, cudnnDataType_t type) {
  return tensor(Kind::memory, id, dims, strides, type);
}
CudnnGraph::Node CudnnGraph::scalar(int64_t id, cudnnDataType_t type) {
  return tensor(Kind::by_value, id, {1, 1, 1, 1}, {1, 1, 1, 1}, type);
}
CudnnGraph::Node CudnnGraph::temporary(Dims dims, Dims strides, cudnnDataType_t type) {
  return tensor(Kind::temporary, next_temporary_++, dims, strides, type);
}

CudnnGraph::Node CudnnGraph::append(cudnnBackendDescriptor_t operation, const Node& y) {
  finalize(operation);
  operations_.push_back(operation);
  return y;
}

CudnnGraph::Node CudnnGraph::matmul(const Node& a, const Node& b, const Node& y) {
  const cudnnBackendDescriptor_t how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  finalize(how);
  const cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  link(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y.descriptor);
  description_ += cat("matmul ", a.id, " ", b.id, " ", y.id, "; ");
  return append(op, y);
}

CudnnGraph::Node CudnnGraph::pointwise(const Pointwise& p, const Node& x, const Node& y) {
  const cudnnBackendDescriptor_t how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, p.mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, p.precision);
  if (p.axis >= 0) set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, p.axis);
  finalize(how);
  const cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
  if (p.b) link(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b->descriptor);
  if (p.t) link(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.t->descriptor);
  link(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
  description_ += cat("pointwise ", int(p.mode), " axis ", p.axis, " precision ", int(p.precision), ": ", x.id, " ",
                      p.b ? p.b->id : 0, " ", p.t ? p.t->id : 0, " ", y.id, "; ");
  return append(op, y);
}

CudnnGraph::Node CudnnGraph::reduce(cudnnReduceTensorOp_t mode, const Node& x, const Node& y) {
  const cudnnBackendDescriptor_t how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  finalize(how);
  const cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  link(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  description_ += cat("reduce ", int(mode), ": ", x.id, " ", y.id, "; ");
  return append(op, y);
}

CudnnGraph::Node CudnnGraph::reshape(const Node& x, const Node& y) {
  const cudnnBackendDescriptor_t op = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  link(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
  link(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
  description_ += cat("reshape ", x.id, " ", y.id, "; ");
  return append(op, y);
}

// Best first, by the library's heuristic; empty, with the reason, if no engine supports the graph.
std::vector<cudnnBackendDescriptor_t> CudnnGraph::engine_configurations(std::string* why) {
  const cudnnBackendDescriptor_t graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations_.size()),
      operations_.data());
  if (target_.handle) set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target_.handle);
  finalize(graph);
  const cudnnBackendDescriptor_t heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  link(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target_.properties) link(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target_.properties);
  const cudnnStatus_t status = cudnn_.cudnnBackendFinalize(heuristic);
  *why = unsupported(status) ? words(cudnn_, status) : "it offers no engine";
  if (unsupported(status)) return {};
  require_cudnn(cudnn_, status, "cannot look for engines");
  const char* what = "cannot list engines";
  int64_t count = 0;
  require_cudnn(cudnn_,
                cudnn_.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                0, &count, nullptr),
                what);
  std::vector<cudnnBackendDescriptor_t> configurations;
  for (int64_t i = 0; i < count; ++i) configurations.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  if (count == 0) return {};
  require_cudnn(cudnn_,
                cudnn_.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                count, &count, configurations.data()),
                what);
  configurations.resize(static_cast<size_t>(count));  // may be fewer than announced
  return configurations;
}

// The engine number, for reports; -1, not an error, if the library does not report it.
int64_t CudnnGraph::engine_of(cudnnBackendDescriptor_t configuration) const {
  cudnnBackendDescriptor_t engine = nullptr;
  int64_t number = -1, one = 0;
  if (cudnn_.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return -1;
  if (cudnn_.cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &one, &engine) == CUDNN_STATUS_SUCCESS)
    (void)cudnn_.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, &number);
  (void)cudnn_.cudnnBackendDestroyDescriptor(engine);
  return number;
}

bool CudnnGraph::plan(std::string* why) {
  for (const cudnnBackendDescriptor_t configuration : engine_configurations(why)) {
    const cudnnBackendDescriptor_t plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (!finish_plan(plan, why)) continue;  // the heuristic also lists unsupported engines
    engine_ = engine_of(configuration);
    return true;
  }
  return false;
}

bool CudnnGraph::finish_plan(cudnnBackendDescriptor_t plan, std::string* why) {
  if (target_.handle) set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target_.handle);
  if (target_.properties) link(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target_.properties);
  const cudnnStatus_t status = cudnn_.cudnnBackendFinalize(plan);
  if (status != CUDNN_STATUS_SUCCESS) *why = words(cudnn_, status);
  if (status != CUDNN_STATUS_SUCCESS) return false;
  int64_t one = 0;
  require_cudnn(cudnn_,
                cudnn_.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                                &one, &workspace_bytes_),
                "cannot tell the workspace of a plan");
  plan_ = plan;
  return true;
}

std::string CudnnGraph::plan_text() const {
  int64_t size = 0;
  const auto read = [&](int64_t most, char* text) {
    return cudnn_.cudnnBackendGetAttribute(plan_, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, most,
                                           &size, text) == CUDNN_STATUS_SUCCESS;
  };
  if (!plan_ || !read(0, nullptr) || size <= 0) return "";
  std::string text(static_cast<size_t>(size), '\0');
  return read(size, text.data()) ? text : "";
}

bool CudnnGraph::restore(const std::string& text, std::string* why) {
  const cudnnBackendDescriptor_t plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()),
      text.data());
  return finish_plan(plan, why);
}

void CudnnGraph::launch(const std::vector<Binding>& bindings, void* workspace) const {
  CHECK(plan_, "a graph without a plan is launched");
  std::vector<int64_t> ids;
  std::vector<const void*> pointers;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    pointers.push_back(binding.pointer);
  }
  const char* what = "cannot bind the tensors of a launch";
  cudnnBackendDescriptor_t pack = nullptr;
  require_cudnn(cudnn_, cudnn_.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), what);
  const std::unique_ptr<void, cudnnStatus_t (*)(void*)> owner(pack, cudnn_.cudnnBackendDestroyDescriptor);
  const auto count = static_cast<int64_t>(ids.size());
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  finalize(pack);
  require_cudnn(cudnn_, cudnn_.cudnnBackendExecute(target_.handle, plan_, pack), "a launch failed");
}

}  // namespace athanor::cuda
