// Quantization to FP8 and FP4 and GEMMs of quantized operands, from their definitions. Quantized values are found by
// exhaustive search and scales are computed in double, so that no arithmetic is shared with the code under test.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "reference/gemm.h"
#include "reference/reference_ops.h"

namespace athanor {
namespace {

// The rows and columns of a block.
struct Extent {
  int64_t row, rows, col, cols;
};
template <class Fn>
void each_block(const Tensor& matrix, const Blocks& blocks, Fn&& fn) {
  const int64_t h = blocks.rows ? blocks.rows : matrix.rows(), w = blocks.cols ? blocks.cols : matrix.cols();
  const Shape grid = blocks.grid(matrix.shape);
  for (int64_t r = 0; r < grid[0]; ++r)
    for (int64_t c = 0; c < grid[1]; ++c)
      fn(r * grid[1] + c, Extent{r * h, std::min(h, matrix.rows() - r * h), c * w, std::min(w, matrix.cols() - c * w)});
}

template <class Fn>
void each_element(const Extent& e, Fn&& fn) {
  for (int64_t r = e.row; r < e.row + e.rows; ++r)
    for (int64_t c = e.col; c < e.col + e.cols; ++c) fn(r, c);
}

template <class T>
constexpr uint8_t kOnes = 0xff;
template <>
constexpr uint8_t kOnes<f4_e2m1> = 0xf;

// Returns the value of type T nearest to x; ties go to the even encoding.
template <class T>
T nearest(double x) {
  constexpr uint8_t kMagnitudes = kOnes<T> / 2;
  if (std::isnan(x)) return {kMagnitudes};
  T best{0};
  double least = std::numeric_limits<double>::infinity();
  for (uint8_t bits = 0; bits <= kMagnitudes; ++bits) {
    const double value = double(to_float(T{bits})), distance = std::abs(value - std::abs(x));
    if (!(value <= T::kMost) || distance > least || (distance == least && bits % 2 == 1)) continue;
    best = {bits}, least = distance;
  }
  if (std::abs(x) > T::kMost) best = from_float<T>(T::kMost);
  return {uint8_t(best.bits | (std::signbit(x) ? kMagnitudes + 1 : 0))};
}

// Stochastic rounding: to the neighbor away from zero if `uniform` is below the relative position of x between its
// neighbors.
f4_e2m1 at_random(double x, double uniform) {
  if (std::isnan(x)) return {0x7};
  uint8_t below = 0;
  const auto value = [](int bits) { return double(to_float(f4_e2m1{uint8_t(bits)})); };
  while (below < 0x7 && value(below + 1) <= std::abs(x)) ++below;
  if (below < 0x7 && uniform < (std::abs(x) - value(below)) / (value(below + 1) - value(below))) ++below;
  return {uint8_t(below | (std::signbit(x) ? 0x8 : 0))};
}

// H diag(signs) x / 4 along the blocks, as f32.
void transform(Values& x, const Blocks& blocks) {
  const int64_t apart = blocks.rows == 1 ? 1 : x.cols;
  const Values from = x;
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t place = (blocks.rows == 1 ? i % x.cols : i / x.cols) % kHadamard;
    double sum = 0;
    for (int64_t k = 0; k < kHadamard; ++k) {
      const bool minus = (std::popcount(uint64_t(place & k)) + (kHadamardSigns >> k & 1)) % 2 == 1;
      const double term = from[i + (k - place) * apart];
      sum += minus ? -term : term;
    }
    x[i] = double(float(sum / 4) + 0.0f);  // + 0.0f turns -0 into 0
  }
}

// Quantization factor of a block, and its stored scale; the scale of the whole matrix is stored separately.
struct Step {
  double factor, scale;
};
double f32(double x) { return double(float(x)); }

Step one_level(DType quantized, bool powers, double amax) {
  double factor = amax == 0 ? 1 : f32(std::min(double(max_code(quantized)) / amax, 0x1p126));
  if (powers) factor = std::exp2(std::floor(std::log2(factor)));
  return {factor, 1 / factor};
}
double factor_of_all(double amax) { return amax == 0 ? 1 : f32(std::min(2688 / amax, 0x1p110)); }
Step two_levels(double amax, double global_factor) {
  const double scale = double(to_float(nearest<f8_e4m3>(f32(f32(amax / 6) * global_factor))));
  return {scale == 0 ? 0 : f32(global_factor / scale), scale};
}

}  // namespace

