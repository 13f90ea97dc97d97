// Attention against plain loops in double: windows, sparse patterns, offsets, GQA, packed and empty spans, strides,
// every dtype and odd sizes; rows outside spans; bit-identical results for any number of threads; and RoPE.
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "cpu/attention_block.h"
#include "cpu/cpu_ops.h"
#include "tests/cpu/tile_unit.h"
#include "tests/larger_error.h"

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Rows [rows, cols] of any float dtype in a wider buffer of `stride` columns.
struct Buffer {
  Tensor t;
  std::vector<char> bytes;
  Buffer(DType dtype, int64_t rows, int64_t cols, int64_t stride, uint64_t stream)
      : bytes(size_t(rows * stride * 4 + 64)) {
    t = {bytes.data(), dtype, {rows, cols}, stride == cols ? 0 : stride};
    by_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < rows * stride; ++i) t.as<T>()[i] = from_float<T>(random_normal(3, stream, uint64_t(i)));
    });
  }
  std::vector<double> values() const {  // [rows, cols]
    std::vector<double> v;
    v.reserve(size_t(t.numel()));
    by_float(t.dtype, [&]<class T>() {
      for (int64_t r = 0; r < t.rows(); ++r)
        for (int64_t c = 0; c < t.cols(); ++c) v.push_back(to_float(t.as<T>()[r * t.stride() + c]));
    });
    return v;
  }
  double at(int64_t r, int64_t c) const {
    double value = 0;
    by_float(t.dtype, [&]<class T>() { value = to_float(t.as<T>()[r * t.stride() + c]); });
    return value;
  }
};

struct Case {
  const char* name;
  AttentionShape shape;
  std::vector<Span> spans;
  int64_t q_rows, k_rows;
  DType dtype = DType::f32;
};

// q, k, v are columns of one packed tensor when there are as many queries as keys, as in training. Strides of bf16 are
// even, so that pairs are multiplied.
struct Operands {
  Buffer packed, q, k, v, y, dy, dq, dk, dv, lse;
  std::vector<Span> spans;
  AttentionFwd fwd;
  AttentionBwd bwd;
  explicit Operands(const Case& c)
      : packed(c.dtype, c.q_rows, (c.shape.heads + 2 * c.shape.kv_heads) * c.shape.head_dim,
               (c.shape.heads + 2 * c.shape.kv_heads) * c.shape.head_dim + (c.dtype == DType::bf16 ? 4 : 3), 1),
        q(c.dtype, c.q_rows, c.shape.heads * c.shape.head_dim, c.shape.heads * c.shape.head_dim, 2),
        k(c.dtype, c.k_rows, c.shape.kv_heads * c.shape.head_dim,
          c.shape.kv_heads * c.shape.head_dim + (c.dtype == DType::bf16 ? 2 : 1), 3),
        v(c.dtype, c.k_rows, c.shape.kv_heads * c.shape.head_dim, c.shape.kv_heads * c.shape.head_dim, 4),
        y(c.dtype, c.q_rows, c.shape.heads * c.shape.head_dim, c.shape.heads * c.shape.head_dim, 5),
        dy(c.dtype, c.q_rows, c.shape.heads * c.shape.head_dim, c.shape.heads * c.shape.head_dim, 6),
        dq(c.dtype, c.q_rows, c.shape.heads * c.shape.head_dim, c.shape.heads * c.shape.head_dim + 2, 7),
        dk(c.dtype, c.k_rows, c.shape.kv_heads * c.shape.head_dim, c.shape.kv_heads * c.shape.head_dim, 8),
        dv(c.dtype, c.k_rows, c.shape.kv_heads * c.shape.head_dim, c.shape.kv_heads * c.shape.head_dim + 5, 9),
        lse(DType::f32, c.q_rows, c.shape.heads, c.shape.heads, 10),
        spans(c.spans) {
    const int64_t qc = c.shape.heads * c.shape.head_dim, kc = c.shape.kv_heads * c.shape.head_dim;
    if (c.q_rows == c.k_rows) {
      q.t = packed.t.columns(0, qc);
      k.t = packed.t.columns(qc, qc + kc);
      v.t = packed.t.columns(qc + kc, qc + 2 * kc);
    }
    const Tensor table{spans.data(), DType::i32, {int64_t(spans.size()), kSpanWords}};
    fwd = {.y = y.t, .lse = lse.t, .q = q.t, .k = k.t, .v = v.t, .spans = table, .shape = c.shape};
    bwd = {.dq = dq.t,
           .dk = dk.t,
           .dv = dv.t,
           .dy = dy.t,
           .y = y.t,
           .lse = lse.t,
           .q = q.t,
           .k = k.t,
           .v = v.t,
           .spans = table,
           .shape = c.shape};
    fwd.check();
    bwd.check();
  }
};

