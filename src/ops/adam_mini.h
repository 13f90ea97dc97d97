// Adam-mini's ops [Zhang et al. 2024, "Adam-mini: Use Fewer Learning Rates To Gain More", alg. 1]: one second moment
// for all weights of a block, which are those of an output, or of a head of outputs.
#pragma once
#include <vector>

#include "ops/optimizer.h"

namespace athanor {

// Elements [first, first + n) of a matrix whose rows, of `cols` elements, are outputs; or its columns are.
struct OutputRange {
  int64_t first = 0, cols = 1;
  bool columns = false;
  ATHANOR_HOST_DEVICE int64_t output(int64_t i) const { return columns ? (first + i) % cols : (first + i) / cols; }
};

// sums[o] += the squares of those elements of x that belong to output o. In double, in an order that shapes fix.
struct OutputSquares {
  struct Part {
    Tensor sums;  // [O] f64; of no other part
    Tensor x;     // [n] f32
    OutputRange range;
  };
  std::vector<Part> parts = std::vector<Part>(1);
  static constexpr const char* kName = "output_squares";
  std::vector<Field> fields() {
    std::vector<Field> all;
    for (Part& p : parts) all.insert(all.end(), {{"sums", Io::inout, &p.sums}, {"x", Io::in, &p.x}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      e.is("sums", p.sums, DType::f64, p.sums.shape).is("x", p.x, DType::f32, p.x.shape);
      const OutputRange& r = p.range;
      e.that(r.first >= 0 && r.cols > 0, "range", "at or behind the start of rows");
      const int64_t most = p.x.numel() == 0 ? 0 : r.columns ? r.cols : r.output(p.x.numel() - 1) + 1;
      e.that(most <= p.sums.numel(), "sums", "one for each output");
    }
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Part& p : parts) n += p.x.numel();
    return {2.0 * double(n), traffic(*this)};
  }
};

// Of each block b: v = b2 v + (1 - b2) mean(g^2), g = gradient * state.grad_scale; and of each of its outputs
// factor = 1 / (c1 (sqrt(v / c2) + eps)), c1 and c2 the corrections of the two averages: what the first moment is
// multiplied by. In double, rounded once. In a skipped step v is unchanged and the factors are 0.
struct BlockMoments {
  struct Part {
    Tensor v;        // [B] f32: of the first `grouped` outputs, `group` share a block; each of the others is one
    Tensor factors;  // [O] f32
    Tensor sums;     // [S, O] f64: squares of gradients, each the sum of S numbers
    int64_t inputs = 1;
    int64_t grouped = 0, group = 1;
    ATHANOR_HOST_DEVICE static int64_t blocks(int64_t outputs, int64_t grouped, int64_t group) {
      return grouped / group + outputs - grouped;
    }
  };
  std::vector<Part> parts = std::vector<Part>(1);
  Tensor state;  // StepState
  double beta2 = 0.95, eps = 1e-8;
  int average1 = 0, average2 = 1;  // indices into StepState::corrections
  static constexpr const char* kName = "block_moments";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts)
      all.insert(all.end(), {{"v", Io::inout, &p.v}, {"factors", Io::out, &p.factors}, {"sums", Io::in, &p.sums}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      const int64_t outputs = p.factors.numel();
      e.matrix("sums", p.sums).is("sums", p.sums, DType::f64, {p.sums.rows(), outputs});
      e.is("factors", p.factors, DType::f32, {outputs});
      e.that(p.grouped <= outputs && p.grouped % p.group == 0, "grouped", "whole groups of outputs");
      e.is("v", p.v, DType::f32, {Part::blocks(outputs, p.grouped, p.group)});
    }
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Part& p : parts) n += p.sums.numel();
    return {2.0 * double(n), traffic(*this)};
  }
};

// x *= the factor of its output.
struct ScaleOutputs {
  struct Part {
    Tensor x;        // [n] f32
    Tensor factors;  // [O] f32
    OutputRange range;
  };
  std::vector<Part> parts = std::vector<Part>(1);
  static constexpr const char* kName = "scale_outputs";
  std::vector<Field> fields() {
    std::vector<Field> all;
    for (Part& p : parts) all.insert(all.end(), {{"x", Io::inout, &p.x}, {"factors", Io::in, &p.factors}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(!parts.empty(), "at least one part");
    for (const Part& p : parts) {
      e.is("x", p.x, DType::f32, p.x.shape).is("factors", p.factors, DType::f32, p.factors.shape);
      const OutputRange& r = p.range;
      e.that(r.first >= 0 && r.cols > 0, "range", "at or behind the start of rows");
      const int64_t most = p.x.numel() == 0 ? 0 : r.columns ? r.cols : r.output(p.x.numel() - 1) + 1;
      e.that(most <= p.factors.numel(), "factors", "one for each output");
    }
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Part& p : parts) n += p.x.numel();
    return {double(n), traffic(*this)};
  }
};

// ---- of one block; Op: the op, or the kernel argument made from it.

struct OutputBlock {
  int64_t begin, end;  // outputs
};
inline ATHANOR_HOST_DEVICE OutputBlock block_of(int64_t b, int64_t grouped, int64_t group) {
  const int64_t groups = grouped / group;
  if (b < groups) return {b * group, (b + 1) * group};
  return {grouped + b - groups, grouped + b - groups + 1};
}

// sums: [S, outputs]
template <class Op>
ATHANOR_HOST_DEVICE float block_moment(const Op& op, const StepState& s, float v, const double* sums, int64_t count,
                                       int64_t outputs, OutputBlock block, int64_t inputs) {
  double sum = 0;
  for (int64_t o = block.begin; o < block.end; ++o)
    for (int64_t i = 0; i < count; ++i) sum += sums[i * outputs + o];
  const double mean = sum * double(s.grad_scale) * double(s.grad_scale) / double((block.end - block.begin) * inputs);
  return float(op.beta2 * double(v) + (1 - op.beta2) * mean);
}
template <class Op>
ATHANOR_HOST_DEVICE float block_factor(const Op& op, const StepState& s, float v) {
  const double c1 = s.corrections[op.average1], c2 = s.corrections[op.average2];
  return float(1 / (c1 * (std::sqrt(double(v) / c2) + op.eps)));
}

}  // namespace athanor
