// Norms against plain sums in double; recomputation and thread counts do not change the bits.
#include "cpu/chunks.h"
#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

struct Norm {
  NormKind kind;
  int64_t n, c;
  HostTensor h, y, mean, rstd, w, b;

  Norm(NormKind k, DType type, DType w_type, int64_t rows, int64_t cols)
      : kind(k),
        n(rows),
        c(cols),
        h(HostTensor::normal(type, {n, c}, 1, 0.5)),
        y(type, {n, c}),
        mean(DType::f32, {n}),
        rstd(DType::f32, {n}),
        w(HostTensor::normal(w_type, {c}, 3, 1)),
        b(HostTensor::normal(w_type, {c}, 4)) {}
  bool layer() const { return kind == NormKind::layer; }
  Tensor if_layer(const HostTensor& x) const { return layer() ? x.t : Tensor{}; }
  NormFwd fwd() const { return {kind, y.t, if_layer(mean), rstd.t, h.t, w.t, if_layer(b), 1e-5f}; }
  NormApply apply(Tensor out) const { return {kind, out, h.t, if_layer(mean), rstd.t, w.t, if_layer(b)}; }
};

void expect_statistics_and_y(const Norm& x) {
  const double tol = tolerance(x.y.t.dtype);
  for (int64_t i = 0; i < x.n; ++i) {
    double mean = 0, squares = 0;
    if (x.layer())
      for (int64_t c = 0; c < x.c; ++c) mean += x.h[i * x.c + c] / double(x.c);
    for (int64_t c = 0; c < x.c; ++c) squares += std::pow(x.h[i * x.c + c] - mean, 2);
    const double rstd = 1 / std::sqrt(squares / double(x.c) + 1e-5);
    expect_near(x.rstd[i], rstd, 4e-6, "rstd", i);
    if (x.layer()) expect_near(x.mean[i], mean, 4e-6, "mean", i);
    for (int64_t c = 0; c < x.c; ++c) {
      const int64_t at = i * x.c + c;
      expect_near(x.y[at], (x.h[at] - mean) * rstd * x.w[c] + (x.layer() ? x.b[c] : 0), tol, "y", at);
    }
  }
}

TEST(Norm, ForwardAndRecomputationMatchTheDefinition) {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats)
      for (DType w_type : kFloats)
        for (int64_t cols : {1, 7, 64, 257}) {
          Norm x(kind, type, w_type, 5, cols);
          run_op(x.fwd());
          expect_statistics_and_y(x);
          HostTensor again(type, {x.n, x.c});
          run_op(x.apply(again.t));
          EXPECT_EQ(again.bytes(), x.y.bytes()) << "recomputed y differs";
        }
}

TEST(Norm, ConstantRowsHaveZeroVariance) {
  Norm x(NormKind::layer, DType::f32, DType::f32, 1, 50);
  for (int64_t i = 0; i < 50; ++i) x.h.set(i, 2);
  run_op(x.fwd());
  EXPECT_EQ(x.mean[0], 2);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(x.y[i], x.b[i]);
}

struct NormGrad {
  HostTensor dh, dw, db, dy;
  NormGrad(const Norm& x, DType type)
      : dh(HostTensor::normal(type, {x.n, x.c}, 5)),
        dw(HostTensor::normal(DType::f32, {x.c}, 6)),
        db(HostTensor::normal(DType::f32, {x.c}, 7)),
        dy(HostTensor::normal(type, {x.n, x.c}, 8)) {}
  NormBwd op(const Norm& x) const {
    return {x.kind, dh.t, dw.t, x.if_layer(db), dy.t, x.h.t, x.if_layer(x.mean), x.rstd.t, x.w.t};
  }
};

void expect_gradient(const Norm& x, const NormGrad& before, const NormGrad& after) {
  std::vector<double> dw(size_t(x.c), 0), db(size_t(x.c), 0);
  for (int64_t i = 0; i < x.n; ++i) {
    const double mean = x.layer() ? x.mean[i] : 0, rstd = x.rstd[i];
    double mean_g = 0, mean_gx = 0;
    for (int64_t c = 0; c < x.c; ++c) {
      const double dy = before.dy[i * x.c + c], n = (x.h[i * x.c + c] - mean) * rstd;
      mean_g += x.layer() ? dy * x.w[c] / double(x.c) : 0;
      mean_gx += dy * x.w[c] * n / double(x.c);
      dw[size_t(c)] += dy * n;
      db[size_t(c)] += dy;
    }
    for (int64_t c = 0; c < x.c; ++c) {
      const int64_t at = i * x.c + c;
      const double g = before.dy[at] * x.w[c], n = (x.h[at] - mean) * rstd;
      expect_near(after.dh[at], before.dh[at] + rstd * (g - mean_g - n * mean_gx), 2 * tolerance(x.h.t.dtype), "dh",
                  at);
    }
  }
  for (int64_t c = 0; c < x.c; ++c) {
    expect_near(after.dw[c], before.dw[c] + dw[size_t(c)], 2e-5, "dw", c);
    if (x.layer()) expect_near(after.db[c], before.db[c] + db[size_t(c)], 2e-5, "db", c);
  }
}