template <class Op>
void run(Ops& ops, const Op& op) {
  std::vector<float> scratch(ops.scratch(op) / 4 + 1, std::nanf(""));  // stale scratch must not matter
  const float last = scratch.back() = 42.0f;
  ops.run(op, scratch.data());
  EXPECT_EQ(scratch.back(), last) << "wrote beyond its scratch";
}

template <class Op>
void run(const Kernels& kern, ThreadPool& pool, const Op& op) {
  std::vector<float> scratch(attention_scratch(op, kern, pool.size()) / 4 + 1, std::nanf(""));
  const float last = scratch.back() = 42.0f;
  attention(op, kern, pool, scratch.data());
  EXPECT_EQ(scratch.back(), last) << kern.name << " wrote beyond its scratch";
}

// Everything in double, straight from the definition.
struct Expected {
  std::vector<double> y, lse, dq, dk, dv;
};

// Whether the query at position i sees the key at j. Sparse: the union of both sets of [Child et al. 2019, sec. 4.3].
bool sees(const AttentionShape& s, int64_t i, int64_t j) {
  const auto [l, c] = s.sparse;
  return j <= i && (s.window == 0 || i - j < s.window) && (l == 0 || j / l == i / l || j % l >= l - c);
}

// Adds what one query of one head gives. Pointers are to rows of that head; `row` is the distance between key rows.
struct OneQuery {
  const double *q, *dy, *k, *v;
  double *y, *lse, *dq, *dk, *dv;
  int64_t row;
};
void add_query(const AttentionShape& s, const Span& span, int64_t i, const OneQuery& at) {
  const int64_t D = s.head_dim;
  std::vector<double> p(size_t(span.k_len), -kInf);
  double top = -kInf, sum = 0, delta = 0;
  for (int64_t j = 0; j < span.k_len; ++j) {
    if (!sees(s, span.q_pos + i, span.k_pos + j)) continue;
    double score = 0;
    for (int64_t d = 0; d < D; ++d) score += at.q[d] * at.k[j * at.row + d];
    p[size_t(j)] = score * double(s.scale);
    top = std::max(top, p[size_t(j)]);
  }
  if (top == -kInf) return;
  for (double& x : p) sum += x = std::exp(x - top);
  *at.lse = top + std::log(sum);
  for (int64_t j = 0; j < span.k_len; ++j)
    for (int64_t d = 0; d < D; ++d) at.y[d] += p[size_t(j)] / sum * at.v[j * at.row + d];
  for (int64_t d = 0; d < D; ++d) delta += at.y[d] * at.dy[d];
  for (int64_t j = 0; j < span.k_len; ++j) {
    if (p[size_t(j)] == 0) continue;
    double dp = 0;
    for (int64_t d = 0; d < D; ++d) dp += at.dy[d] * at.v[j * at.row + d];
    const double prob = p[size_t(j)] / sum, ds = prob * (dp - delta) * double(s.scale);
    for (int64_t d = 0; d < D; ++d) {
      at.dv[j * at.row + d] += prob * at.dy[d];
      at.dk[j * at.row + d] += ds * at.q[d];
      at.dq[d] += ds * at.k[j * at.row + d];
    }
  }
}

Expected expected(const Case& c, const Operands& x) {
  const int64_t D = c.shape.head_dim, H = c.shape.heads, K = c.shape.kv_heads;
  const std::vector<double> q = x.q.values(), k = x.k.values(), v = x.v.values(), dy = x.dy.values();
  const std::vector<double> queries(q.size()), keys(k.size());
  Expected e{queries, std::vector<double>(size_t(c.q_rows * H), -kInf), queries, keys, keys};
  for (const Span& span : c.spans)
    for (int64_t i = 0; i < span.q_len; ++i)
      for (int64_t h = 0; h < H; ++h) {
        const int64_t row = span.q_begin + i, at_q = (row * H + h) * D, at_k = (span.k_begin * K + h / (H / K)) * D;
        add_query(c.shape, span, i,
                  {q.data() + at_q, dy.data() + at_q, k.data() + at_k, v.data() + at_k, e.y.data() + at_q,
                   e.lse.data() + row * H + h, e.dq.data() + at_q, e.dk.data() + at_k, e.dv.data() + at_k, K * D});
      }
  return e;
}

