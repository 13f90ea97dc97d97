// Elements of tensor-core operands as they lie in 32-bit registers and in shared memory, decoded exactly.
#pragma once
#include "cuda/host/instructions.h"
namespace emu {

inline float decode(uint16_t raw, ptx::MmaType type) {
  if (type == ptx::MmaType::kBfloat16) return bits_as<float>(uint32_t{raw} << 16);
  return __half2float(__half(__half_raw{raw}));
}
inline float decode_packed(uint32_t reg, uint32_t element, ptx::MmaType type) {
  return decode(uint16_t(reg >> element * 16), type);
}
}  // namespace emu
