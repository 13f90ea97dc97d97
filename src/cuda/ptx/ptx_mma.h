// Part of cuda/ptx/ptx.h: ldmatrix and mma.sync.
#pragma once
#include "cuda/ptx/ptx.h"
namespace athanor::cuda::ptx {

#ifdef __CUDACC__
// Count 8x8 matrices of 16-bit elements; lane l provides the address of row l % 8 of matrix l / 8.
template <int Count, bool Transpose = false>
PTX_FUNCTION void ldmatrix(uint32_t (&r)[Count], const void* row) {
  static_assert(Count == 1 || Count == 2 || Count == 4);
  const uint32_t at = shared_address(row);
#define LDMATRIX(shape, outputs, ...)                                                                                \
  if constexpr (Transpose) {                                                                                         \
    asm volatile("ldmatrix.sync.aligned.m8n8." shape ".trans.shared.b16 " outputs:__VA_ARGS__ : "r"(at) : "memory"); \
  } else {                                                                                                           \
    asm volatile("ldmatrix.sync.aligned.m8n8." shape ".shared.b16 " outputs:__VA_ARGS__ : "r"(at) : "memory");       \
  }
  if constexpr (Count == 1) {
    LDMATRIX("x1", "{%0}, [%1];", "=r"(r[0]))
  } else if constexpr (Count == 2) {
    LDMATRIX("x2", "{%0, %1}, [%2];", "=r"(r[0]), "=r"(r[1]))
  } else {
    LDMATRIX("x4", "{%0, %1, %2, %3}, [%4];", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
  }
#undef LDMATRIX
}

// D[16, 8] (fp32) += A[16, 16] B[16, 8]
#define PTX_MMA(name, type)                                                               \
  PTX_FUNCTION void name(float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                   \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));         \
  }
PTX_MMA(mma_bf16, "bf16")
PTX_MMA(mma_f16, "f16")
#undef PTX_MMA

#else  // the emulated GPU
template <int Count, bool Transpose = false>
PTX_CALLER void ldmatrix(uint32_t (&r)[Count], const void* row) {
  emu::ptx::load_matrices(r, Count, Transpose, row);
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emu::ptx::mma(d, a, {b0, b1}, emu::ptx::MmaType::kBfloat16);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emu::ptx::mma(d, a, {b0, b1}, emu::ptx::MmaType::kFloat16);
}
#endif
}  // namespace athanor::cuda::ptx
