// GEMMs and column sums against plain double loops: shapes that no blocking divides, every layout, dtype, stride and
// epilogue; and bit-identical results for any number of threads.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/rng.h"
#include "cpu/cpu_ops.h"
#include "cpu/gemm_blocked.h"
#include "cpu/gemm_small.h"
#include "tests/cpu/tile_unit.h"
#include "tests/larger_error.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

constexpr float kGuard = 12345.0f;  // sits around every operand

// A [rows, cols] tensor of any float dtype inside a larger buffer: stride - cols columns of guard after every row.
struct Matrix {
  Tensor t;
  std::vector<char> bytes;
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t gap, uint64_t stream) {
    const int64_t stride = cols + gap;
    bytes.resize(size_t((rows * stride + 64) * 4));
    t = {bytes.data(), dtype, {rows, cols}, gap ? stride : 0};
    by_float(dtype, [&]<class T>() {
      T* p = reinterpret_cast<T*>(bytes.data());
      for (int64_t i = 0; i < rows * stride + 64; ++i) {
        const bool inside = i < rows * stride && i % stride < cols;
        p[i] = from_float<T>(inside ? random_uniform(7, stream, uint64_t(i)) * 2 - 1 : kGuard);
      }
    });
  }
  double at(int64_t r, int64_t c) const {
    double value = 0;
    by_float(t.dtype, [&]<class T>() { value = to_float(t.as<T>()[r * t.stride() + c]); });
    return value;
  }
  bool guards_intact() const {
    bool ok = true;
    by_float(t.dtype, [&]<class T>() {
      const T guard = from_float<T>(kGuard), *p = t.as<T>();
      for (int64_t i = 0; i < t.rows() * t.stride() + 64; ++i)
        if (i >= t.rows() * t.stride() || i % t.stride() >= t.cols())
          ok = ok && std::memcmp(&p[i], &guard, sizeof(T)) == 0;
    });
    return ok;
  }
};

struct Case {
  int64_t m, n, k;
  bool ta = false, tb = false;
  DType d = DType::f32, a = DType::f32, b = DType::f32;
  bool accumulate = false, bias = false, tf32 = false;
  int64_t gap = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.m << "x" << c.n << "x" << c.k << (c.ta ? " ta" : "") << (c.tb ? " tb" : "") << " " << c.d << "="
             << c.a << "*" << c.b << (c.accumulate ? " accumulate" : "") << (c.bias ? " bias" : "")
             << (c.tf32 ? " tf32" : "") << " gap " << c.gap;
}

struct Operands {
  Matrix d, a, b, bias;
  Gemm op;
  explicit Operands(const Case& c)
      : d(c.d, c.m, c.n, c.gap, 1),
        a(c.a, c.ta ? c.k : c.m, c.ta ? c.m : c.k, c.gap, 2),
        b(c.b, c.tb ? c.n : c.k, c.tb ? c.k : c.n, c.gap * 2, 3),
        bias(c.a, 1, c.n, 0, 4) {
    op = {.d = d.t, .a = a.t, .b = b.t, .bias = {}, .ta = c.ta, .tb = c.tb, .accumulate = c.accumulate, .tf32 = c.tf32};
    if (c.bias) op.bias = {bias.t.data, bias.t.dtype, {c.n}};
    op.check();
  }
};

void run(Ops& ops, const Gemm& op) {
  std::vector<float> scratch(ops.scratch(op) / 4 + 16, std::nanf(""));  // stale scratch must not matter
  ops.run(op, scratch.data());
}

// Tolerance relative to the sum of absolute products: the error of f32 sums of k terms grows like sqrt(k) in practice;
// the dtype of d rounds once.
double tolerance(const Case& c) {
  const double unit = c.d == DType::f32 ? 0 : c.d == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return unit + 3e-7 * std::sqrt(double(c.k) + 4);
}

// op(x) as doubles [rows, cols], rounded to TF32 where the GEMM must.
std::vector<double> values(const Matrix& x, bool transposed, bool tf32) {
  const int64_t rows = transposed ? x.t.cols() : x.t.rows(), cols = transposed ? x.t.rows() : x.t.cols();
  std::vector<double> v(size_t(rows * cols));
  by_float(x.t.dtype, [&]<class T>() {
    const T* p = x.t.as<T>();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const float f = to_float(p[transposed ? c * x.t.stride() + r : r * x.t.stride() + c]);
        v[size_t(r * cols + c)] = tf32 && x.t.dtype == DType::f32 ? round_tf32(f) : f;
      }
  });
  return v;
}

