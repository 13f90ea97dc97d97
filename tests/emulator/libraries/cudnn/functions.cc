// The functions of cuDNN that the table points at; plans and their execution.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake_cudnn.h"
#include "interpret.h"

namespace emu::fakes {
namespace {

constexpr int64_t kEngines = 2;  // configurations that a heuristic offers

CudnnVerdict bad(const std::string& why) { return {CUDNN_STATUS_BAD_PARAM, why}; }

// The memory of a tensor in lines of its contiguous dimension; neighbours are joined.
std::vector<MemoryRange> ranges_of(const GraphTensor& t, const void* base) {
  std::vector<MemoryRange> out;
  size_t size = element_bytes(cudnn_element(t.type));
  size_t fastest = t.strides[2] < t.strides[3] ? 2 : 3, other = 5 - fastest;
  for (int64_t b = 0; b < t.dims[0]; ++b) {
    for (int64_t h = 0; h < t.dims[1]; ++h) {
      for (int64_t i = 0; i < t.dims[other]; ++i) {
        int64_t offset = b * t.strides[0] + h * t.strides[1] + i * t.strides[other];
        const char* begin = static_cast<const char*>(base) + offset * static_cast<int64_t>(size);
        size_t bytes = static_cast<size_t>((t.dims[fastest] - 1) * t.strides[fastest] + 1) * size;
        if (!out.empty() && static_cast<const char*>(out.back().begin) + out.back().bytes == begin) {
          out.back().bytes += bytes;
        } else {
          out.push_back({begin, bytes});
        }
      }
    }
  }
  return out;
}

bool is_output(const CudnnGraph& graph, int tensor) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& node) { return node.y == tensor; });
}

}  // namespace

// A struct, so that FakeCudnn can make it a friend.
struct CudnnFunctions {
  static FakeCudnn& fake() { return Installed<FakeCudnn>::get(); }

  static size_t version() { return CUDNN_VERSION; }
  static const char* error_string(cudnnStatus_t status) {
    switch (CUDNN_STATUS_CATEGORY(static_cast<int>(status))) {
      case 0:
        return "CUDNN_STATUS_SUCCESS";
      case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
      case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
      case CUDNN_STATUS_INTERNAL_ERROR:
        return "CUDNN_STATUS_INTERNAL_ERROR";
      case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED";
      default:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    }
  }
  static void last_error(char* message, size_t size) {
    if (message == nullptr || size == 0) return;
    std::string why = fake().last_refusal();
    size_t length = std::min(size - 1, why.size());
    std::memcpy(message, why.data(), length);
    message[length] = '\0';
  }

  static cudnnStatus_t create(cudnnHandle_t* handle) {
    FakeCudnn& f = fake();
    cudnnStatus_t status;
    if (f.planned("cudnnCreate", &status)) return status;
    if (handle == nullptr) return f.answer("cudnnCreate", bad("handle is NULL"));
    auto context = std::make_unique<cudnnContext>(cudnnContext{.device = f.machine_.current_device()});
    *handle = context.get();
    std::lock_guard lock(f.mutex_);
    f.handles_[*handle] = std::move(context);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t destroy(cudnnHandle_t handle) {
    FakeCudnn& f = fake();
    if (!f.lives(handle)) return f.answer("cudnnDestroy", bad("not a live handle"));
    std::lock_guard lock(f.mutex_);
    f.handles_.erase(handle);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    FakeCudnn& f = fake();
    if (!f.lives(handle)) return f.answer("cudnnSetStream", bad("not a live handle"));
    if (f.machine_.device_of_stream(stream) != handle->device) {
      return f.answer("cudnnSetStream", {CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "the stream is of another device"});
    }
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
  }

  static cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t* out) {
    const char* name = "cudnnBackendCreateDescriptor";
    FakeCudnn& f = fake();
    cudnnStatus_t status;
    if (f.planned(name, &status)) return status;
    if (out == nullptr) return f.answer(name, {CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor is NULL"});
    if (!known_kind(kind)) {
      return f.answer(name, {CUDNN_STATUS_NOT_SUPPORTED, text("descriptors of kind ", int(kind), " are not emulated")});
    }
    auto made = std::make_unique<Descriptor>();
    made->kind = kind;
    *out = made.get();
    std::lock_guard lock(f.mutex_);
    f.descriptors_[*out] = std::move(made);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
    FakeCudnn& f = fake();
    if (!f.find(descriptor)) return f.answer("cudnnBackendDestroyDescriptor", bad("not a live descriptor"));
    std::lock_guard lock(f.mutex_);
    f.descriptors_.erase(descriptor);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
    FakeCudnn& f = fake();
    Descriptor* found = f.find(descriptor);
    if (!found) return f.answer("cudnnBackendSetAttribute", bad("not a live descriptor"));
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && elements) {
      for (int64_t i = 0; i < count; ++i) {
        if (!f.find(static_cast<void* const*>(elements)[i])) {
          return f.answer("cudnnBackendSetAttribute", bad(text("attribute ", int(name), ": not a live descriptor")));
        }
      }
    }
    return f.answer("cudnnBackendSetAttribute", set_attribute(*found, name, type, count, elements));
  }
  static cudnnStatus_t get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t requested, int64_t* count, void* elements) {
    const char* function = "cudnnBackendGetAttribute";
    FakeCudnn& f = fake();
    Descriptor* found = f.find(descriptor);
    if (!found) return f.answer(function, bad("not a live descriptor"));
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) return f.answer(function, f.results(*found, requested, count, elements));
    return f.answer(function, get_attribute(*found, name, type, requested, count, elements));
  }
  static cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
    FakeCudnn& f = fake();
    cudnnStatus_t status;
    if (f.planned("cudnnBackendFinalize", &status)) return status;
    Descriptor* found = f.find(descriptor);
    return f.answer("cudnnBackendFinalize", found ? f.finalize(*found) : bad("not a live descriptor"));
  }
  static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    FakeCudnn& f = fake();
    cudnnStatus_t status;
    if (f.planned("cudnnBackendExecute", &status)) return status;
    Descriptor *p = f.find(plan), *v = f.find(pack);
    if (!f.lives(handle) || !p || !v) return f.answer("cudnnBackendExecute", bad("handle, plan or pack is not live"));
    return f.answer("cudnnBackendExecute", f.execute(handle, *p, *v));
  }
};