// Error of the tensor relative to its size (elements are of order 1): the mean error, and the worst relative to the
// amax.
void expect_close(const Case& c, const char* what, const Buffer& got, const std::vector<double>& want) {
  const std::vector<double> values = got.values();
  double error = 0, size = 0.1 * double(want.size()), worst = 0, largest = 0.5;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(values[i] - want[i]);
    error += e * e, size += want[i] * want[i], worst = std::max(worst, e),
                                               largest = std::max(largest, std::abs(want[i]));
  }
  const double unit = c.dtype == DType::f32 ? 1e-6 : c.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
  EXPECT_LE(std::sqrt(error), unit * std::sqrt(size)) << c.name << " " << what << " " << c.dtype;
  EXPECT_LE(worst, 4 * unit * largest) << c.name << " " << what << " " << c.dtype;
}

// Rows outside all spans are exactly zero, whatever the memory held before.
void expect_zero_outside(const Case& c, const char* what, const Buffer& got, bool keys) {
  std::vector<bool> inside(size_t(got.t.rows()));
  for (const Span& s : c.spans)
    for (int64_t i = 0; s.q_len && i < (keys ? s.k_len : s.q_len); ++i)
      inside[size_t((keys ? s.k_begin : s.q_begin) + i)] = true;
  for (int64_t r = 0; r < got.t.rows(); ++r)
    for (int64_t j = 0; !inside[size_t(r)] && j < got.t.cols(); ++j)
      EXPECT_EQ(got.at(r, j), 0) << c.name << " " << what << " row " << r;
}

std::vector<Case> cases() {
  const auto shape = [](int64_t heads, int64_t kv, int64_t dim, int64_t window) {
    return AttentionShape{heads, kv, dim, window, 1 / std::sqrt(float(dim))};
  };
  const auto sparse = [&](int64_t heads, int64_t kv, int64_t dim, SparsePattern pattern) {
    AttentionShape s = shape(heads, kv, dim, 0);
    s.sparse = pattern;
    return s;
  };
  return {
      {"one token", shape(1, 1, 16, 0), {{0, 1, 0, 1, 0, 0}}, 1, 1},
      {"two sequences", shape(2, 2, 32, 0), {{0, 70, 0, 70, 0, 0}, {70, 70, 70, 70, 0, 0}}, 140, 140},
      {"one long sequence, few heads", shape(2, 1, 64, 0), {{0, 300, 0, 300, 0, 0}}, 300, 300},
      {"grouped heads, odd size", shape(6, 2, 17, 0), {{0, 33, 0, 33, 0, 0}, {33, 64, 33, 64, 0, 0}}, 97, 97},
      {"window", shape(4, 4, 24, 20), {{0, 200, 0, 200, 0, 0}, {200, 90, 200, 90, 0, 0}}, 290, 290},
      {"window of one key", shape(1, 1, 16, 1), {{0, 70, 0, 70, 0, 0}}, 70, 70},
      {"window, few heads", shape(1, 1, 48, 130), {{0, 500, 0, 500, 0, 0}}, 500, 500},
      {"rows outside every span",
       shape(8, 8, 20, 0),
       {{3, 10, 3, 10, 0, 0}, {0, 0, 0, 0, 0, 0}, {20, 5, 20, 5, 0, 0}},
       30,
       30},
      {"spans out of order", shape(3, 3, 16, 0), {{50, 40, 50, 40, 0, 0}, {0, 50, 0, 50, 0, 0}}, 90, 90},
      {"keys from a cache", shape(4, 2, 32, 0), {{0, 3, 10, 140, 137, 0}, {3, 1, 150, 20, 19, 0}}, 4, 171},
      {"keys from a cache with window",
       shape(4, 2, 32, 64),
       {{0, 3, 0, 140, 137, 0}, {3, 70, 140, 100, 30, 0}},
       73,
       240},
      {"sparse", sparse(4, 2, 24, {48, 16}), {{0, 201, 0, 201, 0, 0}, {201, 89, 201, 89, 0, 0}}, 290, 290},
      {"sparse, few heads", sparse(1, 1, 48, {200, 7}), {{0, 700, 0, 700, 0, 0}}, 700, 700},
      {"sparse, groups within blocks", sparse(2, 1, 16, {5, 1}), {{0, 150, 0, 150, 0, 0}}, 150, 150},
      {"sparse, groups alone", sparse(3, 3, 16, {70, 0}), {{0, 300, 0, 300, 0, 0}}, 300, 300},
      {"sparse, one group", sparse(2, 2, 16, {1000, 3}), {{0, 150, 0, 150, 0, 0}}, 150, 150},
      {"keys from a cache, sparse",
       sparse(4, 2, 32, {48, 8}),
       {{0, 3, 0, 140, 137, 0}, {3, 70, 140, 100, 30, 0}},
       73,
       240},
      {"sparse, positions from the middle on", sparse(2, 2, 16, {30, 11}), {{0, 40, 0, 90, 1000, 950}}, 40, 90},
      {"queries before every key", shape(2, 2, 16, 0), {{0, 40, 0, 20, 0, 25}}, 40, 20},
      {"queries after the window of every key", shape(9, 9, 16, 5), {{0, 40, 0, 20, 7, 0}}, 40, 20},
      {"no keys at all", shape(9, 9, 16, 0), {{0, 4, 0, 0, 0, 0}, {4, 4, 0, 4, 0, 0}}, 8, 5},
      {"wide heads", shape(2, 2, 256, 0), {{0, 100, 0, 100, 0, 0}}, 100, 100},
      {"very wide, odd heads", shape(1, 1, 259, 0), {{0, 130, 0, 130, 0, 0}}, 130, 130},
  };
}

