// See interpret.h.
#include "interpret.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace emu::fakes {
namespace {

struct Index {
  int64_t b, h, i, j;
};

class Interpreter {
 public:
  Interpreter(const CudnnGraph& graph, const GraphRun& run)
      : graph_(graph), run_(run), virtual_(graph.tensors.size()) {}

  void run() {
    for (const GraphNode& node : graph_.nodes) {
      if (graph_.at(node.y).is_virtual) {
        virtual_[static_cast<size_t>(node.y)].resize(static_cast<size_t>(graph_.at(node.y).count()));
      }
      switch (node.kind) {
        case NodeKind::kMatmul:
          matmul(node);
          break;
        case NodeKind::kPointwise:
          pointwise(node);
          break;
        case NodeKind::kReduction:
          reduce(node);
          break;
        case NodeKind::kReshape:
          reshape(node);
          break;
      }
    }
  }

 private:
  static int64_t dense(const GraphTensor& t, const Index& at) {
    return ((at.b * t.dims[1] + at.h) * t.dims[2] + at.i) * t.dims[3] + at.j;
  }
  void* pointer(const GraphTensor& t) const { return run_.pointers.at(t.uid); }

  int64_t address(const GraphTensor& t, const Index& at) const {
    return at.b * t.strides[0] + at.h * t.strides[1] + at.i * t.strides[2] + at.j * t.strides[3];
  }

  // Broadcasts: dimensions of 1 are repeated, and fewer heads (GQA) are shared by groups of query heads.
  float read(int tensor, Index at, int64_t heads) const {
    const GraphTensor& t = graph_.at(tensor);
    if (t.by_value) return run_.values.at(t.uid);
    at.b = t.dims[0] == 1 ? 0 : at.b;
    at.h = at.h / std::max<int64_t>(1, heads / t.dims[1]);
    at.i = t.dims[2] == 1 ? 0 : at.i;
    at.j = t.dims[3] == 1 ? 0 : at.j;
    if (t.is_virtual) return virtual_[static_cast<size_t>(tensor)][static_cast<size_t>(dense(t, at))];
    return read_element(cudnn_element(t.type), pointer(t), address(t, at));
  }
  void write(int tensor, const Index& at, float value) {
    const GraphTensor& t = graph_.at(tensor);
    if (t.is_virtual) {
      bool exact = t.type == CUDNN_DATA_FLOAT;
      virtual_[static_cast<size_t>(tensor)][static_cast<size_t>(dense(t, at))] =
          exact ? value : round_to(cudnn_element(t.type), value);
    } else {
      write_element(cudnn_element(t.type), pointer(t), address(t, at), value);
    }
  }
  template <class Body>
  void each(const GraphTensor& t, Body&& body) const {
    for (int64_t b = 0; b < t.dims[0]; ++b)
      for (int64_t h = 0; h < t.dims[1]; ++h)
        for (int64_t i = 0; i < t.dims[2]; ++i)
          for (int64_t j = 0; j < t.dims[3]; ++j) body(Index{b, h, i, j});
  }
  void matmul(const GraphNode& node) {
    const GraphTensor &x = graph_.at(node.x), &y = graph_.at(node.y);
    const int64_t heads = y.dims[1], m = y.dims[2], n = y.dims[3], k = x.dims[3];
    std::vector<float> right(static_cast<size_t>(k * n)), row(static_cast<size_t>(n));
    for (int64_t batch = 0; batch < y.dims[0]; ++batch) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t p = 0; p < k; ++p)
          for (int64_t j = 0; j < n; ++j) right[static_cast<size_t>(p * n + j)] = read(node.b, {batch, h, p, j}, heads);
        for (int64_t i = 0; i < m; ++i) {
          std::fill(row.begin(), row.end(), 0.f);
          for (int64_t p = 0; p < k; ++p) {
            const float factor = read(node.x, {batch, h, i, p}, heads);
            const float* line = right.data() + p * n;
            for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += factor * line[j];
          }
          for (int64_t j = 0; j < n; ++j) write(node.y, {batch, h, i, j}, row[static_cast<size_t>(j)]);
        }
      }
    }
  }

  void pointwise(const GraphNode& node) {
    const GraphTensor& y = graph_.at(node.y);
    each(y, [&](const Index& at) {
      if (node.mode == CUDNN_POINTWISE_GEN_INDEX) {
        int64_t indices[] = {at.b, at.h, at.i, at.j};
        return write(node.y, at, static_cast<float>(indices[node.axis]));
      }
      float x = read(node.x, at, y.dims[1]);
      float b = node.b >= 0 ? read(node.b, at, y.dims[1]) : 0.f;
      float t = node.t >= 0 ? read(node.t, at, y.dims[1]) : 0.f;
      write(node.y, at, apply(node.mode, x, b, t));
    });
  }

  static float apply(cudnnPointwiseMode_t mode, float x, float b, float t) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
      case CUDNN_POINTWISE_CMP_GT:
        return x > b;
      case CUDNN_POINTWISE_CMP_LT:
        return x < b;
      case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
      default:
        return std::numeric_limits<float>::quiet_NaN();  // refused before: supported_mode()
    }
  }

  void reduce(const GraphNode& node) {
    const GraphTensor &x = graph_.at(node.x), &y = graph_.at(node.y);
    bool max = node.reduction == CUDNN_REDUCE_TENSOR_MAX;
    std::array<int64_t, 4> group;
    for (size_t i = 0; i < 4; ++i) group[i] = x.dims[i] / y.dims[i];
    each(y, [&](const Index& at) {
      float result = max ? -std::numeric_limits<float>::infinity() : 0.f;
      for (int64_t b = 0; b < group[0]; ++b)
        for (int64_t h = 0; h < group[1]; ++h)
          for (int64_t i = 0; i < group[2]; ++i)
            for (int64_t j = 0; j < group[3]; ++j) {
              float value =
                  read(node.x, {at.b * group[0] + b, at.h * group[1] + h, at.i * group[2] + i, at.j * group[3] + j},
                       x.dims[1]);
              result = max ? std::max(result, value) : result + value;
            }
      write(node.y, at, result);
    });
  }

  // The same elements under another view; attention transposes the last two dimensions.
  void reshape(const GraphNode& node) {
    const GraphTensor &x = graph_.at(node.x), &y = graph_.at(node.y);
    bool transposed = x.dims[2] == y.dims[3] && x.dims[3] == y.dims[2] && is_transposed(x) != is_transposed(y);
    each(y, [&](const Index& at) {
      Index from = transposed ? Index{at.b, at.h, at.j, at.i} : at;
      write(node.y, at, read(node.x, from, x.dims[1]));
    });
  }
  static bool is_transposed(const GraphTensor& t) { return t.strides[2] < t.strides[3]; }

  const CudnnGraph& graph_;
  const GraphRun& run_;
  std::vector<std::vector<float>> virtual_;
};

}  // namespace

void run_graph(const CudnnGraph& graph, const GraphRun& run) { Interpreter(graph, run).run(); }

}  // namespace emu::fakes
