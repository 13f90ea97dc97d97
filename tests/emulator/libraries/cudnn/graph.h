// An operation graph as plain values, apart from the descriptors that described it; and whether the attention engines
// of a device take it.
#pragma once
#include <array>
#include <optional>

#include "../element.h"
#include "../machine.h"
#include "descriptor.h"

namespace emu::fakes {

struct GraphTensor {
  int64_t uid = 0;
  std::array<int64_t, 4> dims{1, 1, 1, 1}, strides{};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t alignment = 16;
  bool is_virtual = false, by_value = false;

  int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

enum class NodeKind { kMatmul, kPointwise, kReduction, kReshape };

struct GraphNode {
  NodeKind kind = NodeKind::kMatmul;
  int x = -1, b = -1, t = -1, y = -1;  // inputs and output: indices of tensors
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;
  cudnnReduceTensorOp_t reduction = CUDNN_REDUCE_TENSOR_ADD;
  int64_t axis = -1;
};

struct CudnnGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphNode> nodes;  // in an order in which they can run

  const GraphTensor& at(int index) const { return tensors[static_cast<size_t>(index)]; }
  bool backward() const;
  bool masks_by_queries() const;  // which scores are visible depends on a tensor in memory, one number per query
};

Element cudnn_element(cudnnDataType_t type);

CudnnVerdict read_graph(const Descriptor& descriptor, CudnnGraph* out);
// NVIDIA's support matrix of attention for cuDNN 9.19, checked here by building real plans for described devices.
CudnnVerdict check_attention(const CudnnGraph& graph, const MachineDevice& device);
int64_t plan_workspace(const CudnnGraph& graph, int engine);

// A plan as text, which only the same library on the same kind of GPU takes back.
std::string plan_text(const CudnnGraph& graph, int engine, const MachineDevice& device);
CudnnVerdict read_plan(const std::string& text, const MachineDevice& device, CudnnGraph* graph, int* engine);

}  // namespace emu::fakes
