// cuTensorMapEncodeTiled: checks what the driver checks (cuda.h, "Tensor Map Object Management") and writes the map
// that the emulated TMA engine reads.
#include <cuda.h>

#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// 0: not emulated.
uint32_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
    default:
      return 0;
  }
}

int swizzle_bytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return 0;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 128;
    default:
      return -1;
  }
}

CUresult invalid(const std::string& why) {
  refuse(cudaErrorInvalidValue, "cuTensorMapEncodeTiled: " + why);
  return CUDA_ERROR_INVALID_VALUE;
}

// One dimension of the tensor and of the box.
CUresult add_dimension(TensorMap& map, uint32_t d, const cuuint64_t* dims, const cuuint64_t* strides,
                       const cuuint32_t* box, const cuuint32_t* element_strides) {
  const std::string which = "dimension " + std::to_string(d);
  if (dims[d] == 0 || dims[d] > (uint64_t{1} << 32)) return invalid(which + " has size " + std::to_string(dims[d]));
  if (box[d] == 0 || box[d] > 256) return invalid(which + ": the box is 1 to 256, asked " + std::to_string(box[d]));
  if (element_strides[d] != 1) return invalid(which + ": element strides other than 1 are not emulated");
  map.dims[d] = dims[d];
  map.box[d] = uint16_t(box[d]);
  if (d == 0) return CUDA_SUCCESS;
  const uint64_t stride = strides[d - 1];
  if (stride == 0 || stride % 16 != 0 || stride >= (uint64_t{1} << 40)) {
    return invalid(which + ": strides are multiples of 16 bytes below 2^40, asked " + std::to_string(stride));
  }
  map.strides[d] = stride;
  return CUDA_SUCCESS;
}

CUresult check_box(const TensorMap& map) {
  const uint64_t row = uint64_t{map.box[0]} * map.element_bytes;
  if (row % 16 != 0) return invalid("the inner box of " + std::to_string(row) + " bytes is no multiple of 16");
  if (map.swizzle != 0 && row > map.swizzle) {
    return invalid("the inner box of " + std::to_string(row) + " bytes is larger than the swizzle of " +
                   std::to_string(map.swizzle));
  }
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace emu

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                           const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                           const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill) {
  std::unique_lock lock(emu::runtime().mutex);
  int planned = 0;
  if (emu::planned_failure("cuTensorMapEncodeTiled", &planned)) return CUresult(planned);
  const uint32_t element_bytes = emu::bytes_of(type);
  const int swizzle_size = emu::swizzle_bytes(swizzle);
  if (out == nullptr || reinterpret_cast<uintptr_t>(out) % 64 != 0)
    return emu::invalid("the map is not 64-byte aligned");
  if (element_bytes == 0) return emu::invalid("this data type is not emulated");
  if (rank < 1 || rank > 5) return emu::invalid("rank " + std::to_string(rank) + ", it is 1 to 5");
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0) return emu::invalid("the tensor is not 16-byte aligned");
  if (emu::device_of(base) < 0 && !emu::runtime().launches_told_to)
    return emu::invalid("not device memory: " + emu::describe_address(base));
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return emu::invalid("interleaved layouts are not emulated");
  if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) return emu::invalid("NaN fill is not emulated");
  if (swizzle_size < 0) return emu::invalid("this swizzle is not emulated");
  emu::TensorMap map{};
  map.magic = emu::kTensorMapMagic;
  map.base = static_cast<uint8_t*>(base);
  map.rank = rank;
  map.element_bytes = element_bytes;
  map.swizzle = uint32_t(swizzle_size);
  for (uint32_t d = 0; d < 5; ++d) map.dims[d] = map.box[d] = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    if (CUresult r = emu::add_dimension(map, d, dims, strides, box, element_strides); r != CUDA_SUCCESS) return r;
  }
  if (CUresult r = emu::check_box(map); r != CUDA_SUCCESS) return r;
  memset(out, 0, sizeof *out);
  memcpy(static_cast<void*>(out), &map, sizeof map);
  return CUDA_SUCCESS;
}
