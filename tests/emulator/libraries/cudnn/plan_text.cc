// A plan as a line of numbers: what made it, its engine, its graph.
#include <cudnn.h>

#include <sstream>

#include "../fake_library.h"
#include "graph.h"

namespace emu::fakes {
namespace {

constexpr const char* kFormat = "fake-cudnn-plan";

template <class Visit>
void each_number(GraphTensor& t, Visit&& visit) {
  for (int64_t& dim : t.dims) visit(dim);
  for (int64_t& stride : t.strides) visit(stride);
  visit(t.uid), visit(t.type), visit(t.alignment), visit(t.is_virtual), visit(t.by_value);
}
template <class Visit>
void each_number(GraphNode& n, Visit&& visit) {
  visit(n.kind), visit(n.x), visit(n.b), visit(n.t), visit(n.y);
  visit(n.mode), visit(n.reduction), visit(n.axis);
}
template <class Visit>
void each_number(CudnnGraph& graph, Visit&& visit) {
  for (GraphTensor& tensor : graph.tensors) each_number(tensor, visit);
  for (GraphNode& node : graph.nodes) each_number(node, visit);
}

}  // namespace

std::string plan_text(const CudnnGraph& graph, int engine, const MachineDevice& device) {
  std::ostringstream out;
  out << kFormat << ' ' << CUDNN_VERSION << ' ' << device.capability() << ' ' << device.multiprocessors << ' ' << engine
      << ' ' << graph.tensors.size() << ' ' << graph.nodes.size();
  CudnnGraph copy = graph;
  each_number(copy, [&](auto number) { out << ' ' << static_cast<int64_t>(number); });
  return out.str();
}

CudnnVerdict read_plan(const std::string& text, const MachineDevice& device, CudnnGraph* graph, int* engine) {
  std::istringstream in(text);
  std::string format;
  int version = 0, capability = 0, multiprocessors = 0;
  size_t tensors = 0, nodes = 0;
  in >> format >> version >> capability >> multiprocessors >> *engine >> tensors >> nodes;
  if (!in || format != kFormat || version != CUDNN_VERSION || tensors > 1000 || nodes > 1000) {
    return {CUDNN_STATUS_BAD_PARAM, "plan: the text is no plan of this library"};
  }
  if (capability != device.capability() || multiprocessors != device.multiprocessors) {
    return {CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "plan: the text is for another GPU"};
  }
  graph->tensors.resize(tensors);
  graph->nodes.resize(nodes);
  each_number(*graph, [&]<class T>(T& number) {
    int64_t value = 0;
    in >> value;
    number = static_cast<T>(value);
  });
  if (!in || !(in >> std::ws).eof()) return {CUDNN_STATUS_BAD_PARAM, "plan: the text is damaged"};
  return {};
}

}  // namespace emu::fakes
