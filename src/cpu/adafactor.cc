// Adafactor: second moments of rows and columns, and update clipping. The passes over gradients are in
// output_scaling.cc.
#include "ops/adafactor.h"

#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

// Updates the second moments of rows or columns; returns their mean.
double moments(float* m, int64_t n, const Tensor& sums, int64_t others, const FactoredScalars& a, bool skip) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!skip) m[i] = factored_moment(a, m[i], added(flat<double>(sums), sums.rows(), n, i), others);
    total += double(m[i]);
  }
  return total / double(n);
}

}  // namespace

void CpuOps::run(const FactoredMoments& op, void*) {
  const StepState& state = update::state_of(op.state);
  const FactoredScalars a = factored_scalars(op, state);
  for (const FactoredMoments::Part& p : op.parts) {
    float *r = flat<float>(p.r), *c = flat<float>(p.c);
    const int64_t rows = p.r.numel(), columns = p.c.numel();
    const double mean = moments(r, rows, p.row_sums, columns, a, state.skip);
    moments(c, columns, p.column_sums, rows, a, state.skip);
    float *of_rows = flat<float>(p.row_factors), *of_columns = flat<float>(p.column_factors);
    for (int64_t i = 0; i < rows; ++i) of_rows[i] = state.skip ? 0 : float(std::sqrt(mean / double(r[i])));
    const double scale = std::sqrt(a.scale_sq);
    for (int64_t i = 0; i < columns; ++i) of_columns[i] = state.skip ? 0 : float(scale / std::sqrt(double(c[i])));
  }
}

void CpuOps::run(const ClipFactors& op, void*) {
  for (const ClipFactors::Part& p : op.parts) {
    float* factors = flat<float>(p.factors);
    const int64_t rows = p.factors.numel();
    double squares = 0;
    for (int64_t i = 0; i < rows; ++i)
      squares += double(factors[i]) * double(factors[i]) * added(flat<double>(p.sums), p.sums.rows(), rows, i);
    const double divisor = clip_divisor(squares, rows * p.columns, op.limit);
    for (int64_t i = 0; i < rows; ++i) factors[i] = float(double(factors[i]) / divisor);
  }
}

}  // namespace athanor
