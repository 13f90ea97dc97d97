// Quantization to FP8 and FP4 with scales, and GEMMs with quantized operands.
#pragma once
#include <cmath>
#include <limits>

#include "ops/gemm.h"
#include "ops/optimizer.h"

namespace athanor {

// Partition of a matrix into blocks that share a scale. 0 means all rows or all columns: {0, 0} is one scale for the
// matrix, {1, 0} one per row, {1, 128} one per 128 elements of a row. The last block of a row or column may be smaller.
struct Blocks {
  int64_t rows = 0, cols = 0;
  bool operator==(const Blocks&) const = default;
  Shape grid(const Shape& matrix) const {
    return {rows ? div_ceil(matrix[0], rows) : 1, cols ? div_ceil(matrix[1], cols) : 1};
  }
};

inline Shape transposed_shape(const Shape& s) { return {s[1], s[0]}; }
constexpr Blocks transposed(const Blocks& b) { return {b.cols, b.rows}; }

// True for a valid pair of dtypes: FP8 values have f32 or f8_e8m0 scales; FP4 values have f8_e4m3 block scales and one
// more f32 scale for the whole matrix (GlobalScale in tensor/float8.h).
constexpr bool is_scale(DType quantized, DType scales) {
  if (quantized == DType::f4_e2m1) return scales == DType::f8_e4m3;
  return scales == DType::f32 || scales == DType::f8_e8m0;
}

// Sign flips of the random Hadamard transform: every 16 consecutive values of a block become H diag(signs) x / 4, where
// H is the Hadamard matrix in Sylvester's order. The transform spreads outliers. Both operands of a GEMM are
// transformed along K, where the transforms cancel since H H^T = 16. The signs are bits of pi; any others would do.
// [NVIDIA 2025, NVFP4, app. C.2]
constexpr int64_t kHadamard = 16;
constexpr uint32_t kHadamardSigns = 0x243f;  // bit i set: value i is negated

// Counters of one quantization. All except `amax` exclude blocks that contain Inf or NaN.
struct QuantizeStatistics {
  double values = 0;       // nonzero inputs
  double saturated = 0;    // inputs with |x| > scale * kSaturates (tensor/float8.h), in blocks with a nonzero scale
  double underflowed = 0;  // nonzero inputs that were quantized to 0
  double amax = 0;         // amax; NaN if any input is NaN
  static constexpr int64_t kNumbers = 4;
  void add(const QuantizeStatistics& b) {
    values += b.values, saturated += b.saturated, underflowed += b.underflowed;
    const bool none = std::isnan(amax) || std::isnan(b.amax);
    amax = none ? std::numeric_limits<double>::quiet_NaN() : std::max(amax, b.amax);
  }
};

// Quantizes each block: quantized = x * factor, rounded to nearest even, and scales = 1 / factor. code_scale() computes
// both from the block's amax; for f4_e2m1 global_scale() and block_scale() do (tensor/float8.h).
struct Quantize {
  Tensor quantized;  // [R, C] quantized values: f8_e4m3, f8_e5m2 or f4_e2m1; [C, R] with `transpose_only`
  Tensor scales;     // blocks.grid(); f32 or f8_e8m0, or f8_e4m3 for f4_e2m1 values; the transposed grid with
                     // `transpose_only`
  Tensor global;     // f4_e2m1 only: [1] f32
  Tensor x;          // [R, C]
  Blocks blocks = {};
  bool power_of_two = false;  // round scales to powers of two; f8_e8m0 scales always are
  bool hadamard = false;      // transform x first, along blocks of {1, 16} or {16, 1}
  bool at_random = false;     // f4_e2m1 only: stochastic rounding by f(seed, stream + bits of the amax, element)
  uint64_t seed = 0, stream = 0;
  Tensor statistics = {};  // optional [4] f64: a QuantizeStatistics, to which this op's counts are added
  // Only with one f32 scale for the whole tensor: a factor above 0 replaces the one computed from the amax. The scale
  // is still NaN if x is not finite.
  Tensor factor = {};     // optional [1] f32
  Tensor step_amax = {};  // optional [1] f32: becomes max(itself, amax of x); infinity if x is not finite
  // Only with one scale for the whole tensor: the amax of x from the op that produced x (NormFwd::amax), so that
  // Quantize need not compute it. NaN counts as the maximum.
  Tensor amax = {};  // optional [1] f32
  // Transposed output, for f32 scales without a global scale. `transpose_only`: only the transpose of x is quantized.
  // `transposed`: the transpose is written as a second output. With one scale for the tensor the transpose holds the
  // same values as `quantized`; with one scale per row, or per 128 elements of a row, it has separate scales, one per
  // column or per 128 elements of a column, as computed by alone().
  bool transpose_only = false;
  Tensor transposed = {};             // optional [C, R]
  Tensor transposed_scales = {};      // for blocks {1, 0}: [C, 1] f32; for {1, 128}: [C, ceil(R / 128)] f32
  Tensor transposed_statistics = {};  // requires `statistics`, and transposed_scales
  static constexpr const char* kName = "quantize";