FakeCudnn::FakeCudnn(Machine machine) : machine_(std::move(machine)), installed_(this) {}

cudnnStatus_t FakeCudnn::answer(const char* function, const CudnnVerdict& verdict) {
  if (!verdict.ok()) refusals_.add(text(function, ": ", verdict.why));
  return verdict.status;
}

bool FakeCudnn::planned(const char* function, cudnnStatus_t* status) {
  int code = 0;
  if (!machine_.planned_failure(function, &code)) return false;
  *status = answer(function, {static_cast<cudnnStatus_t>(code), "planned failure"});
  return true;
}

Descriptor* FakeCudnn::find(cudnnBackendDescriptor_t descriptor) {
  std::lock_guard lock(mutex_);
  auto found = descriptors_.find(descriptor);
  return found == descriptors_.end() ? nullptr : found->second.get();
}

bool FakeCudnn::lives(cudnnHandle_t handle) {
  std::lock_guard lock(mutex_);
  return handles_.count(handle) > 0;
}

std::vector<std::string> FakeCudnn::leaks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out(descriptors_.size(), "cudnnBackendDescriptor_t");
  out.insert(out.end(), handles_.size(), "cudnnHandle_t");
  return out;
}

CudnnVerdict FakeCudnn::finalize(Descriptor& descriptor) {
  CudnnVerdict verdict = check_complete(descriptor);
  if (!verdict.ok()) return verdict;
  switch (descriptor.kind) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
      auto graph = std::make_shared<CudnnGraph>();
      verdict = read_graph(descriptor, graph.get());
      descriptor.graph = graph;
      break;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      verdict = finalize_heuristic(descriptor);
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      verdict = finalize_plan(descriptor);
      break;
    default:
      break;
  }
  descriptor.finalized = verdict.ok();
  return verdict;
}