// Every instruction set in bf16, whose kernels differ in more than their width; the other dtypes in the best.
TEST(Attention, ForwardAndBackwardMatchTheDefinition) {
  ThreadPool pool(2);
  for (Case c : cases())
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      c.dtype = dtype;
      const Operands inputs(c);
      const Expected e = expected(c, inputs);
      for (const Kernels* kern : testing::all_kernels()) {
        if (dtype != DType::bf16 && kern != &kernels()) continue;
        SCOPED_TRACE(kern->name);
        Operands x(c);
        run(*kern, pool, x.fwd);
        expect_close(c, "y", x.y, e.y);
        for (int64_t i = 0; i < x.lse.t.numel(); ++i) {
          const double got = x.lse.t.as<float>()[i], want = e.lse[size_t(i)];
          if (std::isinf(want)) {
            EXPECT_EQ(got, want) << c.name;
          } else {
            EXPECT_NEAR(got, want, 1e-5 * (1 + std::abs(want))) << c.name;
          }
        }
        run(*kern, pool, x.bwd);
        expect_close(c, "dq", x.dq, e.dq);
        expect_close(c, "dk", x.dk, e.dk);
        expect_close(c, "dv", x.dv, e.dv);
        expect_zero_outside(c, "y", x.y, false);
        expect_zero_outside(c, "dq", x.dq, false);
        expect_zero_outside(c, "dk", x.dk, true);
        expect_zero_outside(c, "dv", x.dv, true);
      }
    }
}

TEST(Attention, IsBitExactForAnyNumberOfThreadsAndRepeats) {
  for (Case c : cases()) {
    if (c.k_rows % 2 == 0) c.dtype = DType::bf16;
    std::vector<std::vector<char>> first;
    for (int threads : {1, 2, 3, 4, 8, 16}) {
      ThreadPool pool(threads);
      CpuOps ops(pool);
      for (int round = 0; round < 2; ++round) {
        Operands x(c);
        run(ops, x.fwd);
        run(ops, x.bwd);
        const std::vector<std::vector<char>> bits = {x.y.bytes, x.lse.bytes, x.dq.bytes, x.dk.bytes, x.dv.bytes};
        if (first.empty()) first = bits;
        ASSERT_TRUE(bits == first) << c.name << " with " << threads << " threads differs";
      }
    }
  }
}

// Columns between the heads' columns of a strided gradient belong to others.
TEST(Attention, WritesOnlyItsColumnsOfStridedGradients) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  const Case c = cases()[3];
  Operands x(c), before(c);
  run(ops, x.fwd);
  run(ops, x.bwd);
  for (const auto& [now, old] : {std::pair<const Buffer&, const Buffer&>{x.dq, before.dq}, {x.dv, before.dv}})
    for (int64_t r = 0; r < now.t.rows(); ++r)
      for (int64_t j = now.t.cols(); j < now.t.stride(); ++j)
        EXPECT_EQ(now.t.as<float>()[r * now.t.stride() + j], old.t.as<float>()[r * now.t.stride() + j]);
}

TEST(Attention, PropagatesNan) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  const Case c = cases()[1];
  Operands x(c);
  x.k.t.as<float>()[5 * x.k.t.stride()] = std::nanf("");  // key 5 of the first sequence, head 0
  run(ops, x.fwd);
  for (int64_t i = 0; i < 70; ++i) EXPECT_EQ(std::isnan(x.y.at(i, 0)), i >= 5) << i;
  EXPECT_FALSE(std::isnan(x.y.at(80, 0)));
  EXPECT_FALSE(std::isnan(x.y.at(30, 40)));  // head 1
}

