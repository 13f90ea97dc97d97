// The ops of ops/muon.h: one pass over memory each, except those that need a norm first.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct MomentumScalars {
  float grad_scale, beta, one_minus_beta, from_gradient, from_average;  // the gradient becomes a combination of g and m
};

struct MovingAverage {
  template <int L>
  static ATHANOR_INLINE void run(float* m, float* grad, int64_t n, const MomentumScalars& a) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> g = at.load(grad) * a.grad_scale;
      const Vec<L> next = a.beta * at.load(m) + a.one_minus_beta * g;
      at.store(grad, a.from_gradient * g + a.from_average * next);
      at.store(m, next);
    });
  }
};

// y = alpha a + beta b for one row; kTwo: b is present.
template <bool kTwo>
struct WeightedSum {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* a, const T* b, int64_t n, float alpha, float beta) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      Vec<L> x = alpha * at.load(a);
      if constexpr (kTwo) x = x + beta * at.load(b);
      at.store(y, x);
    });
  }
};

struct Scale {
  template <int L, class To, class From>
  static ATHANOR_INLINE void run(To* y, const From* x, int64_t n, float by) {
    using Narrow = std::conditional_t<sizeof(To) == 2, To, From>;
    simd::for_columns<L, Narrow>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(x) * by); });
  }
};

// Sum of squares of a row in double; partial sums are added in a fixed order.
template <class T>
ATHANOR_CLONES double squares(const T* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) {
      const double v = double(to_float(x[i + k]));
      lanes[k] += v * v;
    }
  for (; i < n; ++i) lanes[i % kLanes] += double(to_float(x[i])) * double(to_float(x[i]));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// sums[c] += squares of columns [begin, end) of a contiguous matrix, row after row.
template <class T>
ATHANOR_CLONES void column_squares(double* sums, const T* x, int64_t rows, int64_t cols, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) {
      const double v = double(to_float(x[r * cols + c]));
      sums[c] += v * v;
    }
}

struct ScaleColumns {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* x, const float* by, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(x, at.load(x) * at.load(by)); });
  }
};

// factor[o] = the factor for all weights of output o; updates v.
void neuron_factors(float* factor, const double* squares, const NormalizeNeurons& op) {
  const auto n = size_t(op.outputs());
  float* v = flat<float>(op.v);
  double before = 0, after = 0;
  for (size_t o = 0; o < n; ++o) {
    v[o] = float(op.beta * double(v[o]) + (1 - op.beta) * squares[o] / double(op.inputs()));
    const double divisor = std::sqrt(double(v[o])) + op.eps;
    before += squares[o];
    after += squares[o] / (divisor * divisor);
  }
  const double all = op.scale * std::sqrt(before) / (std::sqrt(after) + op.eps);
  for (size_t o = 0; o < n; ++o) factor[o] = float(all / (std::sqrt(double(v[o])) + op.eps));
}

// Scratch memory for one matrix at a time.
size_t scratch_of_one(const Orthogonalize& op, const CpuOps& ops) {
  return round_up<size_t>(scratch_of_parts(op, ops), 64);
}

// Calls fn(first, count) for chunks of rows that depend only on the shape.
template <class Fn>
void by_rows(ThreadPool& pool, const Tensor& t, const Fn& fn) {
  pool.parallel_ranges(t.rows(), row_grain(t.cols()), fn);
}

}  // namespace

void CpuOps::run(const Momentum& op, void*) {
  const StepState& state = update::state_of(op.state);
  const double beta = momentum_now(op.beta, state);
  const MomentumScalars scalars{.grad_scale = state.grad_scale,
                                .beta = float(beta),
                                .one_minus_beta = float(1 - beta),
                                .from_gradient = op.nesterov ? float(1 - beta) : 0.f,
                                .from_average = op.nesterov ? float(beta) : 1.f};
  for (const Momentum::Part& p : op.parts) {
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    pool_.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t from, int64_t to) {
      if (state.skip) {
        std::memset(p.grad.at(from), 0, size_t(to - from) * size_of(p.grad.dtype));
        return;
      }
      for (int64_t begin = from; begin < to; begin += update::kPiece) {
        const int64_t n = std::min(update::kPiece, to - begin);
        update::Workspace workspace, g_workspace;
        float *m = update::open_state(p.m, begin, n, workspace),
              *grad = update::open_gradient(p.grad, begin, n, g_workspace);
        simd::dispatch<MovingAverage>(m, grad, n, scalars);
        update::replace_gradient(p.grad, begin, n, grad);
        update::close_state(p.m, begin, n, m, {op.seed, p.moment_stream, first + uint64_t(begin)}, update::Bits::upper);
      }
    });
  }
}

