// GELU (tanh form) and SwiGLU with their derivatives.
#include <cmath>
#include <numbers>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

const double kInner = std::sqrt(2 / std::numbers::pi);  // sqrt(2/pi) and 0.044715: [Hendrycks & Gimpel 2016, sec. 2]
constexpr double kCubic = 0.044715;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void ReferenceOps::run(const GeluFwd& op, void*) {
  Values y = load(op.x);
  for (double& x : y.v) x = 0.5 * x * (1 + std::tanh(kInner * (x + kCubic * x * x * x)));
  store(op.y, y);
  store_largest(op.amax, op.y);
}

void ReferenceOps::run(const GeluBwd& op, void*) {
  const Values dy = load(op.dy), x = load(op.x);
  Values dx = zeros_like(op.dx);
  for (int64_t i = 0; i < x.size(); ++i) {
    const double t = std::tanh(kInner * (x[i] + kCubic * x[i] * x[i] * x[i]));
    const double dt = (1 - t * t) * kInner * (1 + 3 * kCubic * x[i] * x[i]);
    dx[i] = dy[i] * 0.5 * (1 + t + x[i] * dt);
  }
  store(op.dx, dx);
  store_largest(op.amax, op.dx);
}

void ReferenceOps::run(const SwigluFwd& op, void*) {
  const Values gu = load(op.gu);  // [N, gate F | up F]
  Values y = zeros_like(op.y);    // [N, F]
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t c = 0; c < y.cols; ++c) y(i, c) = gu(i, c) * sigmoid(gu(i, c)) * gu(i, y.cols + c);
  store(op.y, y);
  store_largest(op.amax, op.y);
}

void ReferenceOps::run(const SwigluBwd& op, void*) {
  const Values dy = load(op.dy), gu = load(op.gu);
  if (op.y) run(SwigluFwd{.y = op.y, .gu = op.gu}, nullptr);  // before gu is replaced
  Values dgu = zeros_like(op.dgu);
  for (int64_t i = 0; i < dy.rows; ++i)
    for (int64_t c = 0; c < dy.cols; ++c) {
      const double gate = gu(i, c), up = gu(i, dy.cols + c), s = sigmoid(gate);
      dgu(i, c) = dy(i, c) * up * s * (1 + gate * (1 - s));
      dgu(i, dy.cols + c) = dy(i, c) * gate * s;
    }
  store(op.dgu, dgu);
  store_largest(op.amax, op.dgu);
}

}  // namespace athanor
