// Codes of a matrix that ranks share out: each makes those of its part, consecutive elements in the order of rows, and
// all parts are the codes that Quantize makes of the whole. In between, ranks take the maximum of what LargestOfPart
// found: scales belong to blocks, which cross the borders of parts.
#pragma once
#include "ops/quantize.h"

namespace athanor {

// A run of elements of a matrix [R, C], row-major from `first` on; C and `first` are multiples of 8.
struct MatrixPart {
  Shape matrix = {0, 0};
  int64_t first = 0;
  Blocks blocks = {};  // of the matrix; of columns all, or a multiple of 8

  Shape grid() const { return blocks.grid(matrix); }
  // Where the block of the part's element i lies in the grid.
  int64_t block_of(int64_t i) const {
    const int64_t row = (first + i) / matrix[1], column = (first + i) % matrix[1];
    return (blocks.rows ? row / blocks.rows : 0) * grid()[1] + (blocks.cols ? column / blocks.cols : 0);
  }
  void check(const Expect& e, const Tensor& x) const {
    constexpr int64_t kTogether = 8;
    const auto whole = [](int64_t n) { return n % kTogether == 0; };
    e.floating("x", x).that(x.shape.rank == 1, "x", "elements one after the other");
    e.that(matrix.rank == 2 && whole(matrix[1]) && whole(blocks.cols), "columns, and those of blocks, by eights");
    e.that(first >= 0 && whole(first) && whole(x.numel()) && first + x.numel() <= matrix.numel(), "x",
           "a part of the matrix by eights");
  }
};

// largest = the largest magnitude of each block, of what it holds already and the part; infinity where an element is
// not finite, so that a maximum over ranks tells all of them.
struct LargestOfPart {
  Tensor largest;      // part.grid() f32
  Tensor of_all = {};  // none, or [1] f32: likewise of all blocks
  Tensor x;            // [n]
  MatrixPart part;
  static constexpr const char* kName = "largest_of_part";

  std::array<Field, 3> fields() {
    return {{{"largest", Io::inout, &largest}, {"of_all", Io::inout, &of_all}, {"x", Io::in, &x}}};
  }
  void check() const {
    const Expect e{kName};
    part.check(e, x);
    e.is("largest", largest, DType::f32, part.grid()).largest("of_all", of_all);
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// codes = x * factor, rounded to nearest even, by the largest magnitudes of the whole matrix: code_scale() of a block,
// or block_scale() of f4_e2m1. The scales are those of a Quantize of `largest` by rows of one element.
struct QuantizePart {
  Tensor codes;            // [n] f8_e4m3, f8_e5m2 or f4_e2m1
  Tensor x;                // [n]
  Tensor largest;          // part.grid() f32
  Tensor of_all = {};      // of f4_e2m1: [1] f32, the largest of all blocks
  Tensor factor = {};      // none, or [1] f32, of one scale for all: above 0 it is taken as it is
  Tensor statistics = {};  // none, or [4] f64: a QuantizeStatistics to which the part's counts are added
  MatrixPart part;
  bool power_of_two = false;  // scales
  static constexpr const char* kName = "quantize_part";

  bool two_levels() const { return codes.dtype == DType::f4_e2m1; }
  std::array<Field, 6> fields() {
    return {{{"codes", Io::out, &codes},
             {"x", Io::in, &x},
             {"largest", Io::in, &largest},
             {"of_all", Io::in, &of_all},
             {"factor", Io::in, &factor},
             {"statistics", Io::inout, &statistics}}};
  }
  void check() const {
    const Expect e{kName};
    part.check(e, x);
    e.that(is_code(codes.dtype), "codes", "codes").is("codes", codes, codes.dtype, x.shape);
    e.is("largest", largest, DType::f32, part.grid());
    e.that(bool(of_all) == two_levels() && !(two_levels() && (power_of_two || factor)), "of_all, of f4_e2m1 alone");
    e.largest("of_all", of_all);
    if (factor) e.that(part.blocks == Blocks{}, "one scale for all").is("factor", factor, DType::f32, {1});
    if (statistics) e.is("statistics", statistics, DType::f64, {QuantizeStatistics::kNumbers});
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
