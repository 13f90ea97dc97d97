// Tensor maps of dense row-major tensors, for tests.
#pragma once
#include <cuda.h>

#include <vector>

#include "emulator/tests/support.h"
namespace athanor::cuda::testing {

template <class T>
CUtensorMapDataType map_type() {
  if (std::is_same_v<T, float>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if (std::is_same_v<T, fp16>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// dims and box are innermost first.
template <class T>
CUtensorMap tensor_map(const T* data, const std::vector<cuuint64_t>& dims, const std::vector<cuuint32_t>& box,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  CUtensorMap map;
  std::vector<cuuint64_t> strides(1, dims[0] * sizeof(T));
  for (size_t i = 1; i + 1 < dims.size(); ++i) strides.push_back(strides.back() * dims[i]);
  const std::vector<cuuint32_t> steps(dims.size(), 1);
  const CUresult result =
      cuTensorMapEncodeTiled(&map, map_type<T>(), static_cast<cuuint32_t>(dims.size()), const_cast<T*>(data),
                             dims.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                             swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  EXPECT_EQ(result, CUDA_SUCCESS);
  return map;
}
}  // namespace athanor::cuda::testing