TEST(Attention, LargeScoresDoNotOverflow) {
  ThreadPool pool(2);
  CpuOps ops(pool);
  Case c = cases()[2];
  c.shape.scale = 1000;
  Operands x(c);
  const Expected e = expected(c, x);
  run(ops, x.fwd);
  for (int64_t i = 0; i < x.y.t.rows(); ++i) ASSERT_TRUE(std::isfinite(x.y.at(i, 0)));
  double error = 0;
  for (int64_t i = 0; i < x.y.t.rows(); ++i)
    for (int64_t j = 0; j < x.y.t.cols(); ++j)
      error = testing::larger_error(error, std::abs(x.y.at(i, j) - e.y[size_t(i * x.y.t.cols() + j)]));
  EXPECT_LT(error, 0.1);  // scores near 10^4 in f32 are right to about 10^-2
}

void expect_refused(const Case& c, bool backward, const std::string& part) {
  ThreadPool pool(1);
  CpuOps ops(pool);
  Operands x(c);
  try {
    if (backward)
      run(ops, x.bwd);
    else
      run(ops, x.fwd);
    FAIL() << "accepted " << c.name;
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Attention, RefusesSpansThatPointOutsideOrOverlap) {
  Case c = cases()[0];
  c.q_rows = c.k_rows = 10;
  for (Span bad : {Span{0, 11, 0, 10, 0, 0}, Span{-1, 5, 0, 5, 0, 0}, Span{0, 5, 6, 5, 0, 0}, Span{0, 5, -1, 5, 0, 0},
                   Span{0, 5, 0, -1, 0, 0}, Span{2147483647, 1, 0, 1, 0, 0}, Span{0, -3, 0, 1, 0, 0}}) {
    c.spans = {bad};
    expect_refused(c, false, "attention_fwd: span 0 has queries");
  }
  c.spans = {{0, 5, 0, 5, 0, 0}, {4, 2, 5, 2, 0, 0}};
  expect_refused(c, false, "share query row 4");
  c.spans = {{0, 5, 0, 5, 0, 0}, {5, 2, 4, 2, 0, 0}};
  expect_refused(c, true, "share key row 4");
}

TEST(Rope, ForwardAndBackwardRotateByTheTable) {
  ThreadPool pool(3);
  CpuOps ops(pool);
  constexpr int64_t kRows = 70, kHeads = 3, kDim = 10, kPositions = 40;
  std::vector<float> table(kPositions * kDim);
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t i = 0; i < kDim / 2; ++i) {
      const double angle = double(p) * std::pow(10000.0, -2.0 * double(i) / kDim);
      table[size_t(p * kDim + i)] = float(std::cos(angle));
      table[size_t(p * kDim + kDim / 2 + i)] = float(std::sin(angle));
    }
  std::vector<int32_t> positions(kRows);
  for (int64_t n = 0; n < kRows; ++n) positions[size_t(n)] = int32_t(n * 7 % kPositions);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Buffer x(dtype, kRows, kHeads * kDim, kHeads * kDim + 4, 1), before = x;
    before.t.data = before.bytes.data();
    Rope op{.x = x.t,
            .cos_sin = {table.data(), DType::f32, {kPositions, kDim}},
            .positions = {positions.data(), DType::i32, {kRows}},
            .heads = kHeads,
            .head_dim = kDim};
    op.check();
    const double unit = dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
    run(ops, op);
    for (int64_t n = 0; n < kRows; ++n)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kDim / 2; ++i) {
          const double angle = double(positions[size_t(n)]) * std::pow(10000.0, -2.0 * double(i) / kDim);
          const double a = before.at(n, h * kDim + i), b = before.at(n, h * kDim + kDim / 2 + i);
          EXPECT_NEAR(x.at(n, h * kDim + i), a * std::cos(angle) - b * std::sin(angle), 4 * unit);
          EXPECT_NEAR(x.at(n, h * kDim + kDim / 2 + i), b * std::cos(angle) + a * std::sin(angle), 4 * unit);
        }
    op.inverse = true;
    run(ops, op);
    for (int64_t n = 0; n < kRows; ++n)
      for (int64_t j = 0; j < kHeads * kDim + 4; ++j) EXPECT_NEAR(x.at(n, j), before.at(n, j), 8 * unit);
  }
  positions[5] = kPositions;
  Buffer x(DType::f32, kRows, kHeads * kDim, kHeads * kDim, 1);
  Rope bad{.x = x.t,
           .cos_sin = {table.data(), DType::f32, {kPositions, kDim}},
           .positions = {positions.data(), DType::i32, {kRows}},
           .heads = kHeads,
           .head_dim = kDim};
  EXPECT_THROW(run(ops, bad), std::exception);
}

}  // namespace
}  // namespace athanor