// The sums and the sums of absolute values of every element of d.
struct Expected {
  std::vector<double> sum, size;
};
Expected expected(const Case& c, const Operands& x) {
  const std::vector<double> a = values(x.a, c.ta, c.tf32), b = values(x.b, c.tb, c.tf32);
  const std::vector<double> zero(size_t(c.m * c.n)), bias = values(x.bias, false, false);
  Expected e{zero, zero};
  if (c.accumulate) e.sum = values(x.d, false, false);
  for (size_t i = 0; i < zero.size(); ++i) {
    if (c.bias) e.sum[i] = bias[i % size_t(c.n)];
    e.size[i] = std::abs(e.sum[i]);
  }
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t l = 0; l < c.k; ++l) {
      const double u = a[size_t(i * c.k + l)], *row = b.data() + l * c.n;
      double *sum = e.sum.data() + i * c.n, *size = e.size.data() + i * c.n;
      for (int64_t j = 0; j < c.n; ++j) sum[j] += u * row[j], size[j] += std::abs(u * row[j]);
    }
  return e;
}

void expect_near(const Case& c, const Operands& x, const Expected& e) {
  const std::vector<double> got = values(x.d, false, false);
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = testing::larger_error(worst, std::abs(got[i] - e.sum[i]) / (e.size[i] + 1e-30));
  EXPECT_LE(worst, tolerance(c)) << c;
  EXPECT_TRUE(x.d.guards_intact()) << c;
}

void expect_right(const Case& c, Ops& ops) {
  Operands x(c);
  const Expected e = expected(c, x);
  run(ops, x.op);
  expect_near(c, x, e);
}

const std::vector<std::array<int64_t, 3>> kShapes = {{1, 1, 1},     {1, 1, 513},   {5, 7, 3},     {12, 32, 256},
                                                     {13, 33, 257}, {25, 31, 64},  {64, 65, 100}, {97, 130, 300},
                                                     {3, 200, 511}, {200, 3, 129}, {1, 257, 65},  {8, 64, 1024}};

TEST(Gemm, IsCorrectForEveryShapeAndLayoutInF32) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (auto [m, n, k] : kShapes)
    for (int layout = 0; layout < 4; ++layout)
      for (int64_t gap : {0, 5})
        expect_right({.m = m, .n = n, .k = k, .ta = layout % 2 == 1, .tb = layout / 2 == 1, .gap = gap}, ops);
}

TEST(Gemm, IsCorrectForEveryMixOfDtypesAndLayout) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (DType d : {DType::f32, DType::bf16, DType::f16})
    for (DType a : {DType::f32, DType::bf16, DType::f16})
      for (DType b : {DType::f32, DType::bf16, DType::f16})
        for (int layout = 0; layout < 4; ++layout)
          for (auto [m, n, k] : {std::array<int64_t, 3>{13, 37, 75}, {50, 33, 514}})
            expect_right({.m = m,
                          .n = n,
                          .k = k,
                          .ta = layout % 2 == 1,
                          .tb = layout / 2 == 1,
                          .d = d,
                          .a = a,
                          .b = b,
                          .gap = layout % 2 * 3},
                         ops);
}

TEST(Gemm, IsCorrectWithBiasAccumulationAndTf32) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (auto [m, n, k] : {std::array<int64_t, 3>{29, 300, 301}, {64, 64, 2048}, {1, 70, 90}})
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (bool tf32 : {false, true})
        for (bool tb : {false, true})
          for (int64_t gap : {0, 3}) {
            expect_right(
                {.m = m, .n = n, .k = k, .tb = tb, .d = t, .a = t, .b = t, .bias = true, .tf32 = tf32, .gap = gap},
                ops);
            expect_right({.m = m,
                          .n = n,
                          .k = k,
                          .tb = tb,
                          .d = t,
                          .a = t,
                          .b = t,
                          .accumulate = true,
                          .tf32 = tf32,
                          .gap = gap},
                         ops);
            expect_right({.m = m,
                          .n = n,
                          .k = k,
                          .ta = true,
                          .tb = tb,
                          .d = DType::f32,
                          .a = t,
                          .b = t,
                          .accumulate = true,
                          .gap = gap},
                         ops);
          }
}

TEST(Gemm, IsCorrectForSmallOutputsAndLargeK) {
  ThreadPool pool(3);
  CpuOps ops(pool);
  for (DType t : {DType::f32, DType::bf16})
    for (bool accumulate : {false, true}) {
      expect_right({.m = 64, .n = 256, .k = 4096, .ta = true, .a = t, .b = t, .accumulate = accumulate}, ops);
      expect_right({.m = 65, .n = 96, .k = 8192, .ta = true, .d = t, .a = t, .b = t, .accumulate = accumulate}, ops);
    }
}

