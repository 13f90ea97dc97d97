// Graphs: their nodes, executable copies, and launches. A launch queues one task per node, ordered by the edges.
#include <algorithm>
#include <map>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t instantiate(cudaGraphExec_t* out, cudaGraph_t handle, unsigned long long flags, void* caller) {
  Runtime& rt = runtime();
  if (out == nullptr) return refuse(cudaErrorInvalidValue, "cudaGraphInstantiate: no place for the handle");
  *out = nullptr;
  CUgraph_st* graph = find_graph(handle, "cudaGraphInstantiate");
  if (graph == nullptr) return cudaErrorInvalidValue;
  if (flags != 0) return not_emulated("cudaGraphInstantiate with flags", "pass 0");
  auto executable = std::make_unique<CUgraphExec_st>();
  executable->made_at = caller;
  for (auto& node : graph->nodes) {
    CUgraphExec_st::Node copy{.own_id = rt.next_object++, .device = node->device, .action = node->action, .after = {}};
    if (rt.queue.observer.node_cloned) rt.queue.observer.node_cloned(copy.own_id, node->id);
    for (const CUgraphNode_st* earlier : node->after) copy.after.push_back(index_of(*earlier));
    executable->nodes.push_back(std::move(copy));
  }
  *out = executable.get();
  rt.executables[*out] = std::move(executable);
  return cudaSuccess;
}

void queue_nodes(CUgraphExec_st& executable, CUstream_st& stream, const TaskPtr& first) {
  std::vector<TaskPtr> tasks, all{first};
  for (const auto& node : executable.nodes) {
    std::vector<TaskPtr> after{first};
    for (size_t i : node.after) after.push_back(tasks[i]);
    TaskPtr overlapped;
    const auto* kernel = std::get_if<KernelAction>(&node.action);
    if (kernel != nullptr && kernel->shape.programmatic && node.after.size() == 1) overlapped = tasks[node.after[0]];
    tasks.push_back(add_task({.device = node.device,
                              .action = node.action,
                              .after = std::move(after),
                              .overlapped = overlapped,
                              .stream = stream.id,
                              .node = node.own_id}));
    all.push_back(tasks.back());
  }
  stream.tail = executable.last =
      add_task({.device = stream.device, .action = EmptyAction{"end of graph"}, .after = std::move(all)});
}

cudaError_t launch(CUgraphExec_st& executable, CUstream_st& stream) {
  if (stream.capture != nullptr)
    return not_emulated("cudaGraphLaunch in a captured stream", "launch after the capture");
  TaskPtr first;
  if (cudaError_t error = enqueue_after(stream, EmptyAction{"start of graph"}, executable.last, &first);
      error != cudaSuccess) {
    return error;
  }
  queue_nodes(executable, stream, first);
  return cudaSuccess;
}

}  // namespace

CUgraphNode_st* add_node(CUgraph_st& graph, int device, Action action, const std::vector<CUgraphNode_st*>& after) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->graph = &graph;
  node->id = runtime().next_object++;
  node->device = device;
  node->action = std::move(action);
  node->after = after;
  if (runtime().queue.observer.node_made) runtime().queue.observer.node_made(node->id);
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().get();
}

size_t index_of(const CUgraphNode_st& node) {
  const auto& nodes = node.graph->nodes;
  return size_t(std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.get() == &node; }) -
                nodes.begin());
}

CUgraph_st* find_graph(cudaGraph_t handle, const char* name) {
  auto found = runtime().graphs.find(handle);
  if (found != runtime().graphs.end()) return found->second.get();
  refuse(cudaErrorInvalidValue,
         std::string(name) + ": not a graph, one that was destroyed, or one still being captured");
  return nullptr;
}

CUgraphExec_st* find_executable(cudaGraphExec_t handle, const char* name) {
  auto found = runtime().executables.find(handle);
  if (found != runtime().executables.end()) return found->second.get();
  refuse(cudaErrorInvalidValue, std::string(name) + ": not an executable graph, or one that was destroyed");
  return nullptr;
}

}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;

extern "C" {
cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return api("cudaGraphDestroy", emu::kOrdinary, [&](Runtime& rt) {
    if (emu::find_graph(handle, "cudaGraphDestroy") == nullptr) return cudaErrorInvalidValue;
    rt.graphs.erase(handle);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  void* caller = EMU_CALLER;
  return api("cudaGraphInstantiate", emu::kOrdinary,
             [&](Runtime&) { return emu::instantiate(out, graph, flags, caller); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return api("cudaGraphExecDestroy", emu::kOrdinary, [&](Runtime& rt) {
    if (emu::find_executable(handle, "cudaGraphExecDestroy") == nullptr) return cudaErrorInvalidValue;
    rt.executables.erase(handle);  // launches that are queued go on
    return cudaSuccess;
  });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream) {
  return api("cudaGraphUpload", emu::kOrdinary, [&](Runtime&) {
    if (emu::find_executable(handle, "cudaGraphUpload") == nullptr) return cudaErrorInvalidValue;
    return emu::find_stream(stream, "cudaGraphUpload") == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  return api("cudaGraphLaunch", emu::kOrdinary, [&](Runtime&) {
    CUgraphExec_st* executable = emu::find_executable(handle, "cudaGraphLaunch");
    if (executable == nullptr) return cudaErrorInvalidValue;
    CUstream_st* stream = emu::find_stream(stream_handle, "cudaGraphLaunch");
    return stream == nullptr ? cudaErrorInvalidResourceHandle : emu::launch(*executable, *stream);
  });
}
}
