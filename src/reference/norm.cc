// RMSNorm and LayerNorm, their gradient, and the per-head norm of queries and keys.
#include <cmath>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// y = (h - mean) rstd w + b from the stored statistics. [Ba et al. 2016, eq. 4; Zhang & Sennrich
// 2019, eq. 4 has neither mean nor b]
void write_normalised(const Tensor& y_out, const Tensor& h_in, const Tensor& mean_in, const Tensor& rstd_in,
                      const Tensor& w_in, const Tensor& b_in) {
  const Values h = load(h_in), rstd = load(rstd_in), w = load(w_in);  // [N, C], [N], [C]
  const Values mean = mean_in ? load(mean_in) : Values(1, h.rows);    // [N]
  const Values b = b_in ? load(b_in) : Values(1, h.cols);             // [C]
  Values y = zeros_like(y_out);                                       // [N, C]
  for (int64_t i = 0; i < h.rows; ++i)
    for (int64_t c = 0; c < h.cols; ++c) y(i, c) = (h(i, c) - mean[i]) * rstd[i] * w[c] + b[c];
  store(y_out, y);
}

double sum_of_squares(const double* x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  return squares;
}

// 1 / sqrt(mean of squares + eps) of n values.
double inverse_rms(double squares, int64_t n, double eps) { return 1 / std::sqrt(squares / double(n) + eps); }

}  // namespace

void ReferenceOps::run(const NormFwd& op, void*) {
  Values h = load(op.h);                               // [N, C]
  Values mean(1, h.rows), rstd = zeros_like(op.rstd);  // [N]
  for (int64_t i = 0; i < h.rows; ++i) {
    if (op.kind == NormKind::layer) {
      for (int64_t c = 0; c < h.cols; ++c) mean[i] += h(i, c) / double(h.cols);
      for (int64_t c = 0; c < h.cols; ++c) h(i, c) -= mean[i];  // their rms is then the standard deviation
    }
    rstd[i] = inverse_rms(sum_of_squares(&h(i, 0), h.cols), h.cols, double(op.eps));
  }
  if (op.mean) store(op.mean, mean);
  store(op.rstd, rstd);
  write_normalised(op.y, op.h, op.mean, op.rstd, op.w, op.b);
  store_amax(op.amax, op.y);
}

void ReferenceOps::run(const NormApply& op, void*) { write_normalised(op.y, op.h, op.mean, op.rstd, op.w, op.b); }

// With n = (h - mean) rstd and g = dy w:
//   rms:   dh += rstd (g - n mean(g n))            layer: dh += rstd (g - mean(g) - n mean(g n))
//   dw += sum dy n,  db += sum dy                  [derivative of Ba et al. 2016, eq. 4]
void ReferenceOps::run(const NormBwd& op, void*) {
  const Values dy = load(op.dy), h = load(op.h), rstd = load(op.rstd), w = load(op.w);
  const Values mean = op.mean ? load(op.mean) : Values(1, h.rows);
  Values dh = load(op.dh), dw = load(op.dw), db = op.db ? load(op.db) : Values(1, h.cols);
  for (int64_t i = 0; i < h.rows; ++i) {
    double mean_g = 0, mean_gn = 0;
    for (int64_t c = 0; c < h.cols; ++c) {
      const double n = (h(i, c) - mean[i]) * rstd[i], g = dy(i, c) * w[c];
      mean_g += g / double(h.cols);
      mean_gn += g * n / double(h.cols);
      dw[c] += dy(i, c) * n;
      db[c] += dy(i, c);
    }
    if (op.kind == NormKind::rms) mean_g = 0;
    for (int64_t c = 0; c < h.cols; ++c) {
      const double n = (h(i, c) - mean[i]) * rstd[i], g = dy(i, c) * w[c];
      dh(i, c) += rstd[i] * (g - mean_g - n * mean_gn);
    }
  }
  store(op.dh, dh);
  store_amax(op.amax, op.dh);
  store(op.dw, dw);
  if (op.db) store(op.db, db);
}

// Head j of [q heads | k heads] is normalised with wq or wk; the v heads that follow are copied.
void ReferenceOps::run(const QkNormFwd& op, void*) {
  const Values x = load(op.x), wq = load(op.wq), wk = load(op.wk);
  const int64_t dim = wq.cols, normed = op.heads + op.kv_heads;
  Values rstd = zeros_like(op.rstd);  // [N, H + K]
  const Values sums = op.sums ? load(op.sums) : Values(0, 0);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < normed; ++j) {
      const double squares = op.sums ? sums(i, j) : sum_of_squares(&x.v[size_t(i * x.cols + j * dim)], dim);
      rstd(i, j) = inverse_rms(squares, dim * op.parts, op.eps);
    }
  store(op.rstd, rstd);
  rstd = load(op.rstd);  // y is computed from the stored (rounded) statistics
  Values y = x;
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < normed; ++j)
      for (int64_t c = 0; c < dim; ++c) y(i, j * dim + c) *= rstd(i, j) * (j < op.heads ? wq[c] : wk[c]);
  store(op.y, y);
}

void ReferenceOps::run(const QkNormBwd& op, void*) {
  const Values dy = load(op.dy), x = load(op.x), rstd = load(op.rstd), wq = load(op.wq), wk = load(op.wk);
  const Values sums = op.sums ? load(op.sums) : Values(0, 0);
  const int64_t dim = wq.cols;
  Values dx = dy, dwq = load(op.dwq), dwk = load(op.dwk);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < op.heads + op.kv_heads; ++j) {
      const Values& w = j < op.heads ? wq : wk;
      Values& dw = j < op.heads ? dwq : dwk;
      double mean_gn = 0;  // as in NormBwd, per head
      for (int64_t c = 0; c < dim; ++c) {
        const double n = x(i, j * dim + c) * rstd(i, j);
        mean_gn += dy(i, j * dim + c) * w[c] * n / double(dim);
        dw[c] += dy(i, j * dim + c) * n;
      }
      if (op.sums) mean_gn = rstd(i, j) * sums(i, j) / double(dim * op.parts);
      for (int64_t c = 0; c < dim; ++c) {
        const double n = x(i, j * dim + c) * rstd(i, j);
        dx(i, j * dim + c) = rstd(i, j) * (dy(i, j * dim + c) * w[c] - n * mean_gn);
      }
    }
  store(op.dx, dx);
  store(op.dwq, dwq);
  store(op.dwk, dwk);
}

void ReferenceOps::run(const QkNormSums& op, void*) {
  const Values x = load(op.x), dy = op.dy ? load(op.dy) : Values(0, 0), wq = load(op.wq), wk = load(op.wk);
  const int64_t dim = wq.cols;
  Values sums = zeros_like(op.sums);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < op.heads + op.kv_heads; ++j)
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t at = j * dim + c;
        sums(i, j) += x(i, at) * (op.dy ? dy(i, at) * (j < op.heads ? wq[c] : wk[c]) : x(i, at));
      }
  store(op.sums, sums);
}

}  // namespace athanor
