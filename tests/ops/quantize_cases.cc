// Cases of Quantize and ScaledGemm: every kind of block, ragged ends, all transpositions, values at the edges.
#include <cmath>
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

constexpr DType kCodes[] = {DType::f8_e4m3, DType::f8_e5m2};
constexpr Blocks kBlocks[] = {{0, 0}, {1, 0}, {0, 1}, {1, 128}, {128, 1}, {128, 128}, {1, 32}, {32, 1}};
constexpr Blocks kFp4{1, 16};

Quantize quantize(const Shape& s, DType quantized, DType of, const Blocks& blocks, DType scales = DType::f32) {
  return {.quantized = tensor(quantized, s),
          .scales = tensor(scales, blocks.grid(s)),
          .x = tensor(of, s),
          .blocks = blocks};
}

void quantize_cases_of(Examiner& examine) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Init zeros = constant(0), one_huge = listed({1e-3, -0.02, 3e38, 0, 0.5}),
             subnormal = listed({1e-40, -3e-41, 0, 2e-40}), spread = listed({1e-6, -1, 448, 1e-9, -3.7, 0.1, -0.0, 60}),
             bad = listed({1, 2, 3, kInf, 5, -6, std::numeric_limits<double>::quiet_NaN(), 8, 9, -kInf, 11});
  const std::pair<const std::string, Init> counts{"statistics", listed({1000, 3, 20, 0.25})};  // so far
  for (const Blocks& blocks : kBlocks)
    for (const DType quantized : kCodes) {
      const std::string name = cat("blocks ", blocks.rows, "x", blocks.cols, " ", quantized);
      for (const Shape& s : {Shape{1, 1}, Shape{3, 17}, Shape{37, 260}, Shape{140, 131}, Shape{21, 272}}) {
        for (const DType of : {DType::f32, DType::bf16})
          examine(OpCase<Quantize>{cat(s, " ", name, " of ", of), quantize(s, quantized, of, blocks), {}, true});
        Quantize power = quantize(s, quantized, DType::bf16, blocks);
        power.power_of_two = true;
        examine(OpCase<Quantize>{cat(s, " ", name, " powers of two"), power, {}, true});
        examine(OpCase<Quantize>{
            cat(s, " ", name, " e8m0"), quantize(s, quantized, DType::bf16, blocks, DType::f8_e8m0), {}, true});
      }
      for (const Init& x : {zeros, one_huge, subnormal, spread, bad})
        for (const DType scales : {DType::f32, DType::f8_e8m0}) {
          Quantize edges = quantize({37, 260}, quantized, DType::f32, blocks, scales);
          edges.statistics = tensor(DType::f64, {QuantizeStatistics::kNumbers});
          examine(OpCase<Quantize>{cat("edges ", name, " ", scales), edges, {{"x", x}, counts}, true});
        }
    }
  for (const Blocks& blocks : {Blocks{1, 32}, Blocks{1, 0}})
    examine(OpCase<Quantize>{
        cat("of f16, columns ", blocks.cols), quantize({40, 72}, DType::f8_e4m3, DType::f16, blocks), {}, true});
}

// Two-level scales: all options of Quantize, with edges of every kind; blocks far below the amax saturate and
// underflow.
void fp4_values(Examiner& examine) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> falling;
  for (int i = 0; i < 70; ++i)
    for (int k = 0; k < 16; ++k) falling.push_back((k % 2 ? -1 : 1) * std::ldexp(0.3 + k * 0.04, 8 - i / 2));
  const std::vector<std::pair<const char*, Init>> values = {
      {"normal", normal()},
      {"zeros", constant(0)},
      {"one huge", listed({1e-3, -0.02, 3e38, 0, 0.5})},
      {"subnormal", listed({1e-40, -3e-41, 0, 2e-40})},
      {"falling", listed(falling)},
      {"bad", listed({1, 2, 3, kInf, 5, -6, std::numeric_limits<double>::quiet_NaN(), 8, 9, -kInf, 11})}};
  for (const Blocks& blocks : {Blocks{1, 16}, Blocks{16, 1}, Blocks{16, 16}})
    for (const auto& [name, x] : values)
      for (const Shape& s : {Shape{37, 261}, Shape{48, 80}})
        for (int flags = 0; flags < 4; ++flags) {
          const bool at_random = flags & 1, hadamard = flags & 2;
          if (hadamard && (blocks == Blocks{16, 16} || s.dim[0] != 48)) continue;
          const Quantize op{.quantized = tensor(DType::f4_e2m1, s),
                            .scales = tensor(DType::f8_e4m3, blocks.grid(s)),
                            .global = tensor(DType::f32, {1}),
                            .x = tensor(hadamard ? DType::bf16 : DType::f32, s),
                            .blocks = blocks,
                            .hadamard = hadamard,
                            .at_random = at_random,
                            .seed = 5,
                            .stream = 99,
                            .statistics = tensor(DType::f64, {QuantizeStatistics::kNumbers})};
          examine(OpCase<Quantize>{cat(s, " fp4 ", name, " blocks ", blocks.rows, "x", blocks.cols,
                                       at_random ? " at random" : "", hadamard ? " hadamard" : ""),
                                   op,
                                   {{"x", x}, {"statistics", constant(0)}},
                                   true});
        }
}

