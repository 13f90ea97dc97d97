// An operation graph of cuDNN's backend API and its execution plan: owning descriptors, and an error for every status.
// Does not know what the graph computes.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cuda/libraries/cudnn_table.h"
namespace athanor::cuda {

// Throws an Error with cuDNN's message unless the status is success.
void require_cudnn(const CudnnTable& cudnn, cudnnStatus_t status, const char* what);

// Target of a plan: a handle, or a described device, to query what it would support.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t properties = nullptr;
};

class CudnnGraph {
 public:
  using Dims = std::array<int64_t, 4>;
  struct Node {  // a tensor: input, output or value between operations
    cudnnBackendDescriptor_t descriptor = nullptr;
    Dims dims{}, strides{};
    int64_t id = 0;
  };

  CudnnGraph(const CudnnTable& cudnn, CudnnTarget target) : cudnn_(cudnn), target_(target) {}
  ~CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;

  Node memory(int64_t id, Dims dims, Dims strides, cudnnDataType_t type);
  Node scalar(int64_t id, cudnnDataType_t type = CUDNN_DATA_FLOAT);  // in host memory, read at each launch
  Node temporary(Dims dims, Dims strides, cudnnDataType_t type);

  // Each appends an operation that writes `y`, and returns y.
  Node matmul(const Node& a, const Node& b, const Node& y);
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    const Node* b = nullptr;  // second operand
    const Node* t = nullptr;  // condition
    int64_t axis = -1;
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  };
  Node pointwise(const Pointwise& how, const Node& x, const Node& y);
  Node reduce(cudnnReduceTensorOp_t how, const Node& x, const Node& y);
  Node reshape(const Node& x, const Node& y);

  // Chooses the library's first engine that supports the graph. False and the reason if there is none.
  bool plan(std::string* why);
  // Text of all operations so far: equal descriptions mean equal graphs.
  const std::string& description() const { return description_; }
  // The plan as text including its kernels; empty if the library cannot export it.
  std::string plan_text() const;
  // Replaces operations and plan(): loads a plan's text for the same GPU, driver and library. False and the reason if
  // the library rejects it. The library validates little: do not pass text that may be damaged.
  bool restore(const std::string& text, std::string* why);
  int64_t engine() const { return engine_; }  // the plan's engine number in cuDNN; -1: unknown
  size_t workspace_bytes() const { return static_cast<size_t>(workspace_bytes_); }

  struct Binding {
    int64_t id;
    const void* pointer;
  };
  // Launches on the handle's stream; nothing is allocated on the device.
  void launch(const std::vector<Binding>& bindings, void* workspace) const;

 private:
  enum class Kind { memory, temporary, by_value };
  Node tensor(Kind kind, int64_t id, const Dims& dims, const Dims& strides, cudnnDataType_t type);
  cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t kind);
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t count, const void* values) const;
  template <class T>
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const T& value) const {
    set(d, name, type, 1, &value);
  }
  void link(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other) const;
  void finalize(cudnnBackendDescriptor_t d) const;
  Node append(cudnnBackendDescriptor_t operation, const Node& y);
  std::vector<cudnnBackendDescriptor_t> engine_configurations(std::string* why);
  int64_t engine_of(cudnnBackendDescriptor_t configuration) const;
  bool finish_plan(cudnnBackendDescriptor_t plan, std::string* why);

  CudnnTable cudnn_;
  CudnnTarget target_;
  std::vector<cudnnBackendDescriptor_t> owned_, operations_;
  cudnnBackendDescriptor_t plan_ = nullptr;
  std::string description_;
  int64_t next_temporary_ = 1000, workspace_bytes_ = 0, engine_ = -1;
};
}  // namespace athanor::cuda
