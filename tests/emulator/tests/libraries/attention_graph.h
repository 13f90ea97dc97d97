// Describes attention to a cuDNN table: the operation graphs that cuDNN's own frontend makes of it, forward and
// backward.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/libraries/cudnn_table.h"

namespace emu::fakes {

struct AttentionShape {
  int64_t batch = 2, heads = 4, kv_heads = 4, tokens = 33, dim = 16;
  bool causal = true, backward = false;
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
  int64_t row_q() const { return heads * dim; }  // elements from token to token, [token, head, dim]
  int64_t row_kv() const { return kv_heads * dim; }
};

enum AttentionId : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDO,
  kDQ,
  kDK,
  kDV,
  kSum,
  kScale,
  kMinusInfinity,
  kOne,
  kFirstVirtual = 1000
};

class AttentionGraph {
 public:
  AttentionGraph(const athanor::CudnnTable& table, cudnnHandle_t handle, const AttentionShape& shape);
  ~AttentionGraph();
  AttentionGraph(const AttentionGraph&) = delete;
  AttentionGraph& operator=(const AttentionGraph&) = delete;

  cudnnStatus_t build();  // the first configuration that becomes a plan
  int64_t workspace() const { return workspace_; }
  cudnnStatus_t execute(const std::vector<int64_t>& ids, const std::vector<void*>& pointers, void* workspace) const;
  // The first status that was not success while the graph was described.
  cudnnStatus_t status() const { return status_; }

 private:
  using Dims = std::vector<int64_t>;
  struct T {
    cudnnBackendDescriptor_t descriptor = nullptr;
    Dims dims, strides;
  };
  enum Kind { kReal, kVirtual, kByValue };

  cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t kind);
  void keep(cudnnStatus_t status);
  template <class V>
  void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, V value);
  void link(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, const T* tensor);
  T tensor(int64_t id, Dims dims, Dims strides, cudnnDataType_t type, Kind kind = kReal);
  T temporary(Dims dims, Dims strides, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  T like(const T& x, cudnnDataType_t type = CUDNN_DATA_FLOAT) { return temporary(x.dims, x.strides, type); }
  T scalar(int64_t id);
  T finish(cudnnBackendDescriptor_t operation, const T& out);
  T matmul(const T& a, const T& b, const T& c);
  T pointwise(cudnnPointwiseMode_t mode, const T& x, const T* b, const T* t, const T& y, int64_t axis = -1);
  T reduce(cudnnReduceTensorOp_t mode, const T& x, const T& y);
  T reshape(const T& x, const T& y);
  T rows(int64_t id, int64_t heads, bool transposed = false);
  void describe_inputs();
  T masked_scores(const T* minus);
  T transposed(const T& x);
  void keys_gradient(const T& probabilities, const T& rows, const T& out);
  void forward();
  void backward();

  athanor::CudnnTable table_;
  cudnnHandle_t handle_;
  AttentionShape s_;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
  std::vector<cudnnBackendDescriptor_t> owned_, operations_;
  cudnnBackendDescriptor_t plan_ = nullptr;
  int64_t next_ = kFirstVirtual, workspace_ = 0;
  T q_, k_, v_, o_, stats_, scale_, minus_infinity_;
};

}  // namespace emu::fakes
