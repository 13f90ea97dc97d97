// Tensor maps: descriptors of matrices in device memory for TMA. Created on the host and passed to kernels by value.
#pragma once
#include <cuda.h>

#include "cuda/host_tools.h"
namespace athanor::cuda {

// A copy moves a box of box_rows x box_columns. If box_columns are 128 bytes, the 128-byte swizzle is used, against
// bank conflicts, as wgmma expects. Rows and columns outside of the matrix read as zeros and are not written.
constexpr int kBoxColumns = 64;  // elements of 16-bit types
template <class T>
struct TmaMatrix {
  const T* data;  // [rows, columns], 16-byte aligned
  int64_t rows, columns;
  int64_t stride;  // elements; rows start on 16-byte boundaries
  uint32_t box_rows, box_columns = kBoxColumns;
};

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);
inline TensorMapEncoder tensor_map_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    throw Error(
        "CUDA: the driver has no cuTensorMapEncodeTiled, which kernels for compute capability 9.0 need; "
        "install a newer driver (580 or later)");
  return reinterpret_cast<TensorMapEncoder>(entry);
}

template <class T>
CUtensorMap tensor_map(TensorMapEncoder encode, const TmaMatrix<T>& m) {
  constexpr auto kType = std::is_same_v<T, float>  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                         : sizeof(T) == 1          ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                         : std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(m.stride) * sizeof(T)};
  const cuuint32_t box[] = {m.box_columns, m.box_rows}, steps[] = {1, 1};
  const auto swizzle = m.box_columns * sizeof(T) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMap map;
  const CUresult result =
      encode(&map, kType, 2, const_cast<T*>(m.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", int{result}, " for [", m.rows, ", ", m.columns,
        "], rows ", m.stride, " apart");
  return map;
}
}  // namespace athanor::cuda