CudnnVerdict FakeCudnn::finalize_heuristic(Descriptor& descriptor) {
  const Descriptor* graph = descriptor.link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (!graph->graph) return bad("heuristic: not an operation graph");
  auto handle = static_cast<cudnnHandle_t>(graph->get<void*>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
  if (!lives(handle)) return {CUDNN_STATUS_NOT_INITIALIZED, "heuristic: the graph's handle is not live"};
  auto mode = descriptor.get<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
  if (mode < CUDNN_HEUR_MODE_INSTANT || mode >= CUDNN_HEUR_MODES_COUNT) return bad(text("heuristic: mode ", int(mode)));
  descriptor.graph = graph->graph;
  return check_attention(*graph->graph, machine_.describe(handle->device));
}

CudnnVerdict FakeCudnn::results(const Descriptor& heuristic, int64_t requested, int64_t* count, void* elements) {
  if (!heuristic.finalized || heuristic.kind != CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    return {CUDNN_STATUS_NOT_INITIALIZED, "results of a heuristic that is not finalized"};
  }
  // As cuDNN does for some graphs, it announces one more than it then gives.
  if (count) *count = requested > 0 ? std::min(requested, kEngines) : kEngines + 1;
  for (int64_t i = 0; elements && i < std::min(requested, kEngines); ++i) {
    Descriptor* config = find(static_cast<void**>(elements)[i]);
    if (!config || config->kind != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
      return bad("results go into engine configurations that the caller has made");
    }
    config->graph = heuristic.graph;
    config->engine = static_cast<int>(i);
    config->finalized = true;
  }
  return {};
}

CudnnVerdict FakeCudnn::finalize_plan(Descriptor& descriptor) {
  auto handle = static_cast<cudnnHandle_t>(descriptor.get<void*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
  if (!lives(handle)) return {CUDNN_STATUS_NOT_INITIALIZED, "plan: the handle is not live"};
  const MachineDevice device = machine_.describe(handle->device);
  const std::vector<char> kept = descriptor.list<char>(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  if (!kept.empty()) {
    auto graph = std::make_shared<CudnnGraph>();
    const CudnnVerdict verdict = read_plan({kept.begin(), kept.end()}, device, graph.get(), &descriptor.engine);
    if (!verdict.ok()) return verdict;
    descriptor.graph = graph;
  } else {
    const Descriptor* config = descriptor.link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config->kind != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return bad("plan: no engine configuration");
    if (!config->graph) {
      fprintf(stderr, "cuDNN: a plan of an engine configuration that no heuristic filled; version 9.26 crashes here\n");
      abort();
    }
    if (config->engine < declined_) {
      return {CUDNN_STATUS_NOT_SUPPORTED, "plan: this engine was told to decline; try the next"};
    }
    descriptor.graph = config->graph;
    descriptor.engine = config->engine;
    ++plans_made_;
  }
  int64_t workspace = plan_workspace(*descriptor.graph, descriptor.engine);
  auto& bytes = descriptor.values[CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE];
  bytes.resize(sizeof workspace);
  std::memcpy(bytes.data(), &workspace, sizeof workspace);
  const std::string text = plan_text(*descriptor.graph, descriptor.engine, device);
  descriptor.values[CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION].assign(text.begin(), text.end());
  return {};
}

CudnnVerdict FakeCudnn::gather_pointers(const CudnnGraph& graph, const Descriptor& pack, LibraryOperation* operation,
                                        std::map<int64_t, void*>* pointers, std::map<int64_t, float>* values) {
  auto ids = pack.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  auto data = pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size(); ++i) (*pointers)[ids[i]] = data[i];
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const GraphTensor& t = graph.tensors[i];
    if (t.is_virtual) continue;
    auto found = pointers->find(t.uid);
    if (found == pointers->end()) return bad(text("execute: no pointer for tensor ", t.uid));
    if (found->second == nullptr) {
      return {CUDNN_STATUS_BAD_PARAM_NULL_POINTER, text("execute: the pointer of tensor ", t.uid, " is NULL")};
    }
    if (t.by_value) {  // host memory, read now
      (*values)[t.uid] = read_element(cudnn_element(t.type), found->second, 0);
      continue;
    }
    if (reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(t.alignment) != 0) {
      return {CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, text("execute: tensor ", t.uid, " is misaligned")};
    }
    std::vector<MemoryRange> ranges = ranges_of(t, found->second);
    auto& list = is_output(graph, static_cast<int>(i)) ? operation->writes : operation->reads;
    list.insert(list.end(), ranges.begin(), ranges.end());
  }
  return {};
}

CudnnVerdict FakeCudnn::execute(cudnnHandle_t handle, const Descriptor& plan, const Descriptor& pack) {
  if (!plan.finalized || plan.kind != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !pack.finalized ||
      pack.kind != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    return {CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "execute: plan or variant pack is not finalized"};
  }
  if (static_cast<cudnnHandle_t>(plan.get<void*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE))->device != handle->device) {
    return bad("execute: the plan was made for another device");
  }
  LibraryOperation operation;
  operation.microseconds = microseconds_;
  operation.name = plan.graph->backward() ? "cudnn attention backward" : "cudnn attention forward";
  ++executions_;
  GraphRun run;
  CudnnVerdict verdict = gather_pointers(*plan.graph, pack, &operation, &run.pointers, &run.values);
  if (!verdict.ok()) return verdict;
  auto bytes = static_cast<size_t>(plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  void* workspace = pack.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (bytes > 0 && workspace == nullptr) {
    return {CUDNN_STATUS_BAD_PARAM_NULL_POINTER, text("execute: the plan needs ", bytes, " bytes of workspace")};
  }
  if (bytes > 0) operation.writes.push_back({workspace, bytes});
  operation.compute = [graph = plan.graph, run, workspace, bytes] {
    if (bytes > 0) std::memset(workspace, 0xff, bytes);  // whoever else uses it finds NaN
    run_graph(*graph, run);
  };
  cudaError_t error = machine_.enqueue(handle->stream, std::move(operation));
  if (error == cudaSuccess) return {};
  return {CUDNN_STATUS_EXECUTION_FAILED_CUDART, text("execute: the stream refuses, error ", int(error))};
}

athanor::CudnnTable FakeCudnn::table() const {
  using F = CudnnFunctions;
  return {.cudnnGetVersion = F::version,
          .cudnnGetErrorString = F::error_string,
          .cudnnGetLastErrorString = F::last_error,
          .cudnnCreate = F::create,
          .cudnnDestroy = F::destroy,
          .cudnnSetStream = F::set_stream,
          .cudnnBackendCreateDescriptor = F::create_descriptor,
          .cudnnBackendDestroyDescriptor = F::destroy_descriptor,
          .cudnnBackendFinalize = F::finalize,
          .cudnnBackendSetAttribute = F::set,
          .cudnnBackendGetAttribute = F::get,
          .cudnnBackendExecute = F::execute};
}

}  // namespace emu::fakes