TEST(Gemm, EmptySumsGiveTheBiasZeroOrTheOldValue) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (DType t : {DType::f32, DType::bf16}) {
    expect_right({.m = 5, .n = 300, .k = 0, .d = t, .a = t, .b = t}, ops);
    expect_right({.m = 5, .n = 300, .k = 0, .d = t, .a = t, .b = t, .bias = true}, ops);
    expect_right({.m = 5, .n = 300, .k = 0, .d = t, .a = t, .b = t, .accumulate = true}, ops);
    expect_right({.m = 0, .n = 3, .k = 4, .d = t, .a = t, .b = t}, ops);
    expect_right({.m = 3, .n = 0, .k = 4, .d = t, .a = t, .b = t}, ops);
  }
}

TEST(Gemm, NonFiniteValuesStayInTheirRowsAndColumns) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (DType t : {DType::f32, DType::bf16})
    for (int layout = 0; layout < 4; ++layout) {
      Operands x({.m = 30, .n = 45, .k = 33, .ta = layout % 2 == 1, .tb = layout / 2 == 1, .a = t, .b = t, .gap = 1});
      by_float(t, [&]<class T>() { x.a.t.as<T>()[0] = from_float<T>(std::nanf("")); });  // row 0 of op(a), k = 0
      run(ops, x.op);
      for (int64_t i = 0; i < 30; ++i)
        for (int64_t j = 0; j < 45; ++j)
          EXPECT_EQ(std::isnan(x.d.at(i, j)), i == 0) << i << " " << j << " layout " << layout;
    }
}

// Runs the same GEMM with 1 .. 16 threads, twice each, and compares every bit.
void expect_same_bits(const Case& c) {
  Operands x(c);
  const std::vector<char> start = x.d.bytes;
  std::vector<char> first;
  for (int threads : {1, 2, 3, 4, 8, 16}) {
    ThreadPool pool(threads);
    CpuOps ops(pool);
    for (int round = 0; round < 2; ++round) {
      x.d.bytes = start;  // the same memory: the vector keeps its size
      run(ops, x.op);
      if (first.empty()) first = x.d.bytes;
      ASSERT_TRUE(first == x.d.bytes) << c << " with " << threads << " threads differs";
    }
  }
}

TEST(Gemm, IsBitExactForAnyNumberOfThreads) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{64, 256, 4096}, {65, 96, 8192}})
      expect_same_bits({.m = m, .n = n, .k = k, .ta = true, .a = t, .b = t, .accumulate = true});
    for (int layout = 0; layout < 4; ++layout)
      for (auto [m, n, k] : {std::array<int64_t, 3>{257, 129, 515}, {1, 700, 300}})
        expect_same_bits({.m = m,
                          .n = n,
                          .k = k,
                          .ta = layout % 2 == 1,
                          .tb = layout / 2 == 1,
                          .d = t,
                          .a = t,
                          .b = t,
                          .bias = true});
  }
}

// Only one triangle is computed and mirrored, in blocks, vector lanes and outer blocks: the bits match a full GEMM.
TEST(Gemm, SymmetricGemmsMatchFullOnesBitExactly) {
  struct Sides {
    int64_t n, k;
  };
  for (const Kernels* kern : testing::all_kernels()) {
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool ta : {false, true})
        for (auto [n, k] :
             {Sides{1, 3}, Sides{9, 2}, Sides{97, 64}, Sides{130, 515}, Sides{40, 2100}, Sides{2100, 8}}) {
          if (n > 2048 && (kern != &kernels() || t != DType::bf16)) continue;  // more than an outer block: once
          const int64_t rows = ta ? k : n, cols = ta ? n : k;
          const Matrix x(t, rows, cols, 3, 2);
          Matrix full(t, n, n, 5, 1), half(t, n, n, 5, 1);
          Gemm op{.d = full.t, .a = x.t, .b = x.t, .ta = ta, .tb = !ta};
          for (const int threads : {1, 3}) {
            ThreadPool pool(threads);
            for (Matrix* d : {&full, &half}) {
              op.d = d->t;
              op.symmetric = d == &half;
              op.check();
              std::vector<float> scratch(gemm_blocked_scratch(op, *kern, threads) / 4, std::nanf(""));
              gemm_blocked(op, *kern, pool, scratch.data());
            }
            ASSERT_TRUE(full.bytes == half.bytes)
                << kern->name << " " << n << "x" << k << " " << t << (ta ? " ta" : "");
          }
        }
  }
}