size_t CpuOps::scratch(const NormalizeMatrix& op) const { return size_t(op.x.rows()) * sizeof(double); }

void CpuOps::run(const NormalizeMatrix& op, void* scratch) {
  double* sums = static_cast<double*>(scratch);  // [R]
  const int64_t cols = op.x.cols(), stride = op.x.stride();
  by_float(op.x.dtype, [&]<class From>() {
    const From* x = op.x.as<From>();
    by_rows(pool_, op.x, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) sums[r] = squares(x + r * stride, cols);
    });
    double sum = 0;
    for (int64_t r = 0; r < op.x.rows(); ++r) sum += sums[r];
    const auto by = float(1 / (op.margin * std::sqrt(sum) + op.eps));
    by_float(op.y.dtype, [&]<class To>() {
      To* y = op.y.as<To>();
      by_rows(pool_, op.x, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) simd::dispatch<Scale>(y + r * cols, x + r * stride, cols, by);
      });
    });
  });
}

size_t CpuOps::scratch(const Orthogonalize& op) const {
  const size_t together = scratch_of_one(op, *this), each = scratch_of_one(op, single());
  return fit_side_by_side(each, pool_.size()) ? std::max(together, size_t(pool_.size()) * each) : together;
}

// Matrices run concurrently, each on one thread, if that keeps all threads busy: threads that share a small matrix wait
// for each other's caches. Otherwise they run one after the other, each on all threads. Both give the same bits.
void CpuOps::run(const Orthogonalize& op, void* scratch) {
  CpuOps one_thread = single();
  const size_t each = scratch_of_one(op, one_thread);
  double largest = 0, all = 0;
  for (const Orthogonalize::Matrix& m : op.matrices) {
    const double work = Orthogonalize::flops(m, 1);
    largest = std::max(largest, work), all += work;
  }
  if (side_by_side(largest, all, each, pool_.size()))
    return pool_.parallel_for(int64_t(op.matrices.size()), [&](int64_t i, int worker) {
      run_parts(op, op.matrices[size_t(i)], static_cast<char*>(scratch) + size_t(worker) * each, one_thread);
    });
  for (const Orthogonalize::Matrix& m : op.matrices) run_parts(op, m, scratch, *this);
}

size_t CpuOps::scratch(const NormalizeNeurons& op) const {
  return size_t(op.outputs()) * (sizeof(double) + sizeof(float));
}

void CpuOps::run(const NormalizeNeurons& op, void* scratch) {
  double* squares_of = static_cast<double*>(scratch);                   // [outputs]
  float* factor = reinterpret_cast<float*>(squares_of + op.outputs());  // [outputs]
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  by_float(op.x.dtype, [&]<class T>() {
    T* x = flat<T>(op.x);
    if (update::state_of(op.state).skip) {
      by_rows(pool_, op.x, [&](int64_t begin, int64_t end) {
        std::memset(x + begin * cols, 0, size_t((end - begin) * cols) * sizeof(T));
      });
      return;
    }
    if (op.columns) {
      std::fill_n(squares_of, cols, 0.0);
      pool_.parallel_ranges(cols, row_grain(rows),
                            [&](int64_t begin, int64_t end) { column_squares(squares_of, x, rows, cols, begin, end); });
    } else {
      by_rows(pool_, op.x, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) squares_of[r] = squares(x + r * cols, cols);
      });
    }
    neuron_factors(factor, squares_of, op);
    by_rows(pool_, op.x, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        if (op.columns)
          simd::dispatch<ScaleColumns>(x + r * cols, factor, cols);
        else
          simd::dispatch<Scale>(x + r * cols, x + r * cols, cols, factor[r]);
    });
  });
}

void CpuOps::run(const Combine& op, void*) {
  by_float(op.y.dtype, [&]<class T>() {
    T* y = op.y.as<T>();
    const T *a = op.a.as<T>(), *b = op.b ? op.b.as<T>() : nullptr;
    const int64_t cols = op.y.cols();
    by_rows(pool_, op.y, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        if (b)
          simd::dispatch<WeightedSum<true>>(y + r * op.y.stride(), a + r * op.a.stride(), b + r * op.b.stride(), cols,
                                            op.alpha, op.beta);
        else
          simd::dispatch<WeightedSum<false>>(y + r * op.y.stride(), a + r * op.a.stride(), b, cols, op.alpha, op.beta);
    });
  });
}

}  // namespace athanor
