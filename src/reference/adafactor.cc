// Ops of ops/adafactor.h, element by element, after the paper [Shazeer & Stern 2018, alg. 4]. The paper's G is the
// stored gradient times grad_scale.
#include <cmath>
#include <cstring>

#include "ops/adafactor.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

void ReferenceOps::run(const FactoredMoments& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  const double beta2 = 1 - std::pow(double(s.updates), -op.decay), scale = double(s.grad_scale);
  for (const FactoredMoments::Part& p : op.parts) {
    const auto average = [&](const Tensor& moments, const Tensor& sums, int64_t others) {
      Values m = load(moments);
      const Values stored = load(sums);  // [S, rows or columns]: squares of stored gradients
      for (int64_t i = 0; i < m.size() && !s.skip; ++i) {
        double squares = 0;  // sum of squares of G
        for (int64_t k = 0; k < stored.rows; ++k) squares += stored(k, i) * scale * scale;
        m[i] = float(beta2 * m[i] + (1 - beta2) * (squares / double(others) + 1e-30));
      }
      store(moments, m);
      return m;
    };
    const Values r = average(p.r, p.row_sums, p.c.numel()), c = average(p.c, p.column_sums, p.r.numel());
    double mean = 0;
    for (const double x : r.v) mean += x / double(r.size());
    // U = G / sqrt(V) with V = r c / mean(r), as one factor per row and one per column; the column factor includes
    // grad_scale.
    Values rows(1, r.size()), columns(1, c.size());
    for (int64_t i = 0; i < r.size() && !s.skip; ++i) rows[i] = std::sqrt(mean / r[i]);
    for (int64_t i = 0; i < c.size() && !s.skip; ++i) columns[i] = scale / std::sqrt(c[i]);
    store(p.row_factors, rows);
    store(p.column_factors, columns);
  }
}

void ReferenceOps::run(const ClipFactors& op, void*) {
  for (const ClipFactors::Part& p : op.parts) {
    const Values sums = load(p.sums);  // [S, R]
    Values factors = load(p.factors);  // [R]
    double squares = 0;
    for (int64_t k = 0; k < sums.rows; ++k)
      for (int64_t i = 0; i < sums.cols; ++i) squares += factors[i] * factors[i] * sums(k, i);
    const double rms = std::sqrt(squares / double(sums.cols * p.columns));
    for (double& x : factors.v) x /= std::max(1.0, rms / op.limit);
    store(p.factors, factors);
  }
}

}  // namespace athanor
