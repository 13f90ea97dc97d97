// Looking at graphs and building them by hand: nodes, edges, the parameters of kernel nodes.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// Lists follow one convention: with no array, the count is asked for; with one, at most *count entries are filled in,
// and unused entries become null.
cudaError_t give_list(const std::vector<cudaGraphNode_t>& list, cudaGraphNode_t* out, size_t* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < list.size() ? list[i] : nullptr;
  }
  if (out == nullptr || *count > list.size()) *count = list.size();
  return cudaSuccess;
}

cudaError_t collect_dependencies(const char* name, const CUgraph_st& graph, const cudaGraphNode_t* list, size_t count,
                                 std::vector<CUgraphNode_st*>& out) {
  if (count != 0 && list == nullptr)
    return refuse(cudaErrorInvalidValue, std::string(name) + ": no dependencies given");
  for (size_t i = 0; i < count; ++i) {
    CUgraphNode_st* node = find_node(list[i], name);
    if (node == nullptr) return cudaErrorInvalidValue;
    if (node->graph != &graph) return refuse(cudaErrorInvalidValue, std::string(name) + ": a node of another graph");
    out.push_back(node);
  }
  return cudaSuccess;
}

struct NewNode {
  const char* name;
  cudaGraphNode_t* out;
  cudaGraph_t graph;
  const cudaGraphNode_t* dependencies;
  size_t count;
};

cudaError_t add(const NewNode& request, Action action) {
  CUgraph_st* graph = find_graph(request.graph, request.name);
  if (graph == nullptr || request.out == nullptr) return cudaErrorInvalidValue;
  std::vector<CUgraphNode_st*> after;
  if (cudaError_t error = collect_dependencies(request.name, *graph, request.dependencies, request.count, after);
      error != cudaSuccess) {
    return error;
  }
  *request.out = add_node(*graph, current_device(), std::move(action), after);
  return cudaSuccess;
}

cudaError_t kernel_of(const cudaKernelNodeParams& params, KernelAction& action) {
  if (params.extra != nullptr) return not_emulated("kernel node parameters in `extra`", "use kernelParams");
  action.kernel = &known_kernel(params.func);
  action.shape.grid = params.gridDim;
  action.shape.block = params.blockDim;
  action.shape.shared_bytes = params.sharedMemBytes;
  if (cudaError_t error = pack_parameters(*action.kernel, params.kernelParams, action.parameters);
      error != cudaSuccess) {
    return error;
  }
  return check_launch(*action.kernel, action.shape);
}

cudaError_t replace_kernel(Action& action, const cudaKernelNodeParams* params, const char* name) {
  auto* old = std::get_if<KernelAction>(&action);
  if (old == nullptr) return refuse(cudaErrorInvalidValue, std::string(name) + ": not a kernel node");
  if (params == nullptr) return refuse(cudaErrorInvalidValue, std::string(name) + ": no parameters given");
  KernelAction next;
  next.shape = old->shape;  // cluster and the other attributes stay
  if (cudaError_t error = kernel_of(*params, next); error != cudaSuccess) return error;
  *old = std::move(next);
  return cudaSuccess;
}

// Pointers to the node's own copies of its arguments; they stay valid until the node changes.
cudaError_t describe_kernel(CUgraphNode_st& node, cudaKernelNodeParams* out) {
  auto* action = std::get_if<KernelAction>(&node.action);
  if (action == nullptr || out == nullptr) {
    return refuse(cudaErrorInvalidValue, "cudaGraphKernelNodeGetParams: not a kernel node");
  }
  node.argument_pointers.clear();
  for (const ParameterSlot& slot : action->kernel->slots) {
    node.argument_pointers.push_back(action->parameters.data() + slot.offset);
  }
  *out = {};
  out->func = action->kernel->function;
  out->gridDim = action->shape.grid;
  out->blockDim = action->shape.block;
  out->sharedMemBytes = unsigned(action->shape.shared_bytes);
  out->kernelParams = node.argument_pointers.data();
  return cudaSuccess;
}

CUgraphExec_st::Node* find_counterpart(cudaGraphExec_t handle, cudaGraphNode_t node_handle, const char* name) {
  CUgraphExec_st* executable = find_executable(handle, name);
  const CUgraphNode_st* node = executable == nullptr ? nullptr : find_node(node_handle, name);
  if (node == nullptr) return nullptr;
  for (auto& own : executable->nodes) {
    if (own.id == node->id) return &own;
  }
  refuse(cudaErrorInvalidValue, std::string(name) + ": the node is not of the graph that was instantiated");
  return nullptr;
}

