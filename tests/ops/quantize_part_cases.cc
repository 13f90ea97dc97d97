// Cases of AmaxOfPart and QuantizePart: parts that begin and end within rows and blocks, and all parts of a matrix
// compared with Quantize of the whole.
#include <cmath>
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct PartKind {
  Blocks blocks;
  DType quantized;
};
constexpr PartKind kPartKinds[] = {
    {{0, 0}, DType::f8_e4m3}, {{0, 0}, DType::f8_e5m2}, {{128, 128}, DType::f8_e4m3}, {{16, 16}, DType::f4_e2m1}};
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

AmaxOfPart largest_of(const MatrixPart& part, DType of, int64_t size) {
  AmaxOfPart op{.amax = tensor(DType::f32, part.grid()), .x = tensor(of, {size}), .part = part};
  if (of != DType::bf16) op.of_all = tensor(DType::f32, {1});
  return op;
}
QuantizePart quantize_part(const MatrixPart& part, DType of, int64_t size, DType quantized) {
  QuantizePart op{.quantized = tensor(quantized, {size}),
                  .x = tensor(of, {size}),
                  .amax = tensor(DType::f32, part.grid()),
                  .statistics = tensor(DType::f64, {QuantizeStatistics::kNumbers}),
                  .part = part};
  if (op.two_levels()) op.of_all = tensor(DType::f32, {1});
  return op;
}

const std::pair<const char*, Init> kValues[] = {{"normal", normal()},
                                                {"zeros", constant(0)},
                                                {"edges", listed({1e-6, -1, 448, 1e-40, -3.7, 0.1, -0.0, 60})},
                                                {"bad", listed({1, 2, kNan, 4, 5, -kInf, 7, 0, 9})}};

void one_part(Examiner& examine, const PartKind& kind, const Shape& matrix, int64_t first, int64_t size) {
  const MatrixPart part{matrix, first, kind.blocks};
  const std::string name = cat(matrix, " from ", first, " ", size, " blocks ", kind.blocks.rows, " ", kind.quantized);
  for (const DType of : {DType::f32, DType::bf16, DType::f16})
    examine(OpCase<AmaxOfPart>{
        cat(name, " of ", of), largest_of(part, of, size), {{"amax", constant(0.5)}, {"of_all", constant(2)}}, true});
  for (const auto& [what, x] : kValues) {
    examine(OpCase<AmaxOfPart>{cat(name, " ", what),
                               largest_of(part, DType::f32, size),
                               {{"x", x}, {"amax", constant(0)}, {"of_all", constant(0)}},
                               true});
    for (const auto& [found, amax] :
         {std::pair{"some", listed({3, 0, 500, 1e-40, 3e38, 0.2})}, {"bad", constant(kInf)}})
      for (const bool power_of_two : {false, true}) {
        QuantizePart op = quantize_part(part, DType::bf16, size, kind.quantized);
        if (op.two_levels() && power_of_two) continue;
        op.power_of_two = power_of_two;
        const Values values{{"x", x}, {"amax", amax}, {"of_all", amax}, {"statistics", constant(4)}};
        examine(OpCase<QuantizePart>{cat(name, " ", what, " largest ", found, power_of_two ? " powers of two" : ""), op,
                                     values, true});
        if (kind.blocks != Blocks{} || power_of_two) continue;
        op.factor = tensor(DType::f32, {1});
        for (const double factor : {0.0, 30.0}) {
          Values given = values;
          given["factor"] = constant(factor);
          examine(OpCase<QuantizePart>{cat(name, " ", what, " largest ", found, " factor ", factor), op, given, true});
        }
      }
  }
}

// Two parts, split anywhere: the maxima of both, then their quantized values and scales, match Quantize.
void whole_matrix(Examiner& examine, const PartKind& kind, const Shape& matrix, int64_t cut) {
  if (examine.lists() || !examine.wanted(QuantizePart::kName)) return;
  const int64_t size = matrix.numel();
  const auto value = [](int64_t i) { return normal(0, 1 + double(i % 7))(3, i); };
  const auto from = [&](int64_t first) { return [&, first](uint64_t, int64_t i) { return value(first + i); }; };
  Quantize all{
      .quantized = tensor(kind.quantized, matrix),
      .scales = tensor(kind.quantized == DType::f4_e2m1 ? DType::f8_e4m3 : DType::f32, kind.blocks.grid(matrix)),
      .x = tensor(DType::bf16, matrix),
      .blocks = kind.blocks};
  if (all.two_levels()) all.global = tensor(DType::f32, {1});
  const auto want = examine.backend_results(OpCase<Quantize>{"whole", all, {{"x", from(0)}}});

  Init amax = constant(0);
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, size - cut}}) {
    const AmaxOfPart op = largest_of({matrix, first, kind.blocks}, DType::bf16, count);
    const auto got = examine.backend_results(OpCase<AmaxOfPart>{"part", op, {{"x", from(first)}, {"amax", amax}}});
    amax = listed(decoded(DType::f32, result(got, "amax").after));
  }
  const int64_t blocks = all.scales.numel();
  double most = 0;
  for (int64_t i = 0; i < blocks; ++i) most = std::max(most, amax(0, i));
  std::vector<std::byte> quantized;
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, size - cut}}) {
    QuantizePart op = quantize_part({matrix, first, kind.blocks}, DType::bf16, count, kind.quantized);
    const auto got = examine.backend_results(OpCase<QuantizePart>{
        "part", op, {{"x", from(first)}, {"amax", amax}, {"of_all", constant(most)}, {"statistics", constant(0)}}});
    const auto& part = result(got, "quantized").after;
    quantized.insert(quantized.end(), part.begin(), part.end());
  }
  Quantize scales{.quantized = tensor(kind.quantized, {blocks, 1}),
                  .scales = tensor(all.scales.dtype, {blocks, 1}),
                  .global = all.global,
                  .x = tensor(DType::f32, {blocks, 1}),
                  .blocks = {1, all.two_levels() ? 16 : 0}};
  const auto of_blocks = examine.backend_results(OpCase<Quantize>{"scales", scales, {{"x", amax}}});
  const std::string name = cat(matrix, " cut at ", cut, " blocks ", kind.blocks.rows, " ", kind.quantized);
  const auto same = [&](const char* tensor, const std::vector<std::byte>& got) {
    if (got != result(want, tensor).after)
      examine.note(
          {Fault::wrong_value, QuantizePart::kName, "quantized", cat(name, ": ", tensor, " not those of Quantize")});
  };
  same("quantized", quantized);
  same("scales", result(of_blocks, "scales").after);
  if (all.two_levels()) same("global", result(of_blocks, "global").after);
}

}  // namespace

void quantize_part_cases(Examiner& examine) {
  for (const PartKind& kind : kPartKinds) {
    one_part(examine, kind, {2, 8}, 0, 16);
    one_part(examine, kind, {37, 272}, 8 * 34 * 3 + 16, 8 * 200);
    one_part(examine, kind, {300, 144}, 144 * 120 + 8, 144 * 150);
    one_part(examine, kind, {16, 1048}, 1048 * 3, 1048 * 13);
    for (const int64_t cut : {8, 128 * 144 + 64, 300 * 144 - 8}) whole_matrix(examine, kind, {300, 144}, cut);
  }
}

}  // namespace athanor