void ReferenceOps::run(const Quantize& op, void*) {
  if (op.transposed_scales) {
    run(op.without_transposed(), nullptr);
    return run(op.alone(), nullptr);
  }
  if (op.transpose_only || op.transposed) {
    const Shape grid = op.blocks.grid(op.x.shape);
    std::vector<uint8_t> quantized(size_t(op.x.numel()));
    std::vector<float> scales(size_t(grid[0] * grid[1]));
    Quantize plain = op;
    plain.transpose_only = false, plain.transposed = {};
    if (op.transpose_only)
      plain.quantized = {quantized.data(), op.quantized.dtype, op.x.shape},
      plain.scales = {scales.data(), DType::f32, grid};
    run(plain, nullptr);
    auto* out = static_cast<uint8_t*>(op.transpose_only ? op.quantized.data : op.transposed.data);
    const auto* in = static_cast<const uint8_t*>(plain.quantized.data);
    for (int64_t r = 0; r < op.x.rows(); ++r)
      for (int64_t c = 0; c < op.x.cols(); ++c) out[c * op.x.rows() + r] = in[r * op.x.cols() + c];
    for (int64_t r = 0; op.transpose_only && r < grid[0]; ++r)
      for (int64_t c = 0; c < grid[1]; ++c) op.scales.as<float>()[c * grid[0] + r] = scales[size_t(r * grid[1] + c)];
    return;
  }
  Values x = load(op.x);
  if (op.hadamard) transform(x, op.blocks);
  Values scales = zeros_like(op.scales);
  QuantizeStatistics found;
  bool all_finite = true;
  for (int64_t i = 0; i < x.size(); ++i) {
    all_finite = all_finite && std::isfinite(x[i]);
    found.amax = std::isnan(x[i]) ? x[i] : std::max(found.amax, std::abs(x[i]));
  }
  const double global = factor_of_all(found.amax);
  const uint64_t stream = op.stream + std::bit_cast<uint32_t>(float(found.amax));
  if (op.two_levels())
    *op.global.as<float>() = all_finite ? float(1 / global) : std::numeric_limits<float>::quiet_NaN();
  each_block(op.x, op.blocks, [&](int64_t block, const Extent& extent) {
    double amax = 0;
    bool finite = all_finite || !op.two_levels();
    each_element(extent, [&](int64_t r, int64_t c) {
      amax = std::max(amax, std::abs(x(r, c)));
      finite = finite && std::isfinite(x(r, c));
    });
    if (op.amax) amax = double(*op.amax.as<float>()), finite = std::isfinite(amax);
    Step step = op.two_levels() ? two_levels(amax, global) : one_level(op.quantized.dtype, op.powers(), amax);
    if (op.factor && *op.factor.as<float>() > 0)
      step = {double(*op.factor.as<float>()), 1 / double(*op.factor.as<float>())};
    if (op.step_amax) {
      auto& all = *op.step_amax.as<float>();
      all = all_finite ? float(std::max(amax, double(all))) : std::numeric_limits<float>::infinity();
    }
    if (!finite) {
      step.scale = op.two_levels() ? 0 : std::numeric_limits<double>::quiet_NaN();
      if (!op.factor || *op.factor.as<float>() <= 0) step.factor = 0;
    }
    scales[block] = step.scale;
    const double whole = op.two_levels() ? step.scale * f32(1 / global) : f32(step.scale);
    by_code(op.quantized.dtype, [&]<class T>() {
      each_element(extent, [&](int64_t r, int64_t c) {
        T& code = op.quantized.as<T>()[r * x.cols + c];
        const double scaled = f32(x(r, c) * step.factor);
        code = nearest<T>(scaled);
        if constexpr (std::is_same_v<T, f4_e2m1>)
          if (op.at_random) code = at_random(scaled, double(random_uniform(op.seed, stream, uint64_t(r * x.cols + c))));
        if (!finite || x(r, c) == 0) return;
        found.values += 1;
        found.saturated += step.factor > 0 && std::abs(x(r, c)) > f32(whole) * double(T::kSaturates);
        found.underflowed += to_float(code) == 0;
      });
    });
  });
  store(op.scales, scales);
  if (op.statistics) static_cast<QuantizeStatistics*>(op.statistics.data)->add(found);
}