template <class Body>
cudaError_t with_node(const char* name, cudaGraphNode_t handle, Body&& body) {
  return api(name, kOrdinary, [&](Runtime&) {
    CUgraphNode_st* node = find_node(handle, name);
    return node == nullptr ? cudaErrorInvalidValue : body(*node);
  });
}

std::vector<cudaGraphNode_t> nodes_of(const CUgraph_st& graph, bool only_roots) {
  std::vector<cudaGraphNode_t> list;
  for (auto& node : graph.nodes) {
    if (!only_roots || node->after.empty()) list.push_back(node.get());
  }
  return list;
}
}  // namespace
}  // namespace emu

using emu::api;
using emu::Runtime;
using emu::with_node;

extern "C" {
cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  return api("cudaGraphGetNodes", emu::kOrdinary, [&](Runtime&) {
    const CUgraph_st* graph = emu::find_graph(handle, "cudaGraphGetNodes");
    return graph == nullptr ? cudaErrorInvalidValue : emu::give_list(emu::nodes_of(*graph, false), nodes, count);
  });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  return api("cudaGraphGetRootNodes", emu::kOrdinary, [&](Runtime&) {
    const CUgraph_st* graph = emu::find_graph(handle, "cudaGraphGetRootNodes");
    return graph == nullptr ? cudaErrorInvalidValue : emu::give_list(emu::nodes_of(*graph, true), nodes, count);
  });
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                                         size_t* count) {
  return with_node("cudaGraphNodeGetDependencies", handle, [&](CUgraphNode_st& node) {
    if (edges != nullptr) return emu::not_emulated("edge data of graphs", "pass null");
    return emu::give_list(node.after, nodes, count);
  });
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, cudaGraphNodeType* type) {
  return with_node("cudaGraphNodeGetType", handle, [&](CUgraphNode_st& node) {
    if (type == nullptr) return cudaErrorInvalidValue;
    *type = emu::node_type(node.action);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaKernelNodeParams* params) {
  return api("cudaGraphAddKernelNode", emu::kOrdinary, [&](Runtime&) {
    if (params == nullptr) return cudaErrorInvalidValue;
    emu::KernelAction action;
    if (cudaError_t error = emu::kernel_of(*params, action); error != cudaSuccess) return error;
    return emu::add({"cudaGraphAddKernelNode", out, graph, dependencies, count}, std::move(action));
  });
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                 size_t count, const cudaHostNodeParams* params) {
  return api("cudaGraphAddHostNode", emu::kOrdinary, [&](Runtime&) {
    if (params == nullptr || params->fn == nullptr) return cudaErrorInvalidValue;
    return emu::add({"cudaGraphAddHostNode", out, graph, dependencies, count},
                    emu::HostAction{params->fn, params->userData});
  });
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                        size_t count, cudaEvent_t event) {
  return api("cudaGraphAddEventRecordNode", emu::kOrdinary, [&](Runtime&) {
    if (emu::find_event(event, "cudaGraphAddEventRecordNode") == nullptr) return cudaErrorInvalidValue;
    return emu::add({"cudaGraphAddEventRecordNode", out, graph, dependencies, count}, emu::RecordAction{event});
  });
}
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, cudaKernelNodeParams* params) {
  return with_node("cudaGraphKernelNodeGetParams", handle,
                   [&](CUgraphNode_st& node) { return emu::describe_kernel(node, params); });
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  return api("cudaGraphExecKernelNodeSetParams", emu::kOrdinary, [&](Runtime&) {
    auto* own = emu::find_counterpart(executable, node, "cudaGraphExecKernelNodeSetParams");
    if (own == nullptr) return cudaErrorInvalidValue;
    return emu::replace_kernel(own->action, params, "cudaGraphExecKernelNodeSetParams");
  });
}
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node, unsigned enabled) {
  return api("cudaGraphNodeSetEnabled", emu::kOrdinary, [&](Runtime&) {
    auto* own = emu::find_counterpart(executable, node, "cudaGraphNodeSetEnabled");
    if (own == nullptr) return cudaErrorInvalidValue;
    own->enabled = enabled != 0;
    return cudaSuccess;
  });
}
}