  bool powers() const { return power_of_two || scales.dtype == DType::f8_e8m0; }
  bool two_levels() const { return quantized.dtype == DType::f4_e2m1; }
  Shape scale_grid() const { return transpose_only ? transposed_shape(blocks.grid(x.shape)) : blocks.grid(x.shape); }
  // Return the op without its transposed output, and an op that computes only the transposed output.
  Quantize without_transposed() const {
    Quantize op = *this;
    op.transposed = op.transposed_scales = op.transposed_statistics = {};
    return op;
  }
  Quantize alone() const {
    Quantize op = without_transposed();
    op.transpose_only = true, op.quantized = transposed, op.scales = transposed_scales,
    op.statistics = transposed_statistics;
    op.blocks = athanor::transposed(blocks);
    return op;
  }
  // True if a kernel keeps a row on chip between computing its amax and quantizing it, so that x is read once. GPUs of
  // compute capability 9.0 and 10.0 have 227 KiB of shared memory: two rows of up to 75 KiB each and 75 KiB for column
  // maxima. That fits the gate and up projections of Qwen 7B.
  bool keeps_rows() const {
    constexpr int64_t kMostColumns = 38400;
    return blocks == Blocks{1, 0} && x.cols() <= kMostColumns && x.cols() % 8 == 0 && size_of(x.dtype) == 2;
  }
  auto fields() {
    return fields_of(Field::out("quantized", quantized), Field::out("scales", scales), Field::out("global", global),
                     Field::out("transposed", transposed), Field::out("transposed_scales", transposed_scales),
                     Field::inout("transposed_statistics", transposed_statistics), Field::in("x", x),
                     Field::inout("statistics", statistics), Field::in("factor", factor),
                     Field::inout("step_amax", step_amax), Field::in("amax", amax));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("x", x).that(is_code(quantized.dtype), "quantized", "a quantized type");
    e.that(is_scale(quantized.dtype, scales.dtype), "scales", "f32 or f8_e8m0, or f8_e4m3 of f4_e2m1");
    if (two_levels()) {
      e.is("global", global, DType::f32, {1});
      e.that(blocks.rows > 0 && blocks.cols > 0 && !power_of_two, "blocks with rows and columns, and no power_of_two");
    } else {
      e.that(!global && !at_random, "global and at_random only with f4_e2m1");
    }
    if (hadamard) {
      e.that(blocks == Blocks{1, kHadamard} || blocks == Blocks{kHadamard, 1},
             "blocks of 1 x 16 or 16 x 1 values with hadamard");
      e.that(x.shape[blocks.rows == 1 ? 1 : 0] % kHadamard == 0, "x", "whole blocks of 16 values");
    }
    e.is("quantized", quantized, quantized.dtype, transpose_only ? transposed_shape(x.shape) : x.shape)
        .is("scales", scales, scales.dtype, scale_grid());
    if (transpose_only || transposed) {
      const bool columns = transpose_only && (blocks == Blocks{0, 1} || blocks == Blocks{128, 1});
      const bool both = transposed && transposed_scales && (blocks == Blocks{1, 128} || blocks == Blocks{1, 0});
      e.that(scales.dtype == DType::f32 && (columns || both || (blocks == Blocks{} && !transposed_scales)) &&
                 !(transpose_only && transposed) && bool(transposed_statistics) == (both && statistics),
             "for transposed output, f32 scales: one per tensor; for transpose_only, one per column or per 128 rows of "
             "it; with transposed_scales, one per row or per 128 columns of it");
    }
    if (transposed_scales)
      e.is("transposed_scales", transposed_scales, DType::f32, blocks.grid(transposed_shape(x.shape)));
    if (transposed_statistics)
      e.is("transposed_statistics", transposed_statistics, DType::f64, {QuantizeStatistics::kNumbers});
    if (transposed) e.is("transposed", transposed, quantized.dtype, transposed_shape(x.shape));
    if (statistics) e.is("statistics", statistics, DType::f64, {QuantizeStatistics::kNumbers});
    if (factor || step_amax) e.that(blocks == Blocks{} && scales.dtype == DType::f32, "one f32 scale per tensor");
    if (factor) e.is("factor", factor, DType::f32, {1});
    if (step_amax) e.is("step_amax", step_amax, DType::f32, {1});
    if (amax) e.that(blocks == Blocks{} && !factor && !step_amax, "one scale per tensor, without factor or step_amax");
    e.amax("amax", amax);
  }
  // x is read twice, or once if the amax is given or a whole block stays on chip. The transposed output of row-wise
  // scales needs one more read of x; column maxima are computed while rows are on chip.
  Cost cost() const {
    const bool lines = transposed_scales && blocks.cols == 0;
    const bool once =
        factor || amax || (transpose_only && blocks.rows == 128) || (transposed_scales && !lines) || keeps_rows();
    const int passes = lines ? 2 : 1, readings = once ? 1 : 2;
    return {2.0 * double(x.numel()), traffic(*this) + double(x.bytes()) * (passes * readings - 1)};
  }
};

// Delayed scaling: computes the factors for the next step's Quantize from the amax of the last `length` steps: (maximum
// of the format) / amax / 2^margin, clamped to [2^-126, 2^126], or 0 while every amax is 0. [NVIDIA, TransformerEngine,
// recipe.DelayedScaling] A history excludes skipped steps and non-finite amax values.
struct DelayedScales {
  std::vector<Tensor> histories = {};  // one per row of `amax`: [columns * length] f32, newest first; [0]: no history
  Tensor amax;                         // [rows, columns] f32: amax of this step; zeroed afterwards
  Tensor factors;                      // [rows, columns] f32: output
  Tensor state = {};                   // [sizeof(StepState)] u8, after StepControl; absent if no step ended
  std::vector<DType> quantized = {};   // quantized dtype of each column
  int64_t length = 1;
  int margin = 0;
  bool power_of_two = false;
  static constexpr const char* kName = "delayed_scales";