// Given factors, including 0, with the amax as an additional output.
void given_factors(Examiner& examine) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType quantized : kCodes)
    for (const double factor : {0.0, 1e-3, 30.0, 0x1p126})
      for (const auto& [name, x] :
           {std::pair{"normal", normal()}, {"zeros", constant(0)}, {"bad", listed({1, 2, 3, kInf, 5, -6, 8})}})
        for (const double amax : {0.0, 1e9, kInf}) {
          Quantize op = quantize({37, 261}, quantized, DType::bf16, {});
          op.factor = op.step_amax = tensor(DType::f32, {1});
          op.statistics = tensor(DType::f64, {QuantizeStatistics::kNumbers});
          examine(OpCase<Quantize>{
              cat(quantized, " factor ", factor, " of ", name, " after ", amax),
              op,
              {{"x", x}, {"statistics", constant(0)}, {"factor", constant(factor)}, {"step_amax", constant(amax)}},
              true});
        }
}

// The amax as passed by the op that made x; it is used unchecked.
void given_amax(Examiner& examine) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType quantized : kCodes)
    for (const double amax : {0.0, 1e-40, 0.5, 3e38, kInf, std::numeric_limits<double>::quiet_NaN()})
      for (const int written : {0, 1, 2}) {  // quantized values; transposed ones; both
        Quantize op = quantize({37, 261}, quantized, DType::bf16, {});
        op.amax = tensor(DType::f32, {1});
        op.statistics = tensor(DType::f64, {QuantizeStatistics::kNumbers});
        op.transpose_only = written == 1;
        if (op.transpose_only) op.quantized = tensor(quantized, {261, 37});
        if (written == 2) op.transposed = tensor(quantized, {261, 37});
        examine(OpCase<Quantize>{cat(quantized, " largest ", amax, " written ", written),
                                 op,
                                 {{"statistics", constant(0)}, {"amax", constant(amax)}},
                                 true});
      }
}

// Transposed output, alone or in addition to the plain one.
void transposed_quantized(Examiner& examine) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Init bad = listed({1, 2, 3, kInf, 5, -6, 8, 1e-9, 0, 0.3, -1});
  for (const Blocks& blocks : {Blocks{0, 0}, Blocks{0, 1}, Blocks{128, 1}})
    for (const bool transpose_only : {true, false})
      for (const DType quantized : kCodes)
        for (const Shape& s : {Shape{1, 1}, Shape{37, 261}, Shape{136, 48}, Shape{140, 131}, Shape{19, 1064}})
          for (const auto& [of, x] : {std::pair{DType::bf16, normal()}, {DType::bf16, bad}, {DType::f32, bad}}) {
            const bool both = !transpose_only && blocks != Blocks{};  // and along rows
            Quantize op = quantize(s, quantized, of, both ? transposed(blocks) : blocks);
            const Tensor counts = tensor(DType::f64, {QuantizeStatistics::kNumbers});
            if (both)
              op.transposed_scales = tensor(DType::f32, op.blocks.grid(transposed_shape(s))),
              op.transposed_statistics = counts;
            op.transpose_only = transpose_only;
            if (transpose_only)
              op.quantized = tensor(quantized, transposed_shape(s)), op.scales = tensor(DType::f32, op.scale_grid());
            if (!transpose_only) op.transposed = tensor(quantized, transposed_shape(s));
            op.statistics = counts;
            const Values values{{"x", x}, {"statistics", constant(0)}, {"transposed_statistics", constant(0)}};
            const std::string name = cat(s, transpose_only ? " transposed " : " and transposed ", blocks.rows, "x",
                                         blocks.cols, " ", quantized, " of ", of);
            examine(OpCase<Quantize>{name, op, values, true});
            if (of == DType::f32) continue;
            op.power_of_two = true;
            examine(OpCase<Quantize>{cat(name, " powers of two"), op, values, true});
            if (blocks != Blocks{}) continue;
            op.factor = op.step_amax = tensor(DType::f32, {1});
            for (const double factor : {0.0, 30.0})
              examine(OpCase<Quantize>{
                  cat(name, " factor ", factor),
                  op,
                  {{"x", x}, {"statistics", constant(0)}, {"factor", constant(factor)}, {"step_amax", constant(2)}},
                  true});
          }
}