void ReferenceOps::run(const AmaxOfPart& op, void*) {
  const Values x = load(op.x);
  for (int64_t i = 0; i < x.size(); ++i) {
    const float now = std::isfinite(x[i]) ? float(std::abs(x[i])) : std::numeric_limits<float>::infinity();
    float& most = op.amax.as<float>()[op.part.block_of(i)];
    most = std::max(most, now);
    if (op.of_all) *op.of_all.as<float>() = std::max(*op.of_all.as<float>(), now);
  }
}

void ReferenceOps::run(const QuantizePart& op, void*) {
  const Values x = load(op.x), of_blocks = load(op.amax);
  const double all = op.of_all ? double(*op.of_all.as<float>()) : 0, global = factor_of_all(all);
  const double given = op.factor ? double(*op.factor.as<float>()) : 0;
  QuantizeStatistics found;
  by_code(op.quantized.dtype, [&]<class T>() {
    for (int64_t i = 0; i < x.size(); ++i) {
      const double amax = of_blocks[op.part.block_of(i)];
      const bool finite = std::isfinite(amax) && std::isfinite(all);
      Step step = op.two_levels() ? two_levels(amax, global) : one_level(op.quantized.dtype, op.power_of_two, amax);
      if (!finite) step.factor = 0;
      if (given > 0) step = {given, 1 / given};
      const T code = op.quantized.as<T>()[i] = nearest<T>(f32(x[i] * step.factor));
      found.amax = std::isnan(x[i]) ? x[i] : std::max(found.amax, std::abs(x[i]));
      if (!finite || x[i] == 0) continue;
      const double scale = op.two_levels() ? f32(step.scale * f32(1 / global)) : f32(step.scale);
      found.values += 1;
      found.saturated += step.factor > 0 && std::abs(x[i]) > scale * double(T::kSaturates);
      found.underflowed += to_float(code) == 0;
    }
  });
  if (op.statistics) static_cast<QuantizeStatistics*>(op.statistics.data)->add(found);
}

void ReferenceOps::run(const DelayedScales& op, void*) {
  StepState step{.skip = 1};
  if (op.state) std::memcpy(&step, op.state.data, sizeof step);
  Values found = load(op.amax), factors = zeros_like(op.factors);
  for (size_t row = 0; row < op.histories.size(); ++row) {
    if (op.histories[row].numel() == 0) continue;
    const Values before = load(op.histories[row]);
    Values after = before;
    for (int64_t c = 0; c < op.columns(); ++c) {
      const double now = found[int64_t(row) * op.columns() + c];
      double amax = 0;
      for (int64_t i = 0; i < op.length; ++i) {
        const int64_t at = c * op.length + i;
        if (!step.skip && std::isfinite(now)) after[at] = i == 0 ? now : before[at - 1];
        amax = std::max(amax, after[at]);
      }
      if (amax == 0) continue;
      double factor = f32(std::min(double(max_code(op.quantized[size_t(c)])) / amax, 0x1p126));
      if (op.power_of_two) factor = std::exp2(std::floor(std::log2(factor)));
      factors[int64_t(row) * op.columns() + c] = std::max(factor * std::exp2(-op.margin), 0x1p-126);
    }
    store(op.histories[row], after);
  }
  store(op.factors, factors);
  store(op.amax, zeros_like(op.amax));
}

// GEMM of the dequantized operands, which are exact in double.
void ReferenceOps::run(const ScaledGemm& op, void*) {
  const auto decoded = [](const Tensor& quantized, const Tensor& scales, const Tensor& global, const Blocks& blocks) {
    Values v = load(quantized), s = load(scales);
    for (int64_t i = 0; global && i < s.size(); ++i) s[i] *= double(*global.as<float>());
    each_block(quantized, blocks, [&](int64_t block, const Extent& e) {
      each_element(e, [&](int64_t r, int64_t c) { v(r, c) *= s[block]; });
    });
    return v;
  };
  multiply(op.gemm, decoded(op.gemm.a, op.a_scales, op.a_global, op.a_blocks),
           decoded(op.gemm.b, op.b_scales, op.b_global, op.b_blocks));
  if (op.gemm.epilogue == Epilogue::add) run(Add{.y = op.gemm.d, .a = op.gemm.d, .b = op.gemm.aux}, nullptr);
}

}  // namespace athanor
