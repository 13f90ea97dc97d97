// Ops of Adafactor [Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", alg. 4]: the
// second moments of a matrix, factored into row and column means, and update clipping.
#pragma once
#include <cmath>
#include <vector>

#include "ops/optimizer.h"

namespace athanor {

// Factored second moments of an [R, C] matrix, with g = gradient * state.grad_scale, in step t:
//   b = 1 - t^-decay;  r = b r + (1 - b) (mean(g^2) + 1e-30) per row;  c likewise per column
// The update u = g / sqrt(r c / mean(r)) is the stored gradient times row_factors = 1 / sqrt(r / mean(r)) and
// column_factors = state.grad_scale / sqrt(c). Computed in double, rounded once. In a skipped step r and c are
// unchanged and the factors are 0.
struct FactoredMoments {
  struct Part {
    Tensor r, c;                         // [R], [C] f32
    Tensor row_factors, column_factors;  // [R], [C] f32
    Tensor row_sums, column_sums;        // [S, R], [S, C] f64: S partial sums of squared gradients per row and column
  };
  std::vector<Part> parts = std::vector<Part>(1);
  Tensor state;  // StepState
  double decay = 0.8;
  static constexpr double kEps = 1e-30;  // the paper's epsilon 1
  static constexpr const char* kName = "factored_moments";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"r", Io::inout, &p.r},
                             {"c", Io::inout, &p.c},
                             {"row_factors", Io::out, &p.row_factors},
                             {"column_factors", Io::out, &p.column_factors},
                             {"row_sums", Io::in, &p.row_sums},
                             {"column_sums", Io::in, &p.column_sums}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      const int64_t rows = p.r.numel(), columns = p.c.numel();
      e.matrix("row_sums", p.row_sums).is("row_sums", p.row_sums, DType::f64, {p.row_sums.rows(), rows});
      e.matrix("column_sums", p.column_sums);
      e.is("column_sums", p.column_sums, DType::f64, {p.row_sums.rows(), columns});
      e.is("r", p.r, DType::f32, {rows}).is("row_factors", p.row_factors, DType::f32, {rows});
      e.is("c", p.c, DType::f32, {columns}).is("column_factors", p.column_factors, DType::f32, {columns});
    }
  }
  Cost cost() const {
    return {5.0 * double(elements(parts, &Part::row_sums) + elements(parts, &Part::column_sums)), traffic(*this)};
  }
};

// Update clipping: divides a matrix's row factors by max(1, rms / limit), where rms is the root mean square of the
// update.
struct ClipFactors {
  struct Part {
    Tensor factors;       // [R] f32
    Tensor sums;          // [S, R] f64: S partial sums per row of the squares that the row's factor scales
    int64_t columns = 1;  // elements per row
  };
  std::vector<Part> parts = std::vector<Part>(1);
  double limit = 1;
  static constexpr const char* kName = "clip_factors";
  std::vector<Field> fields() {
    std::vector<Field> all;
    for (Part& p : parts) all.insert(all.end(), {{"factors", Io::inout, &p.factors}, {"sums", Io::in, &p.sums}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(!parts.empty(), "at least one part").that(limit > 0, "a limit above 0");
    for (const Part& p : parts) {
      const int64_t rows = p.factors.numel();
      e.matrix("sums", p.sums).is("sums", p.sums, DType::f64, {p.sums.rows(), rows});
      e.is("factors", p.factors, DType::f32, {rows}).that(p.columns > 0, "columns", "at least one");
    }
  }
  Cost cost() const { return {3.0 * double(elements(parts, &Part::sums)), traffic(*this)}; }
};

// ---- formulas for one row or column

struct FactoredScalars {
  double beta2, one_minus_beta2, scale_sq;
};
// Op: the op or the kernel argument made from it.
template <class Op>
ATHANOR_HOST_DEVICE FactoredScalars factored_scalars(const Op& op, const StepState& s) {
  const double rest = std::pow(double(s.updates), -op.decay);
  return {1 - rest, rest, double(s.grad_scale) * double(s.grad_scale)};
}

// Returns the sum of the `count` partial sums of row or column i, in order; sums is [count, n].
inline ATHANOR_HOST_DEVICE double added(const double* sums, int64_t count, int64_t n, int64_t i) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += sums[k * n + i];
  return sum;
}
// others: number of elements in the row or column.
inline ATHANOR_HOST_DEVICE float factored_moment(const FactoredScalars& a, float before, double squares,
                                                 int64_t others) {
  const double mean = squares * a.scale_sq / double(others) + FactoredMoments::kEps;
  return float(a.beta2 * double(before) + a.one_minus_beta2 * mean);
}
inline ATHANOR_HOST_DEVICE double clip_divisor(double squares, int64_t elements, double limit) {
  const double over = std::sqrt(squares / double(elements)) / limit;
  return over > 1 ? over : 1;
}

}  // namespace athanor