TEST(Norm, BackwardAccumulates) {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats)
      for (DType w_type : {type, DType::f32})
        for (int64_t rows : {1, 40, 131})
          for (int64_t cols : {1, 37, 130}) {
            Norm x(kind, type, w_type, rows, cols);
            run_op(x.fwd());
            const NormGrad before(x, type);
            const NormGrad after = before;
            run_op(after.op(x));
            expect_gradient(x, before, after);
          }
}

TEST(Norm, BitsDoNotDependOnThreads) {
  for (NormKind kind : {NormKind::rms, NormKind::layer}) {
    Norm x(kind, DType::f32, DType::f32, 203, 530);
    ASSERT_GT(x.n * x.c, 3 * kChunkElements);
    expect_same_bits([&](int threads) {
      run_op(x.fwd(), threads);
      const NormGrad g(x, DType::f32);
      run_op(g.op(x), threads);
      return std::vector<HostTensor>{x.y, x.rstd, g.dh, g.dw, g.db};
    });
  }
}

struct QkNorm {
  static constexpr int64_t kHeads = 4, kKvHeads = 2;
  int64_t n, d, cols;
  HostTensor y, rstd, x, wq, wk, dx, dwq, dwk, dy;
  QkNorm(DType type, int64_t rows, int64_t head_dim)
      : n(rows),
        d(head_dim),
        cols((kHeads + 2 * kKvHeads) * d),
        y(type, {n, cols}),
        rstd(DType::f32, {n, kHeads + kKvHeads}),
        x(HostTensor::normal(type, {n, cols}, 1)),
        wq(HostTensor::normal(type, {d}, 2, 1)),
        wk(HostTensor::normal(type, {d}, 3, 1)),
        dx(type, {n, cols}),
        dwq(HostTensor::normal(DType::f32, {d}, 4)),
        dwk(HostTensor::normal(DType::f32, {d}, 5)),
        dy(HostTensor::normal(type, {n, cols}, 6)) {}
  QkNormFwd fwd() const { return {y.t, rstd.t, x.t, wq.t, wk.t, kHeads, kKvHeads, 1e-6f}; }
  QkNormBwd bwd() const { return {dx.t, dwq.t, dwk.t, dy.t, x.t, rstd.t, wq.t, wk.t, kHeads, kKvHeads}; }
};

// A head of q or k is a row of an RMSNorm of width D; the heads of v pass through.
TEST(QkNorm, MatchesRmsNormPerHead) {
  for (DType type : kFloats)
    for (int64_t d : {1, 10, 64}) {
      QkNorm q(type, 3, d);
      run_op(q.fwd());
      run_op(q.bwd());
      for (int64_t head = 0; head < 8; ++head) {
        Norm one(NormKind::rms, type, type, q.n, d);
        NormGrad g(one, type);
        for (int64_t i = 0; i < q.n; ++i)
          for (int64_t c = 0; c < d; ++c) {
            const int64_t at = i * q.cols + head * d + c;
            one.h.set(i * d + c, q.x[at]);
            one.w.set(c, head < QkNorm::kHeads ? q.wq[c] : q.wk[c]);
            g.dy.set(i * d + c, q.dy[at]);
            g.dh.set(i * d + c, 0);
          }
        NormFwd op = one.fwd();
        op.eps = 1e-6f;
        run_op(op);
        run_op(g.op(one));
        for (int64_t i = 0; i < q.n; ++i)
          for (int64_t c = 0; c < d; ++c) {
            const int64_t at = i * q.cols + head * d + c;
            const bool v = head >= QkNorm::kHeads + QkNorm::kKvHeads;
            EXPECT_EQ(q.y[at], v ? q.x[at] : one.y[i * d + c]);
            expect_near(q.dx[at], v ? q.dy[at] : g.dh[i * d + c], tolerance(type), "dx", at);
          }
      }
    }
}

TEST(QkNorm, WeightGradientsSumOverHeadsAndRows) {
  QkNorm q(DType::f32, 70, 12);
  const QkNorm before = q;
  run_op(q.fwd());
  run_op(q.bwd());
  for (int64_t c = 0; c < q.d; ++c) {
    double dwq = before.dwq[c], dwk = before.dwk[c];
    for (int64_t i = 0; i < q.n; ++i)
      for (int64_t h = 0; h < 6; ++h)
        (h < 4 ? dwq : dwk) += q.dy[i * q.cols + h * q.d + c] * q.x[i * q.cols + h * q.d + c] * q.rstd[i * 6 + h];
    expect_near(q.dwq[c], dwq, 2e-5, "dwq", c);
    expect_near(q.dwk[c], dwk, 2e-5, "dwk", c);
  }
}

TEST(QkNorm, BitsDoNotDependOnThreads) {
  QkNorm x(DType::bf16, 500, 24);
  expect_same_bits([&](int threads) {
    const QkNorm q = x;
    run_op(q.fwd(), threads);
    run_op(q.bwd(), threads);
    return std::vector<HostTensor>{q.y, q.rstd, q.dx, q.dwq, q.dwk};
  });
}

}  // namespace
}  // namespace athanor
