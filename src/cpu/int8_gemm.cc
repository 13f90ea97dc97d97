// GEMM of int8 values (ops/int8_gemm.h): quantizes the rows of a, then computes chunks of the result as integer sums
// and converts them to float. The kernels that depend on the instruction set compute integers only, so results are
// bit-identical on all.
#include <algorithm>
#include <cmath>

#include "base/int.h"
#include "cpu/cpu_ops.h"
#include "cpu/int8_kernel.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kChunk = 64;  // rows and columns of the result in one chunk of work

struct Int8Row {
  float scale = 0;
  bool outliers = false;
};

// amax of the elements of a row below `limit`, and whether an element is not below it (an outlier).
template <class T>
ATHANOR_CLONES void find_amax(Int8Row& row, const T* x, int64_t n, float limit) {
  float most = 0;
  int32_t beyond = 0;
#pragma omp simd reduction(max : most) reduction(+ : beyond)
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]), size = v < 0 ? -v : v;
    const float inside = size < limit ? size : 0.0f;
    beyond += size < limit ? 0 : 1;
    most = inside > most ? inside : most;
  }
  row.scale = most, row.outliers = beyond > 0;
}

// Quantizes a row with outliers as 0; returns the sum of the quantized values.
template <class T>
ATHANOR_CLONES int32_t encode_int8(int8_t* quantized, const T* x, int64_t n, float limit, float inverse) {
  int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]), size = v < 0 ? -v : v;
    const float code = int8_code(size < limit ? v : 0.0f, inverse);
    quantized[i] = int8_t(int32_t(code));
    sum += int32_t(code);
  }
  return sum;
}

// Adds the products of a row's outliers to out[0, n).
template <class T>
void add_outliers(float* out, const Int8Gemm& op, const T* x, int64_t column, int64_t n) {
  const float limit = op.limit();
  const auto* quantized = op.quantized.as<uint8_t>();
  const auto* scales = op.scales.as<float>();
  for (int64_t k = 0; k < op.k(); ++k) {
    const float v = to_float(x[k]);
    if (std::fabs(v) < limit) continue;
    for (int64_t j = 0; j < n; ++j)
      out[j] += v * (scales[column + j] * float(int(quantized[(column + j) * op.k() + k]) - kInt8Offset));
  }
}

struct Int8Scratch {
  Int8Row* rows;
  int32_t* sums;
  int8_t* quantized;  // [M, K]
  Int8Scratch(const Int8Gemm& op, void* at)
      : rows(static_cast<Int8Row*>(at)),
        sums(reinterpret_cast<int32_t*>(rows + op.m())),
        quantized(reinterpret_cast<int8_t*>(sums + op.m())) {}
  static size_t bytes(const Int8Gemm& op) {
    return size_t(op.m()) * (sizeof(Int8Row) + sizeof(int32_t) + size_t(op.k()));
  }
};

// Scales a chunk of the result and stores it, rounded.
void store_chunk(const Int8Gemm& op, const Int8Row* rows, const int32_t* sums, int64_t row, int64_t count,
                 int64_t column, int64_t n) {
  const float* scales = op.scales.as<float>() + column;
  float z[kChunk], apart[kChunk];
  for (int64_t i = 0; i < count; ++i, sums += kChunk) {
    const Int8Row& of = rows[row + i];
    for (int64_t j = 0; j < n; ++j) z[j] = float(sums[j]) * (of.scale * scales[j]);
    if (of.outliers) {
      std::fill_n(apart, n, 0.0f);
      by_float(op.a.dtype,
               [&]<class T>() { add_outliers(apart, op, op.a.as<T>() + (row + i) * op.a.stride(), column, n); });
      add_row(z, apart, n);
    }
    if (op.bias) by_float(op.bias.dtype, [&]<class B>() { add_row(z, op.bias.as<B>() + column, n); });
    by_float(op.d.dtype, [&]<class T>() { store_row(op.d.as<T>() + (row + i) * op.d.stride() + column, z, n); });
  }
}

}  // namespace

size_t CpuOps::scratch(const Int8Gemm& op) const { return Int8Scratch::bytes(op); }

void CpuOps::run(const Int8Gemm& op, void* scratch) {
  const Int8Scratch s(op, scratch);
  const int64_t m = op.m(), n = op.n(), k = op.k();
  by_float(op.a.dtype, [&]<class T>() {
    pool_.parallel_ranges(m, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* x = op.a.as<T>() + i * op.a.stride();
        find_amax(s.rows[i], x, k, op.limit());
        const float inverse = int8_inverse(s.rows[i].scale);
        s.sums[i] = encode_int8(s.quantized + i * k, x, k, op.limit(), inverse);
        s.rows[i].scale /= kInt8Most;
      }
    });
  });
  const Int8DotsFn dots = int8_dots();
  const int64_t blocks = div_ceil(n, kChunk);
  pool_.parallel_for(div_ceil(m, kChunk) * blocks, [&](int64_t chunk) {
    const int64_t row = chunk / blocks * kChunk, column = chunk % blocks * kChunk;
    const int64_t rows = std::min(kChunk, m - row), columns = std::min(kChunk, n - column);
    int32_t sums[kChunk * kChunk];
    dots({.out = sums,
          .out_stride = kChunk,
          .a = s.quantized + row * k,
          .sums = s.sums + row,
          .w = op.quantized.as<uint8_t>() + column * k,
          .m = rows,
          .n = columns,
          .k = k});
    store_chunk(op, s.rows, sums, row, rows, column, columns);
  });
}

}  // namespace athanor
