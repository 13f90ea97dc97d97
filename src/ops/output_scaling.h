// Per-output ops on weight matrices: sums of squares of each output's elements, and scaling of each output.
#pragma once
#include <vector>

#include "ops/optimizer.h"

namespace athanor {

// Elements [first, first + n) of a row-major matrix with `cols` columns. An output is a row, or with `columns` a
// column.
struct OutputRange {
  int64_t first = 0, cols = 1;
  bool columns = false;
  ATHANOR_HOST_DEVICE int64_t output(int64_t i) const { return columns ? (first + i) % cols : (first + i) / cols; }
  // Expects `by_output` to have an element for each output of x.
  void check(Expect& e, const Tensor& x, const char* name, const Tensor& by_output) const {
    e.that(first >= 0 && cols > 0, "range", "a first column of at least 0, and columns");
    const int64_t outputs = x.numel() == 0 ? 0 : columns ? cols : output(x.numel() - 1) + 1;
    e.that(outputs <= by_output.numel(), name, "one for each output");
  }
};

// sums[o] += squares of the elements of x that belong to output o; in double, in an order that depends only on the
// shapes.
struct OutputSquares {
  struct Part {
    Tensor sums;  // [O] f64; each part has its own
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
      p.range.check(e, p.x, "sums", p.sums);
    }
  }
  Cost cost() const { return {2.0 * double(elements(parts, &Part::x)), traffic(*this)}; }
};

// x *= factors[output of the element].
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
      p.range.check(e, p.x, "factors", p.factors);
    }
  }
  Cost cost() const { return {double(elements(parts, &Part::x)), traffic(*this)}; }
};

}  // namespace athanor
