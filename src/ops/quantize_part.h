// Quantization of a matrix that is sharded over ranks: each rank quantizes its part, consecutive elements in row-major
// order, and all parts together equal the output of Quantize for the whole matrix. Blocks may cross the borders of
// parts, so between AmaxOfPart and QuantizePart ranks all-reduce (max) the amax of each block.
#pragma once
#include "ops/quantize.h"

namespace athanor {

// Flat range of a row-major [R, C] matrix starting at `first`; C and `first` are multiples of 8.
struct MatrixPart {
  Shape matrix = {0, 0};
  int64_t first = 0;
  Blocks blocks = {};  // blocks of the whole matrix; their columns are all (0) or a multiple of 8

  Shape grid() const { return blocks.grid(matrix); }
  // Returns the grid index of the block that contains element i of the part.
  int64_t block_of(int64_t i) const {
    const int64_t row = (first + i) / matrix[1], column = (first + i) % matrix[1];
    return (blocks.rows ? row / blocks.rows : 0) * grid()[1] + (blocks.cols ? column / blocks.cols : 0);
  }
  void check(const Expect& e, const Tensor& x) const {
    constexpr int64_t kTogether = 8;
    const auto whole = [](int64_t n) { return n % kTogether == 0; };
    e.floating("x", x).that(x.shape.rank == 1, "x", "contiguous elements");
    e.that(matrix.rank == 2 && whole(matrix[1]) && whole(blocks.cols),
           "columns, and columns of blocks, in multiples of 8");
    e.that(first >= 0 && whole(first) && whole(x.numel()) && first + x.numel() <= matrix.numel(), "x",
           "a part of the matrix by eights");
  }
};

// Updates the amax of each block with the elements of the part. Non-finite elements give infinity, which the maximum
// over ranks passes to all ranks.
struct AmaxOfPart {
  Tensor amax;         // part.grid() f32
  Tensor of_all = {};  // optional [1] f32: updated with the amax over all blocks
  Tensor x;            // [n]
  MatrixPart part;
  static constexpr const char* kName = "amax_of_part";

  auto fields() { return fields_of(Field::inout("amax", amax), Field::inout("of_all", of_all), Field::in("x", x)); }
  void check() const {
    const Expect e{kName};
    part.check(e, x);
    e.is("amax", amax, DType::f32, part.grid()).amax("of_all", of_all);
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// quantized = x * factor, rounded to nearest even. The factors come from the amax of each block of the whole matrix by
// code_scale(), or block_scale() for f4_e2m1. The scales are not written here; a Quantize of `amax`, viewed as rows
// of one element, computes them.
struct QuantizePart {
  Tensor quantized;        // [n] f8_e4m3, f8_e5m2 or f4_e2m1
  Tensor x;                // [n]
  Tensor amax;             // part.grid() f32: amax of each block
  Tensor of_all = {};      // f4_e2m1 only: [1] f32, amax of the whole matrix
  Tensor factor = {};      // optional [1] f32, with one scale for the matrix: used if above 0
  Tensor statistics = {};  // optional [4] f64: a QuantizeStatistics, to which the part's counts are added
  MatrixPart part;
  bool power_of_two = false;  // round scales to powers of two
  static constexpr const char* kName = "quantize_part";

  bool two_levels() const { return quantized.dtype == DType::f4_e2m1; }
  auto fields() {
    return fields_of(Field::out("quantized", quantized), Field::in("x", x), Field::in("amax", amax),
                     Field::in("of_all", of_all), Field::in("factor", factor), Field::inout("statistics", statistics));
  }
  void check() const {
    const Expect e{kName};
    part.check(e, x);
    e.that(is_code(quantized.dtype), "quantized", "a quantized type")
        .is("quantized", quantized, quantized.dtype, x.shape);
    e.is("amax", amax, DType::f32, part.grid());
    e.that(bool(of_all) == two_levels() && !(two_levels() && (power_of_two || factor)),
           "of_all exactly with f4_e2m1, and then neither power_of_two nor factor");
    e.amax("of_all", of_all);
    if (factor) e.that(part.blocks == Blocks{}, "one scale per tensor").is("factor", factor, DType::f32, {1});
    if (statistics) e.is("statistics", statistics, DType::f64, {QuantizeStatistics::kNumbers});
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