// Few rows are multiplied as d^T = b a^T where a kernel multiplies bf16 pairs: rows and columns at the edges of its
// blocks, K at the edges of its steps, and d as a view of even or odd stride.
TEST(Gemm, FewRowsMatchTheSameRowsOfManyBitExactly) {
  constexpr int64_t kMany = 400;
  for (const Kernels* kern : testing::all_kernels())
    for (const int64_t gap : {1, 2})
      for (const auto [few, n, k] :
           {std::array<int64_t, 3>{5, 70, 6}, {33, 100, 130}, {64, 256, 512}, {40, 2100, 66}}) {
        const Matrix a(DType::bf16, kMany, k, 1, 0), b(DType::bf16, n, k, 2, 2);
        Matrix all(DType::bf16, kMany, n, gap, 1), some(DType::bf16, few, n, gap, 1);
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          for (const Matrix* d : {&all, &some}) {
            const Gemm op{.d = d->t, .a = a.t.slice(0, d->t.rows()), .b = b.t, .tb = true};
            std::vector<float> scratch(gemm_grouped_scratch(op, *kern, threads) / 4, std::nanf(""));
            gemm_grouped(op, *kern, pool, std::as_bytes(std::span(scratch)), scratch.data());
          }
          for (int64_t i = 0; i < few; ++i)
            for (int64_t j = 0; j < n; ++j)
              ASSERT_EQ(some.at(i, j), all.at(i, j))
                  << kern->name << " " << few << "x" << n << "x" << k << " at " << i << ", " << j;
          EXPECT_TRUE(some.guards_intact());
        }
      }
}

// Every instruction set that this machine has, not only the one it would choose, and AMX.
TEST(Gemm, IsCorrectOnEveryInstructionSet) {
  ThreadPool pool(2);
  for (const Isa isa : kIsas) {
    const Kernels* kern = kernels_of(isa);
    EXPECT_STREQ(kern ? kern->name : name_of(isa), name_of(isa));
  }
  for (const Kernels* kern : testing::all_kernels()) {
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (int layout = 0; layout < 4; ++layout)
        for (auto [m, n, k] : {std::array<int64_t, 3>{13, 37, 75}, {61, 130, 513}, {7, 9, 2}, {3, 2100, 131}}) {
          const Case c{.m = m, .n = n, .k = k, .ta = layout % 2 == 1, .tb = layout / 2 == 1, .a = t, .b = t};
          Operands x(c);
          const Expected e = expected(c, x);
          std::vector<float> scratch(gemm_blocked_scratch(x.op, *kern, pool.size()) / 4, std::nanf(""));
          gemm_blocked(x.op, *kern, pool, scratch.data());
          expect_near(c, x, e);
          if (!gemm_is_small(x.op)) continue;
          x = Operands(c);
          scratch.assign(gemm_small_scratch(x.op) / 4, std::nanf(""));
          gemm_small(x.op, *kern, pool, scratch.data());
          expect_near(c, x, e);
        }
  }
}

TEST(Gemm, UsesExactlyTheScratchItRequests) {
  ThreadPool pool(3);
  CpuOps ops(pool);
  for (const Case& c :
       {Case{.m = 65, .n = 96, .k = 8192, .ta = true},
        Case{.m = 77, .n = 300, .k = 600, .d = DType::bf16, .a = DType::bf16},
        Case{.m = 40, .n = 50, .k = 60, .tf32 = true}, Case{.m = 3, .n = 2100, .k = 131, .a = DType::bf16},
        Case{.m = 2, .n = 70, .k = 300, .tb = true, .a = DType::f16}}) {
    Operands x(c);
    const size_t floats = ops.scratch(x.op) / 4;
    std::vector<float> scratch(floats + 1024, 77.0f);
    ops.run(x.op, scratch.data());
    for (size_t i = floats; i < scratch.size(); ++i) ASSERT_EQ(scratch[i], 77.0f) << c;
  }
}

TEST(ColumnSum, SumsEveryColumnInEveryDtype) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 300}, {1000, 7}, {513, 257}, {0, 5}}) {
      Matrix x(t, rows, cols, 0, 1), out(DType::f32, 1, cols, 0, 2), before(DType::f32, 1, cols, 0, 2);
      ColumnSum op{.out = {out.t.data, DType::f32, {cols}}, .x = x.t};
      op.check();
      std::vector<float> scratch(ops.scratch(op) / 4 + 1, std::nanf(""));
      ops.run(op, scratch.data());
      for (int64_t c = 0; c < cols; ++c) {
        double sum = before.at(0, c);
        for (int64_t r = 0; r < rows; ++r) sum += x.at(r, c);
        EXPECT_NEAR(out.at(0, c), sum, 1e-4) << t << " " << rows << "x" << cols;
      }
      EXPECT_TRUE(out.guards_intact());
    }
}

TEST(ColumnSum, IsBitExactForAnyNumberOfThreads) {
  Matrix x(DType::f32, 3000, 70, 0, 1);
  std::vector<float> first;
  for (int threads : {1, 2, 3, 16}) {
    ThreadPool pool(threads);
    CpuOps ops(pool);
    std::vector<float> out(70, 0.5f);
    ColumnSum op{.out = {out.data(), DType::f32, {70}}, .x = x.t};
    std::vector<float> scratch(ops.scratch(op) / 4);
    ops.run(op, scratch.data());
    if (first.empty()) first = out;
    EXPECT_EQ(first, out);
  }
}

}  // namespace
}  // namespace athanor
