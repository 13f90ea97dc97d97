// Codes of 8 bits with scales, and products of them.
#pragma once
#include <cmath>
#include <limits>

#include "ops/gemm.h"

namespace athanor {

// A matrix in blocks that share a scale each; 0: as many rows or columns as there are. {0, 0}: one scale for all,
// {1, 0}: one per row, {1, 128}: one per 128 elements of a row. Blocks at the end may be smaller.
struct Blocks {
  int64_t rows = 0, cols = 0;
  bool operator==(const Blocks&) const = default;
  Shape grid(const Shape& matrix) const {
    return {rows ? div_ceil(matrix[0], rows) : 1, cols ? div_ceil(matrix[1], cols) : 1};
  }
};

constexpr bool is_scale(DType dtype) { return dtype == DType::f32 || dtype == DType::f8_e8m0; }

// What quantizing did to the elements of blocks without Inf and NaN; `largest` is of all.
struct QuantizeStatistics {
  double values = 0;       // that are not zero
  double saturated = 0;    // magnitude above scale * kSaturates (tensor/float8.h): off by more than rounding explains
  double underflowed = 0;  // not zero, with a code that is
  double largest = 0;      // magnitude; NaN if there is one
  static constexpr int64_t kNumbers = 4;
  void add(const QuantizeStatistics& b) {
    values += b.values, saturated += b.saturated, underflowed += b.underflowed;
    const bool none = std::isnan(largest) || std::isnan(b.largest);
    largest = none ? std::numeric_limits<double>::quiet_NaN() : std::max(largest, b.largest);
  }
};

// codes = x * factor, rounded to nearest even, and scales = 1 / factor, by code_scale() of each block
// (tensor/float8.h).
struct Quantize {
  Tensor codes;   // [R, C] f8_e4m3 or f8_e5m2
  Tensor scales;  // blocks.grid(), f32 or f8_e8m0
  Tensor x;       // [R, C]
  Blocks blocks = {};
  bool power_of_two = false;  // scales; those of f8_e8m0 are anyway
  Tensor statistics = {};     // none, or [4] f64: a QuantizeStatistics to which this one's counts are added
  static constexpr const char* kName = "quantize";

  bool powers() const { return power_of_two || scales.dtype == DType::f8_e8m0; }
  std::array<Field, 4> fields() {
    return {{{"codes", Io::out, &codes},
             {"scales", Io::out, &scales},
             {"x", Io::in, &x},
             {"statistics", Io::inout, &statistics}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("x", x).matrix("x", x).contiguous("x", x).that(is_code(codes.dtype), "codes", "f8_e4m3 or f8_e5m2");
    e.that(is_scale(scales.dtype), "scales", "f32 or f8_e8m0");
    e.is("codes", codes, codes.dtype, x.shape).is("scales", scales, scales.dtype, blocks.grid(x.shape));
    if (statistics) e.is("statistics", statistics, DType::f64, {QuantizeStatistics::kNumbers});
  }
  Cost cost() const { return {2.0 * double(x.numel()), traffic(*this) + double(x.bytes())}; }  // x is read twice
};

// A product whose a and b are codes: each stands for its code times the scale of its block.
struct ScaledGemm {
  Gemm product;
  Tensor a_scales, b_scales;  // the blocks' grids, f32 or f8_e8m0
  Blocks a_blocks, b_blocks;  // of a and b as they lie in memory
  static constexpr const char* kName = "scaled_gemm";

  std::array<Field, 7> fields() {
    const auto f = product.fields();
    return {{f[0], f[1], f[2], f[3], f[4], {"a_scales", Io::in, &a_scales}, {"b_scales", Io::in, &b_scales}}};
  }
  void check() const {
    Expect e{kName};
    const Tensor &a = product.a, &b = product.b;
    e.that(is_code(a.dtype), "a", "codes of 8 bits").that(is_code(b.dtype), "b", "codes of 8 bits");
    e.that(is_scale(a_scales.dtype), "a_scales", "f32 or f8_e8m0");
    e.that(is_scale(b_scales.dtype), "b_scales", "f32 or f8_e8m0");
    e.that(a.dtype == DType::f8_e4m3 || b.dtype == DType::f8_e4m3, "one factor of f8_e4m3 at least");
    e.contiguous("a", a).contiguous("b", b);
    e.is("a_scales", a_scales, a_scales.dtype, a_blocks.grid(a.shape));
    e.is("b_scales", b_scales, b_scales.dtype, b_blocks.grid(b.shape));
    e.that(product.epilogue == Epilogue::none || product.epilogue == Epilogue::add, "no epilogue but add");
    product.check_result(e);
  }
  Cost cost() const { return {product.cost().flops, traffic(*this)}; }
};

}  // namespace athanor
