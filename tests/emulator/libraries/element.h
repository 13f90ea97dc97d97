// Element types of the fake libraries and their exact conversions: CUDA's own headers round, to nearest even; FP8
// saturates to the largest finite value, as the libraries' outputs do.
#pragma once
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace emu::fakes {

enum class Element : uint8_t { kF64, kF32, kF16, kBf16, kE4m3, kE5m2, kI8, kU8, kI32, kU32, kI64, kU64, kE2m1, kNone };

size_t element_bytes(Element type);                // kE2m1: 1, of two elements
int64_t bytes_of(Element type, int64_t elements);  // adjacent elements
const char* element_name(Element type);
bool is_fp8(Element type);
float from_e8m0(uint8_t bits);
// kNone: the fakes do not compute with this type.
Element element_of(cudaDataType_t type);

float read_element(Element type, const void* base, int64_t index);
void write_element(Element type, void* base, int64_t index, float value);
double read_double(Element type, const void* base, int64_t index);
void write_double(Element type, void* base, int64_t index, double value);

// The value as a GPU would hold it in this type.
float round_to(Element type, float value);
// 10 bits of mantissa, to nearest, ties away from zero (cvt.rna.tf32.f32).
float round_to_tf32(float value);

}  // namespace emu::fakes
