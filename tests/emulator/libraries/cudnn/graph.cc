// From descriptors to a graph, and which graphs the attention engines take; see graph.h.
#include "graph.h"

#include <algorithm>

#include "../fake_library.h"

namespace emu::fakes {
namespace {

CudnnVerdict bad(const std::string& why) { return {CUDNN_STATUS_BAD_PARAM, why}; }

class Reader {
 public:
  explicit Reader(CudnnGraph* out) : out_(*out) {}

  CudnnVerdict read(const Descriptor& graph) {
    for (void* one : graph.list<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      CudnnVerdict verdict = read_node(*static_cast<const Descriptor*>(one));
      if (!verdict.ok()) return verdict;
    }
    return order();
  }

 private:
  int tensor(const Descriptor* d) {
    if (d == nullptr) return -1;
    int64_t uid = d->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    for (size_t i = 0; i < out_.tensors.size(); ++i) {
      if (out_.tensors[i].uid == uid) {
        if (seen_[i] != d) clash_ = uid;
        return static_cast<int>(i);
      }
    }
    GraphTensor one;
    one.uid = uid;
    auto dims = d->list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), strides = d->list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    if (dims.size() != 4) wrong_rank_ = uid;
    for (size_t i = 0; i < std::min<size_t>(4, dims.size()); ++i) {
      one.dims[i] = dims[i];
      one.strides[i] = strides[i];
    }
    one.type = d->get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    one.alignment = d->get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    one.is_virtual = d->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    one.by_value = d->get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    out_.tensors.push_back(one);
    seen_.push_back(d);
    return static_cast<int>(out_.tensors.size()) - 1;
  }

