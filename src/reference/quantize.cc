// Codes of 8 bits and products of them, from their definitions. Codes are found by search over all of them, scales in
// double, so that nothing here shares arithmetic with what it specifies.
#include <cmath>
#include <limits>

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

// The code nearest to x, of two the even one.
template <class T>
T nearest(double x) {
  if (std::isnan(x)) return {0x7f};
  T best{0};
  double least = std::numeric_limits<double>::infinity();
  for (uint8_t bits = 0; bits < 0x7f; ++bits) {
    const double value = double(to_float(T{bits})), distance = std::abs(value - std::abs(x));
    if (!(value <= T::kMost) || distance > least || (distance == least && bits % 2 == 1)) continue;
    best = {bits}, least = distance;
  }
  if (std::abs(x) > T::kMost) best = from_float<T>(T::kMost);
  return {uint8_t(best.bits | (std::signbit(x) ? 0x80 : 0))};
}

}  // namespace

void ReferenceOps::run(const Quantize& op, void*) {
  const Values x = load(op.x);
  Values scales = zeros_like(op.scales);
  QuantizeStatistics found;
  each_block(op.x, op.blocks, [&](int64_t block, const Extent& extent) {
    double amax = 0;
    bool finite = true;
    each_element(extent, [&](int64_t r, int64_t c) {
      amax = std::max(amax, std::abs(x(r, c)));
      finite = finite && std::isfinite(x(r, c));
    });
    double factor = amax == 0 ? 1 : double(float(std::min(double(largest_code(op.codes.dtype)) / amax, 0x1p126)));
    if (op.powers()) factor = std::exp2(std::floor(std::log2(factor)));
    if (!finite) factor = 0;
    scales[block] = finite ? 1 / factor : std::numeric_limits<double>::quiet_NaN();
    by_code(op.codes.dtype, [&]<class T>() {
      each_element(extent, [&](int64_t r, int64_t c) {
        T& code = op.codes.as<T>()[r * x.cols + c];
        code = nearest<T>(double(float(x(r, c) * factor)));
        found.largest = std::isnan(x(r, c)) ? x(r, c) : std::max(found.largest, std::abs(x(r, c)));
        if (!finite || x(r, c) == 0) return;
        found.values += 1;
        found.saturated += std::abs(x(r, c)) > double(float(1 / factor)) * double(T::kSaturates);
        found.underflowed += to_float(code) == 0;
      });
    });
  });
  store(op.scales, scales);
  if (op.statistics) static_cast<QuantizeStatistics*>(op.statistics.data)->add(found);
}

// The product of what the codes stand for, which doubles hold.
void ReferenceOps::run(const ScaledGemm& op, void*) {
  const auto decoded = [](const Tensor& codes, const Tensor& scales, const Blocks& blocks) {
    Values v = load(codes);
    const Values s = load(scales);
    each_block(codes, blocks, [&](int64_t block, const Extent& e) {
      each_element(e, [&](int64_t r, int64_t c) { v(r, c) *= s[block]; });
    });
    return v;
  };
  multiply(op.product, decoded(op.product.a, op.a_scales, op.a_blocks),
           decoded(op.product.b, op.b_scales, op.b_blocks));
  if (op.product.epilogue == Epilogue::add)
    run(Add{.y = op.product.d, .a = op.product.d, .b = op.product.aux}, nullptr);
}

}  // namespace athanor
