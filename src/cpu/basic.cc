// Fill, cast, add, dropout and sums in fixed blocks.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

struct Convert {
  template <int L, class To, class From>
  static ATHANOR_INLINE void run(To* y, const From* x, int64_t n) {
    using Narrow = std::conditional_t<sizeof(To) == 2, To, From>;
    simd::for_columns<L, Narrow>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(x)); });
  }
};

struct Sum {
  template <int L, class T, class U>
  static ATHANOR_INLINE void run(T* y, const T* a, const U* b, int64_t n) {
    using Narrow = std::conditional_t<sizeof(T) == 2, T, U>;
    simd::for_columns<L, Narrow>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(a) + at.load(b)); });
  }
};

// *out = sum of x or of x^2, in double: squares of small gradients would underflow in f32, those of large ones
// overflow.
template <bool kSquare>
struct BlockSum {
  template <int L, class T>
  static ATHANOR_INLINE void run(double* out, const T* x, int64_t n) {
    constexpr int kLanes = L / 2, kParts = int(simd::kWidth) / kLanes;
    using Double = typename simd::Hardware<kLanes, double>::type;
    Double sum[kParts] = {};
    const auto add = [&](const T* from) ATHANOR_INLINE_LAMBDA {
      float p[simd::kWidth];
      for (int64_t k = 0; k < simd::kWidth; ++k) p[k] = to_float(from[k]);
#pragma GCC unroll 16
      for (int i = 0; i < kParts; ++i) {
        const auto v = __builtin_convertvector(simd::read<simd::Float<kLanes>>(p + i * kLanes), Double);
        sum[i] += kSquare ? v * v : v;
      }
    };
    int64_t i = 0;
    for (; i + simd::kWidth <= n; i += simd::kWidth) add(x + i);
    T rest[simd::kWidth] = {};
    std::copy(x + i, x + n, rest);
    add(rest);
    double lanes[simd::kWidth];
    std::memcpy(lanes, sum, sizeof lanes);
    for (int64_t half = simd::kWidth / 2; half > 0; half /= 2)
      for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    *out = lanes[0];
  }
};

size_t block_sum_bytes(const Tensor& x) { return size_t(div_ceil(x.numel(), kChunkElements)) * sizeof(double); }

// out += sums of all blocks of x, in order.
template <class Kernel>
void add_block_sums(ThreadPool& pool, const Tensor& out, const Tensor& x, void* scratch) {
  double* sums = static_cast<double*>(scratch);
  by_float(x.dtype, [&]<class T>() {
    const T* data = flat<T>(x);
    pool.parallel_ranges(x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<Kernel>(sums + begin / kChunkElements, data + begin, end - begin);
    });
  });
  double total = 0;
  for (int64_t k = 0; k < div_ceil(x.numel(), kChunkElements); ++k) total += sums[k];
  *out.as<double>() += total;
}

template <class T>
T value_as(float value) {
  if constexpr (std::is_class_v<T>)  // 16-bit and 8-bit floats
    return from_float<T>(value);
  else
    return static_cast<T>(value);
}

template <class T>
void fill_all(ThreadPool& pool, const Tensor& x, float value) {
  T* data = flat<T>(x);
  const bool zero = std::bit_cast<uint32_t>(value) == 0;  // memset is faster: it need not read the cache lines
  pool.parallel_ranges(x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    if (zero)
      std::memset(static_cast<void*>(data + begin), 0, size_t(end - begin) * sizeof(T));
    else
      std::fill(data + begin, data + end, value_as<T>(value));
  });
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
    case DType::f8_e4m3:
      return fill_all<f8_e4m3>(pool_, op.x, op.value);
    case DType::f8_e5m2:
      return fill_all<f8_e5m2>(pool_, op.x, op.value);
    default:
      by_float(op.x.dtype, [&]<class T>() { fill_all<T>(pool_, op.x, op.value); });
  }
}

void CpuOps::run(const Cast& op, void*) {
  by_float(op.y.dtype, [&]<class To>() {
    by_float(op.x.dtype, [&]<class From>() {
      To* y = flat<To>(op.y);
      const From* x = flat<From>(op.x);
      pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        simd::dispatch<Convert>(y + begin, x + begin, end - begin);
      });
    });
  });
}

void CpuOps::run(const MaskedFill& op, void*) {
  const auto fill = [&]<class T>(T* x) {
    const uint8_t* mask = flat<uint8_t>(op.mask);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] = mask[i] != 0 ? T{0} : x[i];
    });
  };
  if (size_of(op.x.dtype) == 4)
    fill(static_cast<uint32_t*>(op.x.data));
  else
    fill(static_cast<uint16_t*>(op.x.data));
}

void CpuOps::run(const Add& op, void*) {
  by_float(op.y.dtype, [&]<class T>() {
    by_float(op.b.dtype, [&]<class U>() {
      T* y = flat<T>(op.y);
      const T* a = flat<T>(op.a);
      const U* b = flat<U>(op.b);
      pool_.parallel_ranges(op.y.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        simd::dispatch<Sum>(y + begin, a + begin, b + begin, end - begin);
      });
    });
  });
}

size_t CpuOps::scratch(const ReduceSum& op) const { return op.x.dtype == DType::f64 ? 0 : block_sum_bytes(op.x); }
void CpuOps::run(const ReduceSum& op, void* scratch) {
  if (op.x.dtype == DType::f32) return add_block_sums<BlockSum<false>>(pool_, op.out, op.x, scratch);
  const double* x = op.x.as<double>();  // few elements, since they are partial sums
  *op.out.as<double>() += std::accumulate(x, x + op.x.numel(), 0.0);
}

size_t CpuOps::scratch(const SquaredNorm& op) const {
  size_t most = 0;
  for (const Tensor& x : op.x) most = std::max(most, block_sum_bytes(x));
  return most;
}
void CpuOps::run(const SquaredNorm& op, void* scratch) {
  for (size_t i = 0; i < op.x.size(); ++i) add_block_sums<BlockSum<true>>(pool_, op.sum_of(i), op.x[i], scratch);
}

void CpuOps::run(const DropPath& op, void*) {
  const uint64_t stream = DropPath::stream_at(op.stream, *static_cast<const StepState*>(op.state.data));
  const int64_t first = *op.first.as<int64_t>(), columns = op.y.cols();
  by_float(op.y.dtype, [&]<class T>() {
    T* y = op.y.as<T>();
    const T *x = op.x.as<T>(), *residual = op.residual ? op.residual.as<T>() : nullptr;
    pool_.parallel_ranges(op.y.rows(), row_grain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float factor = op.factor(stream, first, i, 0, columns);
        for (int64_t c = 0; c < columns; ++c) {
          if (op.elements) factor = op.factor(stream, first, i, c, columns);
          const int64_t at = i * columns + c;
          const float before = residual ? to_float(residual[at]) : 0.0f;
          y[at] = factor == 0 ? from_float<T>(before) : from_float<T>(before + factor * to_float(x[at]));
        }
      }
    });
  });
}

}  // namespace athanor