  CudnnVerdict read_node(const Descriptor& d) {
    GraphNode node;
    switch (d.kind) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        node = {.kind = NodeKind::kMatmul,
                .x = tensor(d.link(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                .b = tensor(d.link(CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                .y = tensor(d.link(CUDNN_ATTR_OPERATION_MATMUL_CDESC))};
        break;
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const Descriptor* mode = d.link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        node = {.kind = NodeKind::kPointwise,
                .x = tensor(d.link(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
                .b = tensor(d.link(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)),
                .t = tensor(d.link(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)),
                .y = tensor(d.link(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)),
                .mode = mode->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE),
                .axis = mode->get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1)};
        break;
      }
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        node = {
            .kind = NodeKind::kReduction,
            .x = tensor(d.link(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
            .y = tensor(d.link(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)),
            .reduction =
                d.link(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR)};
        break;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        node = {.kind = NodeKind::kReshape,
                .x = tensor(d.link(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
                .y = tensor(d.link(CUDNN_ATTR_OPERATION_RESHAPE_YDESC))};
        break;
      default:
        return bad("a descriptor in the graph is no operation");
    }
    if (wrong_rank_) return bad(text("tensor ", *wrong_rank_, ": attention tensors have 4 dimensions"));
    if (clash_) return bad(text("tensor id ", *clash_, " stands for two tensors"));
    out_.nodes.push_back(node);
    return check_shapes(node);
  }

  CudnnVerdict check_shapes(const GraphNode& node) const {
    const auto &x = out_.at(node.x).dims, &y = out_.at(node.y).dims;
    CudnnVerdict mismatch{CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                          text("tensor ", out_.at(node.y).uid, ": shape mismatch")};
    if (node.kind == NodeKind::kMatmul) {
      const auto& b = out_.at(node.b).dims;
      bool fits =
          x[3] == b[2] && y[2] == x[2] && y[3] == b[3] && x[0] == b[0] && y[0] == x[0] && y[1] == std::max(x[1], b[1]);
      if (!fits || y[1] % x[1] != 0 || y[1] % b[1] != 0) return mismatch;
    }
    if (node.kind == NodeKind::kPointwise && y != x) return mismatch;
    if (node.kind == NodeKind::kReshape && out_.at(node.x).count() != out_.at(node.y).count()) return mismatch;
    for (size_t i = 0; i < 4 && node.kind == NodeKind::kReduction; ++i) {
      if (x[i] % y[i] != 0) return mismatch;
    }
    return {};
  }

  // Sorts the nodes so that every virtual tensor is made before it is used.
  CudnnVerdict order() {
    std::vector<GraphNode> left = std::move(out_.nodes), sorted;
    std::vector<bool> made(out_.tensors.size(), false);
    for (size_t i = 0; i < made.size(); ++i) made[i] = !out_.tensors[i].is_virtual;
    for (const GraphNode& node : left) made[static_cast<size_t>(node.y)] = false;
    while (!left.empty()) {
      auto ready = std::find_if(left.begin(), left.end(), [&](const GraphNode& node) {
        for (int input : {node.x, node.b, node.t}) {
          if (input >= 0 && !made[static_cast<size_t>(input)]) return false;
        }
        return true;
      });
      if (ready == left.end()) return bad("the graph has a cycle, or a virtual tensor that nothing makes");
      made[static_cast<size_t>(ready->y)] = true;
      sorted.push_back(*ready);
      left.erase(ready);
    }
    out_.nodes = std::move(sorted);
    return {};
  }

  CudnnGraph& out_;
  std::vector<const Descriptor*> seen_;
  std::optional<int64_t> clash_, wrong_rank_;
};

// What the interpreter computes; attention needs no more.
bool computable(const GraphNode& node) {
  if (node.kind == NodeKind::kReduction) {
    return node.reduction == CUDNN_REDUCE_TENSOR_ADD || node.reduction == CUDNN_REDUCE_TENSOR_MAX;
  }
  if (node.kind != NodeKind::kPointwise) return true;
  switch (node.mode) {
    case CUDNN_POINTWISE_GEN_INDEX:
      return node.axis >= 0 && node.axis < 4;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return node.b >= 0 && node.t >= 0;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
      return true;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
    case CUDNN_POINTWISE_CMP_GT:
    case CUDNN_POINTWISE_CMP_LT:
      return node.b >= 0;
    default:
      return false;
  }
}

bool half_type(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }

CudnnVerdict check_device(const CudnnGraph& graph, const MachineDevice& device, int64_t dim) {
  int sm = device.capability();
  auto refuse = [](cudnnStatus_t status, const std::string& why) { return CudnnVerdict{status, why}; };
  if (sm < 80) return refuse(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "attention needs compute capability 8.0");
  if (dim % 8 != 0 || dim > 256) return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, text("head dimension ", dim));
  if (!graph.backward()) return {};
  if (dim > 128 && sm != 90) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE,
                  text("backward of head dimension ", dim, " needs compute capability 9.0"));
  }
  if (graph.masks_by_queries() && sm != 90) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a mask by queries goes backward on compute capability 9.0 only");
  }
  return {};
}

}  // namespace

Element cudnn_element(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return Element::kF32;
    case CUDNN_DATA_HALF:
      return Element::kF16;
    case CUDNN_DATA_BFLOAT16:
      return Element::kBf16;
    case CUDNN_DATA_INT32:
      return Element::kI32;
    case CUDNN_DATA_BOOLEAN:
      return Element::kU8;
    default:
      return Element::kNone;
  }
}

bool CudnnGraph::backward() const {
  return std::count_if(nodes.begin(), nodes.end(), [](const GraphNode& n) { return n.kind == NodeKind::kMatmul; }) == 5;
}

bool CudnnGraph::masks_by_queries() const {
  return std::any_of(nodes.begin(), nodes.end(), [&](const GraphNode& n) {
    const bool compares =
        n.kind == NodeKind::kPointwise && n.mode >= CUDNN_POINTWISE_CMP_EQ && n.mode <= CUDNN_POINTWISE_CMP_LE;
    return compares && n.b >= 0 && !at(n.b).is_virtual && at(n.b).dims[2] > 1;
  });
}

CudnnVerdict read_graph(const Descriptor& descriptor, CudnnGraph* out) { return Reader(out).read(descriptor); }

CudnnVerdict check_attention(const CudnnGraph& graph, const MachineDevice& device) {
  int64_t matmuls = 0, dim = 0;
  bool softmax = false;
  for (const GraphNode& node : graph.nodes) {
    if (!computable(node)) {
      return {CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
              text("operation ", int(node.mode), " is not part of attention")};
    }
    softmax |= node.kind == NodeKind::kPointwise && node.mode == CUDNN_POINTWISE_EXP;
    if (node.kind != NodeKind::kMatmul) continue;
    ++matmuls;
    bool of_inputs = !graph.at(node.x).is_virtual && !graph.at(node.b).is_virtual;  // contracts the head dimension
    if (of_inputs) dim = graph.at(node.x).dims[3];
    for (int input : {node.x, node.b}) {
      const GraphTensor& tensor = graph.at(input);
      if (tensor.is_virtual) continue;
      if (!half_type(tensor.type)) return {CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "attention takes fp16 and bf16"};
      if (std::min(tensor.strides[2], tensor.strides[3]) != 1) {
        return {CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                text("tensor ", tensor.uid, ": the head dimension is not contiguous")};
      }
    }
  }
  if ((matmuls != 2 && matmuls != 5) || !softmax) {
    return {CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the graph is neither attention forward nor backward"};
  }
  for (const GraphTensor& tensor : graph.tensors) {
    if (cudnn_element(tensor.type) == Element::kNone) {
      return {CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, text("tensor ", tensor.uid, ": data type ", int(tensor.type))};
    }
  }
  return check_device(graph, device, dim);
}

int64_t plan_workspace(const CudnnGraph& graph, int engine) {
  if (!graph.backward()) return engine == 0 ? 0 : 4096;
  const GraphNode& first = *std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                         [](const GraphNode& n) { return n.kind == NodeKind::kMatmul; });
  const GraphTensor& scores = graph.at(first.y);
  int64_t rows = scores.dims[0] * scores.dims[1] * scores.dims[2];
  int64_t dp = rows * scores.dims[3] * 2;
  return (rows * 4 + dp + 255) / 256 * 256 + engine * 4096;
}

}  // namespace emu::fakes