void delayed_cases(Examiner& examine) {
  const Init values = listed({3, 0, 1e-9, 2, 40, std::numeric_limits<double>::infinity(), 0, 2e5, 1e-40, 3e38, 7});
  const Init past = listed({1, 0, 2.5, 1e-6, 0, 300, 0, 1e-3, 4e4, 1e-41, 3e38, 0.1, 0, 5});
  for (const int64_t length : {1, 2, 17})
    for (const int ended : {0, 1, 2})  // no step, one that was taken, one that was skipped
      for (const int margin : {0, 3})
        for (const bool power_of_two : {false, true})
          for (const bool none : {false, true}) {
            const int64_t rows = length == 1 ? 1 : 5;
            DelayedScales op{.histories = std::vector<Tensor>(size_t(rows), tensor(DType::f32, {3 * length})),
                             .amax = tensor(DType::f32, {rows, 3}),
                             .factors = tensor(DType::f32, {rows, 3}),
                             .quantized = {DType::f8_e4m3, DType::f8_e4m3, DType::f8_e5m2},
                             .length = length,
                             .margin = margin,
                             .power_of_two = power_of_two};
            if (ended > 0) op.state = tensor(DType::u8, {int64_t(sizeof(StepState))});
            StepState state;
            state.skip = ended == 2;
            examine(OpCase<DelayedScales>{cat("length ", length, " ended ", ended, " margin ", margin,
                                              power_of_two ? " powers" : "", none ? " zeros" : ""),
                                          op,
                                          {{"amax", none ? constant(0) : values},
                                           {"histories", none ? constant(0) : past},
                                           {"state", bytes_of(state)}},
                                          true});
          }
}

struct Size {
  int64_t m, n, k;
};

void scaled_products(Examiner& examine, bool four_bits) {
  const Init scale = uniform(0.001, 0.01);
  for (const Size& s : {Size{1, 1, 1}, Size{17, 34, 65}, Size{130, 70, 257}, Size{16, 300, 144}})
    for (int flags = 0; flags < 8; ++flags) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
      const Shape a = ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, b = tb ? Shape{s.n, s.k} : Shape{s.k, s.n};
      for (const Blocks& blocks : kBlocks) {
        const Blocks other = blocks == Blocks{1, 128} ? Blocks{128, 128} : blocks;
        const DType type = blocks.cols == 32 || blocks.rows == 32 ? DType::f8_e8m0 : DType::f32;
        const DType d = accumulate && flags != 7 ? DType::f32 : DType::bf16;
        ScaledGemm op{.gemm = {.d = tensor(d, {s.m, s.n}),
                               .a = tensor(flags & 1 ? DType::f8_e5m2 : DType::f8_e4m3, a),
                               .b = tensor(DType::f8_e4m3, b),
                               .ta = ta,
                               .tb = tb,
                               .accumulate = accumulate},
                      .a_scales = tensor(type, blocks.grid(a)),
                      .b_scales = tensor(type, other.grid(b)),
                      .a_blocks = blocks,
                      .b_blocks = other};
        const std::string name = cat(s.m, "x", s.n, "x", s.k, ta ? " ta" : "", tb ? " tb" : "",
                                     accumulate ? " accumulate " : " ", d, " blocks ", blocks.rows, "x", blocks.cols);
        const Values scales{{"a_scales", scale}, {"b_scales", scale}};
        if (!four_bits) examine(OpCase<ScaledGemm>{name, op, scales});
        if (four_bits && blocks == Blocks{0, 0}) {
          ScaledGemm fp4 = op;
          fp4.gemm.a.dtype = fp4.gemm.b.dtype = DType::f4_e2m1;
          fp4.a_blocks = kFp4, fp4.b_blocks = {16, 16};
          fp4.a_scales = tensor(DType::f8_e4m3, kFp4.grid(a));
          fp4.b_scales = tensor(DType::f8_e4m3, fp4.b_blocks.grid(b));
          fp4.a_global = fp4.b_global = tensor(DType::f32, {1});
          const Init block = listed({0.25, 448, 0.001953125, 3, 60});
          examine(OpCase<ScaledGemm>{
              cat(name, " fp4"),
              fp4,
              {{"a_scales", block}, {"b_scales", block}, {"a_global", constant(3e-4)}, {"b_global", constant(0.7)}}});
        }
        if (accumulate || four_bits) continue;
        op.gemm.bias = tensor(DType::bf16, {s.n});
        op.gemm.epilogue = Epilogue::add;
        op.gemm.aux = op.gemm.d;
        examine(OpCase<ScaledGemm>{cat(name, " bias add"), op, scales});
      }
    }
}

}  // namespace

// Cases with tensors that few ops have come first, so that bugs planted in these are found early.
void quantize_cases(Examiner& examine) {
  transposed_quantized(examine);
  given_factors(examine);
  given_amax(examine);
  quantize_cases_of(examine);
  scaled_products(examine, false);
  delayed_cases(examine);
}

void transposed_cases(Examiner& examine) { transposed_quantized(examine); }

void fp4_cases(Examiner& examine) {
  fp4_values(examine);
  scaled_products(examine, true);
}

}  // namespace athanor
