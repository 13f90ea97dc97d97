// Rows of any length as chunks of E elements: 16-byte accesses if rows are aligned, else single elements. E fits the
// streamed type T; tensors of another type use the same columns.
#pragma once
#include "cuda/types.h"
namespace athanor::cuda {

// Whether all rows start on a 16-byte boundary: the pointers do, and a row is a multiple of 16 bytes in every type.
template <class... P>
bool rows_are_vectors(int64_t columns, const P*... pointers) {
  const bool aligned = ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
  return aligned && ((columns * static_cast<int64_t>(sizeof(P)) % 16 == 0) && ...);
}

// values = p[column .. column + E); 0 past the end of the row.
template <int E, class T>
__device__ __forceinline__ void load_chunk(float (&values)[E], const T* p, int column, int columns, bool vectors) {
  constexpr int kBytes = E * static_cast<int>(sizeof(T));
  static_assert(kBytes == 8 || kBytes % 16 == 0);
  if (vectors) {
    T elements[E];
    if constexpr (kBytes == 8) {
      const uint2 raw = ld8(p + column);
      memcpy(static_cast<void*>(elements), &raw, sizeof raw);
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const uint4 raw = ld16(p + column + i * kVector<T>);
        memcpy(static_cast<void*>(elements + i * kVector<T>), &raw, sizeof raw);
      }
    }
#pragma unroll
    for (int i = 0; i < E; ++i) values[i] = to_float(elements[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < E; ++i) values[i] = column + i < columns ? to_float(p[column + i]) : 0.f;
}

template <int E, class T>
__device__ __forceinline__ void store_chunk(T* p, const float (&values)[E], int column, int columns, bool vectors) {
  constexpr int kBytes = E * static_cast<int>(sizeof(T));
  static_assert(kBytes == 8 || kBytes == 16);
  if (vectors) {
    T elements[E];
#pragma unroll
    for (int i = 0; i < E; ++i) elements[i] = from_float<T>(values[i]);
    std::conditional_t<kBytes == 8, uint2, uint4> raw;
    memcpy(&raw, elements, sizeof raw);
    if constexpr (kBytes == 8) {
      st8(p + column, raw);
    } else {
      st16(p + column, raw);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if (column + i < columns) p[column + i] = from_float<T>(values[i]);
  }
}
}  // namespace athanor::cuda
