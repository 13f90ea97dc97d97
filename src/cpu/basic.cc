// Fill, cast, add, sums in fixed blocks, and normally distributed initial values.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

#include <cstring>

#include "base/rng.h"

namespace athanor {
namespace {

template <class T>
ATHANOR_CLONES void fill(T* x, T value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = value;
}

template <class To, class From>
ATHANOR_CLONES void cast(To* y, const From* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_float<To>(to_float(x[i]));
}

template <class T>
ATHANOR_CLONES void add(T* y, const T* a, const T* b, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

ATHANOR_CLONES double sum(const float* x, int64_t n) {
  double s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += double(x[i]);
  return s;
}

// Squares in double: those of small gradients would vanish in f32, those of large ones overflow.
ATHANOR_CLONES double sum_of_squares(const float* x, int64_t n) {
  double s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += double(x[i]) * double(x[i]);
  return s;
}

size_t block_sum_bytes(const Tensor& x) { return size_t(div_ceil(x.numel(), kChunkElements)) * sizeof(double); }

// out += the sums of all blocks of x, added in order.
template <class Fn>
void add_block_sums(ThreadPool& pool, const Tensor& out, const Tensor& x, void* scratch, Fn block_sum) {
  double* sums = static_cast<double*>(scratch);
  const float* data = flat<float>(x);
  pool.parallel_ranges(x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    sums[begin / kChunkElements] = block_sum(data + begin, end - begin);
  });
  double total = 0;
  for (int64_t k = 0; k < div_ceil(x.numel(), kChunkElements); ++k) total += sums[k];
  *out.as<double>() += total;
}

// fn<T>() for the type of any dtype, with the value converted.
template <class T>
T value_as(float value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return from_float<T>(value);
  else
    return static_cast<T>(value);
}

template <class T>
void fill_all(ThreadPool& pool, const Tensor& x, float value) {
  T* data = flat<T>(x);
  pool.parallel_ranges(x.numel(), kChunkElements,
                       [&](int64_t begin, int64_t end) { fill(data + begin, value_as<T>(value), end - begin); });
}

}  // namespace

void CpuOps::run(const Fill& op, void*) {
  switch (op.x.dtype) {
    case DType::i32:
      return fill_all<int32_t>(pool_, op.x, op.value);
    case DType::u8:
      return fill_all<uint8_t>(pool_, op.x, op.value);
    case DType::i64:
      return fill_all<int64_t>(pool_, op.x, op.value);
    case DType::f64:
      return fill_all<double>(pool_, op.x, op.value);
    default:
      by_float(op.x.dtype, [&]<class T>() { fill_all<T>(pool_, op.x, op.value); });
  }
}

void CpuOps::run(const Cast& op, void*) {
  by_float(op.y.dtype, [&]<class To>() {
    by_float(op.x.dtype, [&]<class From>() {
      To* y = flat<To>(op.y);
      const From* x = flat<From>(op.x);
      pool_.parallel_ranges(op.x.numel(), kChunkElements,
                            [&](int64_t begin, int64_t end) { cast(y + begin, x + begin, end - begin); });
    });
  });
}

void CpuOps::run(const Add& op, void*) {
  by_float(op.y.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T *a = flat<T>(op.a), *b = flat<T>(op.b);
    pool_.parallel_ranges(op.y.numel(), kChunkElements,
                          [&](int64_t begin, int64_t end) { add(y + begin, a + begin, b + begin, end - begin); });
  });
}

size_t CpuOps::scratch(const ReduceSum& op) const { return block_sum_bytes(op.x); }
void CpuOps::run(const ReduceSum& op, void* scratch) { add_block_sums(pool_, op.out, op.x, scratch, sum); }

size_t CpuOps::scratch(const SquaredNorm& op) const { return block_sum_bytes(op.x); }
void CpuOps::run(const SquaredNorm& op, void* scratch) { add_block_sums(pool_, op.out, op.x, scratch, sum_of_squares); }

void CpuOps::run(const RandomNormal& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* x = flat<T>(op.x);
    pool_.parallel_ranges(op.x.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        x[i] = from_float<T>(
            op.std == 0 ? op.mean : op.mean + op.std * random_normal(op.seed, op.stream, op.first + uint64_t(i)));
    });
  });
}

}  // namespace athanor
