// cudaGraphExecUpdate: new parameters for an executable graph, from a graph of the same shape. What may not change is
// what the documentation lists under "limitations".
#include "emulator/runtime/api.h"

namespace emu {
namespace {
struct Mismatch {
  cudaGraphExecUpdateResult result = cudaGraphExecUpdateSuccess;
  std::string why;
};

Mismatch compare_kernels(const KernelAction& old, const KernelAction& next) {
  const bool attributes = old.shape.cluster == next.shape.cluster && old.shape.cooperative == next.shape.cooperative &&
                          old.shape.programmatic == next.shape.programmatic;
  if (attributes) return {};
  return {cudaGraphExecUpdateErrorAttributesChanged, "cluster, cooperative or programmatic attributes differ"};
}

// "The ... memory type of operands cannot change": device, and host or device memory.
bool same_memory(const void* a, const void* b) { return device_of(a) == device_of(b) && is_pinned(a) == is_pinned(b); }

Mismatch compare_copies(const CopyAction& old, const CopyAction& next) {
  if (!same_memory(old.to, next.to) || !same_memory(old.from, next.from)) {
    return {cudaGraphExecUpdateErrorParametersChanged, "a copy changes between host and device memory, or devices"};
  }
  if (old.height != 1 || next.height != 1) {
    return {cudaGraphExecUpdateErrorNotSupported, "only one-dimensional copies can change"};
  }
  return {};
}

Mismatch compare_fills(const FillAction& old, const FillAction& next) {
  if (!same_memory(old.to, next.to)) {
    return {cudaGraphExecUpdateErrorParametersChanged, "a memset changes to memory of another device"};
  }
  if (old.height != 1 || next.height != 1) {
    return {cudaGraphExecUpdateErrorNotSupported, "only one-dimensional memsets can change"};
  }
  return {};
}

Mismatch compare(const CUgraphExec_st::Node& old, const CUgraphNode_st& next) {
  if (node_type(old.action) != node_type(next.action) || old.action.index() != next.action.index()) {
    return {cudaGraphExecUpdateErrorNodeTypeChanged, "the nodes are of different types"};
  }
  std::vector<size_t> after;
  for (const CUgraphNode_st* earlier : next.after) after.push_back(index_of(*earlier));
  if (after != old.after) return {cudaGraphExecUpdateErrorTopologyChanged, "the nodes depend on different nodes"};
  if (old.device != next.device)
    return {cudaGraphExecUpdateErrorParametersChanged, "the nodes are of different devices"};
  if (const auto* kernel = std::get_if<KernelAction>(&old.action)) {
    return compare_kernels(*kernel, std::get<KernelAction>(next.action));
  }
  if (const auto* copy = std::get_if<CopyAction>(&old.action)) {
    return compare_copies(*copy, std::get<CopyAction>(next.action));
  }
  if (const auto* fill = std::get_if<FillAction>(&old.action)) {
    return compare_fills(*fill, std::get<FillAction>(next.action));
  }
  if (std::holds_alternative<AllocateAction>(old.action) || std::holds_alternative<FreeAction>(old.action)) {
    return {cudaGraphExecUpdateErrorNotSupported, "graphs with allocations cannot be updated"};
  }
  return {};
}

cudaError_t fail(cudaGraphExecUpdateResultInfo& info, const Mismatch& mismatch, cudaGraphNode_t node) {
  info.result = mismatch.result;
  info.errorNode = node;
  return refuse(cudaErrorGraphExecUpdateFailure, "cudaGraphExecUpdate: " + mismatch.why);
}

cudaError_t update(CUgraphExec_st& executable, CUgraph_st& graph, cudaGraphExecUpdateResultInfo& info) {
  info = {};
  if (executable.nodes.size() != graph.nodes.size()) {
    return fail(info,
                {cudaGraphExecUpdateErrorTopologyChanged,
                 std::to_string(executable.nodes.size()) + " nodes, now " + std::to_string(graph.nodes.size())},
                nullptr);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Mismatch mismatch = compare(executable.nodes[i], *graph.nodes[i]);
    if (mismatch.result != cudaGraphExecUpdateSuccess) return fail(info, mismatch, graph.nodes[i].get());
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    executable.nodes[i].action = graph.nodes[i]->action;
    executable.nodes[i].id = graph.nodes[i]->id;
  }
  return cudaSuccess;
}
}  // namespace
}  // namespace emu

extern "C" cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable_handle, cudaGraph_t graph_handle,
                                           cudaGraphExecUpdateResultInfo* info) {
  return emu::api("cudaGraphExecUpdate", emu::kOrdinary, [&](emu::Runtime&) {
    CUgraphExec_st* executable = emu::find_executable(executable_handle, "cudaGraphExecUpdate");
    CUgraph_st* graph = emu::find_graph(graph_handle, "cudaGraphExecUpdate");
    if (executable == nullptr || graph == nullptr || info == nullptr) return cudaErrorInvalidValue;
    return emu::update(*executable, *graph, *info);
  });
}
