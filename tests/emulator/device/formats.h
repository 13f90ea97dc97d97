// Elements of tensor-core operands as they lie in 32-bit registers and in shared memory, decoded exactly.
#pragma once
#include "cuda/host/instructions.h"
namespace emu {

inline uint32_t element_bytes(ptx::MmaType type) {
  switch (type) {
    case ptx::MmaType::kBfloat16:
    case ptx::MmaType::kFloat16:
      return 2;
    case ptx::MmaType::kTf32:
      return 4;
    default:
      return 1;
  }
}

// The low bits of `raw`. Tensor cores ignore the last 13 bits of a tf32 operand.
inline float decode(uint32_t raw, ptx::MmaType type) {
  switch (type) {
    case ptx::MmaType::kBfloat16:
      return bits_as<float>(raw << 16);
    case ptx::MmaType::kFloat16:
      return __half2float(__half(__half_raw{uint16_t(raw)}));
    case ptx::MmaType::kTf32:
      return bits_as<float>(raw & 0xffffe000u);
    case ptx::MmaType::kE4m3:
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(uint8_t(raw), __NV_E4M3)));
    default:
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(uint8_t(raw), __NV_E5M2)));
  }
}
inline float decode_packed(uint32_t reg, uint32_t element, ptx::MmaType type) {
  return decode(reg >> element * 8 * element_bytes(type), type);
}
inline float decode_memory(const uint8_t* p, ptx::MmaType type) {
  uint32_t raw = 0;
  memcpy(&raw, p, element_bytes(type));
  return decode(raw, type);
}

inline void check_operand_types(ptx::MmaType a, ptx::MmaType b, const char* instruction) {
  if (a != b && (element_bytes(a) != 1 || element_bytes(b) != 1)) {
    fail(Fault::kRefused, "%s: operands of different types; only the two 8-bit formats may be mixed", instruction);
  }
}
}  // namespace emu
