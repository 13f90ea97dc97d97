// Conversions by CUDA's headers, compiled for the host; see element.h.
#include "element.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace emu::fakes {
namespace {

template <class T>
T at(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void put(void* base, int64_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float from_fp8(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kind)));
}

template <class T>
T to_integer(double value) {  // to nearest even; out of range saturates, as the device's conversions do
  double lowest = static_cast<double>(std::numeric_limits<T>::min());
  double highest = static_cast<double>(std::numeric_limits<T>::max());
  if (std::isnan(value)) return 0;
  value = std::nearbyint(value);
  if (value <= lowest) return std::numeric_limits<T>::min();
  if (value >= highest) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

}  // namespace

size_t element_bytes(Element type) {
  switch (type) {
    case Element::kF64:
    case Element::kI64:
    case Element::kU64:
      return 8;
    case Element::kF32:
    case Element::kI32:
    case Element::kU32:
      return 4;
    case Element::kF16:
    case Element::kBf16:
      return 2;
    case Element::kE4m3:
    case Element::kE5m2:
    case Element::kI8:
    case Element::kU8:
    case Element::kE2m1:
      return 1;
    case Element::kNone:
      return 0;
  }
  return 0;
}

int64_t bytes_of(Element type, int64_t elements) {
  return elements * static_cast<int64_t>(element_bytes(type)) / (type == Element::kE2m1 ? 2 : 1);
}

const char* element_name(Element type) {
  static const char* const names[] = {"fp64",  "fp32",  "fp16",   "bf16",  "e4m3",   "e5m2", "int8",
                                      "uint8", "int32", "uint32", "int64", "uint64", "e2m1", "unsupported type"};
  return names[static_cast<int>(type)];
}

bool is_fp8(Element type) { return type == Element::kE4m3 || type == Element::kE5m2; }

Element element_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return Element::kF64;
    case CUDA_R_32F:
      return Element::kF32;
    case CUDA_R_16F:
      return Element::kF16;
    case CUDA_R_16BF:
      return Element::kBf16;
    case CUDA_R_8F_E4M3:
      return Element::kE4m3;
    case CUDA_R_8F_E5M2:
      return Element::kE5m2;
    case CUDA_R_4F_E2M1:
      return Element::kE2m1;
    default:
      return Element::kNone;
  }
}

float read_element(Element type, const void* base, int64_t index) {
  switch (type) {
    case Element::kF32:
      return at<float>(base, index);
    case Element::kF16:
      return __half2float(at<__half>(base, index));
    case Element::kBf16:
      return __bfloat162float(at<__nv_bfloat16>(base, index));
    case Element::kE4m3:
      return from_fp8(at<__nv_fp8_storage_t>(base, index), __NV_E4M3);
    case Element::kE5m2:
      return from_fp8(at<__nv_fp8_storage_t>(base, index), __NV_E5M2);
    case Element::kE2m1: {  // the first of two neighbours is in the low half
      const auto bits = static_cast<__nv_fp4_storage_t>(at<uint8_t>(base, index / 2) >> (index % 2 * 4) & 0xf);
      return __half2float(__half(__nv_cvt_fp4_to_halfraw(bits, __NV_E2M1)));
    }
    default:
      return static_cast<float>(read_double(type, base, index));
  }
}

double read_double(Element type, const void* base, int64_t index) {
  switch (type) {
    case Element::kF64:
      return at<double>(base, index);
    case Element::kI8:
      return at<int8_t>(base, index);
    case Element::kU8:
      return at<uint8_t>(base, index);
    case Element::kI32:
      return at<int32_t>(base, index);
    case Element::kU32:
      return at<uint32_t>(base, index);
    case Element::kI64:
      return static_cast<double>(at<int64_t>(base, index));
    case Element::kU64:
      return static_cast<double>(at<uint64_t>(base, index));
    case Element::kNone:
      return std::nan("");
    default:
      return read_element(type, base, index);
  }
}

void write_element(Element type, void* base, int64_t index, float value) {
  switch (type) {
    case Element::kF32:
      return put(base, index, value);
    case Element::kF16:
      return put(base, index, __float2half_rn(value));
    case Element::kBf16:
      return put(base, index, __float2bfloat16_rn(value));
    case Element::kE4m3:
      return put(base, index, __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
    case Element::kE5m2:
      return put(base, index, __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2));
    default:
      return write_double(type, base, index, value);
  }
}

void write_double(Element type, void* base, int64_t index, double value) {
  switch (type) {
    case Element::kF64:
      return put(base, index, value);
    case Element::kI8:
      return put(base, index, to_integer<int8_t>(value));
    case Element::kU8:
      return put(base, index, to_integer<uint8_t>(value));
    case Element::kI32:
      return put(base, index, to_integer<int32_t>(value));
    case Element::kU32:
      return put(base, index, to_integer<uint32_t>(value));
    case Element::kI64:
      return put(base, index, to_integer<int64_t>(value));
    case Element::kU64:
      return put(base, index, to_integer<uint64_t>(value));
    case Element::kNone:
      return;
    default:
      return write_element(type, base, index, static_cast<float>(value));
  }
}

float from_e8m0(uint8_t bits) { return bits == 255 ? std::nanf("") : std::ldexp(1.0f, bits - 127); }

float round_to(Element type, float value) {
  uint64_t storage = 0;
  write_element(type, &storage, 0, value);
  return read_element(type, &storage, 0);
}

float round_to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

}  // namespace emu::fakes
