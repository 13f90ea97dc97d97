// One matrix product as described to cuBLASLt, read out of its descriptors and checked against the documented rules.
#pragma once
#include <cstdint>
#include <string>

#include "../element.h"
#include "../machine.h"
#include "attributes.h"

namespace emu::fakes {

struct Matrix {
  Element type = Element::kNone;
  int64_t rows = 0, cols = 0, ld = 0;
  int64_t index(int64_t row, int64_t col) const { return col * ld + row; }
  bool operator==(const Matrix&) const = default;
};

enum class ScaleMode { kNone, kScalar, kOuterVector, kVector128, kBlock128, kVector16, kVector32 };

struct Scale {
  ScaleMode mode = ScaleMode::kNone;
  const float* pointer = nullptr;  // device memory; of kVector16 bytes of E4M3, of kVector32 of E8M0
};

struct Epilogue {
  bool bias = false, gelu = false, d_gelu = false;
  bool gradient_a = false, gradient_b = false;  // sums of A's rows or B's columns
  bool needs_bias_pointer() const { return bias || gradient_a || gradient_b; }
  bool needs_aux() const { return gelu || d_gelu; }
};

struct Product {  // D [m, n] = epilogue(alpha * op(A) [m, k] * op(B) [k, n] + beta * C)
  int64_t m = 0, n = 0, k = 0;
  Matrix a, b, c, d;
  bool transpose_a = false, transpose_b = false;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  uint32_t epilogue_code = CUBLASLT_EPILOGUE_DEFAULT;
  Epilogue epilogue;
  void* bias = nullptr;
  Element bias_type = Element::kNone;
  void* aux = nullptr;  // of D's type
  int64_t aux_ld = 0;
  Scale scale_a, scale_b;
  int code_sum_bits = 24;  // kept of sums of FP8 numbers,
  bool promotes = true;    // which are added in fp32 after every 128 terms (not with ..._FAST_ACCUM)

  bool fp8() const { return is_fp8(a.type) || is_fp8(b.type); }
  bool fp4() const { return a.type == Element::kE2m1 || b.type == Element::kE2m1; }
  uint64_t type_key() const;  // of the types that an algorithm is configured for
};

// Bytes of scales per 16 or 32 of k for `outer` rows, in tiles of 128 rows by 4 scales; and the place of one of them.
// (cuBLAS manual, "1D Block Scaling for FP8 and FP4 Data Types", scaling factors layout)
int64_t tiled_scales(int64_t outer, int64_t scales);
int64_t tiled_scale(int64_t outer, int64_t scale, int64_t scales);

struct Verdict {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  std::string why;
  bool ok() const { return status == CUBLAS_STATUS_SUCCESS; }
};

struct Layouts {
  cublasLtMatrixLayout_t a, b, c, d;
};

// Reads the descriptors and checks everything that does not need the pointers of A, B, C and D.
Verdict describe_product(cublasLtMatmulDesc_t desc, const Layouts& layouts, const MachineDevice& device, Product* out);

}  // namespace emu::fakes