  int64_t columns() const { return int64_t(quantized.size()); }
  std::vector<Field> fields() {
    std::vector<Field> all{{"amax", Io::inout, &amax}, {"factors", Io::inout, &factors}, {"state", Io::in, &state}};
    for (Tensor& t : histories) all.push_back({"histories", Io::inout, &t});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(length > 0 && margin >= 0, "a history of at least one step, and a margin of at least 0");
    const Shape all = {int64_t(histories.size()), columns()};
    e.is("amax", amax, DType::f32, all).is("factors", factors, DType::f32, all);
    for (const Tensor& t : histories) e.is("histories", t, DType::f32, {t.numel() ? columns() * length : 0});
    for (const DType type : quantized) e.that(is_code(type), "quantized", "quantized types");
    if (state) e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
  }
  Cost cost() const { return {2.0 * double(histories.size()), traffic(*this)}; }
};

// A GEMM with quantized a and b: each element is its quantized value times the scale of its block. The only fused
// epilogue is `add`.
struct ScaledGemm {
  Gemm gemm;
  Tensor a_scales, b_scales;  // grids of a_blocks and b_blocks
  Tensor a_global, b_global;  // f4_e2m1 only: [1] f32
  Blocks a_blocks, b_blocks;  // blocks of a and b in their memory layout
  bool fast = false;          // allows accumulation with about 14 mantissa bits, as GPUs do if that is faster
  static constexpr const char* kName = "scaled_gemm";

  std::array<Field, 9> fields() {
    const auto f = gemm.fields();
    return {{f[0],
             f[1],
             f[2],
             f[3],
             f[4],
             {"a_scales", Io::in, &a_scales},
             {"b_scales", Io::in, &b_scales},
             {"a_global", Io::in, &a_global},
             {"b_global", Io::in, &b_global}}};
  }
  void check() const {
    Expect e{kName};
    const Tensor &a = gemm.a, &b = gemm.b;
    e.that(is_code(a.dtype), "a", "a quantized type").that(is_code(b.dtype), "b", "a quantized type");
    e.that(is_scale(a.dtype, a_scales.dtype), "a_scales", "f32 or f8_e8m0, or f8_e4m3 of f4_e2m1");
    e.that(is_scale(b.dtype, b_scales.dtype), "b_scales", "f32 or f8_e8m0, or f8_e4m3 of f4_e2m1");
    if (a.dtype == DType::f4_e2m1) {
      e.dtype("b", b, a.dtype).is("a_global", a_global, DType::f32, {1}).is("b_global", b_global, DType::f32, {1});
    } else {
      e.that(!a_global && !b_global && (a.dtype == DType::f8_e4m3 || b.dtype == DType::f8_e4m3),
             "one factor of f8_e4m3 at least, and one level of scales");
    }
    e.contiguous("a", a).contiguous("b", b);
    e.is("a_scales", a_scales, a_scales.dtype, a_blocks.grid(a.shape));
    e.is("b_scales", b_scales, b_scales.dtype, b_blocks.grid(b.shape));
    e.that(gemm.epilogue == Epilogue::none || gemm.epilogue == Epilogue::add, "epilogue none or add");
    gemm.check_result(e);
  }
  Cost cost() const { return {gemm.cost().flops, traffic(*this)}; }
  // Hopper accumulates FP8 GEMMs with about 14 mantissa bits.
  Tolerance tolerance(DType result) const {
    if (result != DType::f32 || four_bits()) return tolerance_of(result);
    return fast ? Tolerance{1e-6, 1e-2} : Tolerance{2e-7, 5e-3};
  }
  bool four_bits() const { return gemm.a.dtype == DType::f4_e2m1; }
};

// How a backend computes a ScaledGemm.
struct ScaledGemmPlan {
  Factors factors = Factors::floats;
  double moved = 0;  // bytes that its other kernels (e.g. dequantization) move, not overlapped with the GEMM
};

}  // namespace athanor
