// GELU (tanh form), SwiGLU and other activations with their derivatives; sums scaled by learned scalars.
#include <cmath>
#include <numbers>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

const double kInner = std::sqrt(2 / std::numbers::pi);  // sqrt(2/pi) and 0.044715: [Hendrycks & Gimpel 2016, sec. 2]
constexpr double kCubic = 0.044715;

struct Point {
  double value, slope;
};

Point activate(Activation f, double x) {
  switch (f) {
    case Activation::gelu: {
      const double t = std::tanh(kInner * (x + kCubic * x * x * x));
      const double dt = (1 - t * t) * kInner * (1 + 3 * kCubic * x * x);
      return {0.5 * x * (1 + t), 0.5 * (1 + t + x * dt)};
    }
    case Activation::gelu_erf: {
      const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);  // of a standard normal number
      return {x * below, below + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi)};
    }
    case Activation::silu: {
      const double s = sigmoid(x);
      return {x * s, s * (1 + x * (1 - s))};
    }
    case Activation::relu:
      return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0};
    case Activation::relu2:
      return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
  }
  return {};
}

double scalar(const Tensor& t) { return t ? load(t)[0] : 1; }

void add_to(const Tensor& t, double sum) {
  if (!t) return;
  Values v = load(t);
  v[0] += sum;
  store(t, v);
}

}  // namespace

void ReferenceOps::run(const GeluFwd& op, void*) {
  Values y = load(op.x);
  for (double& x : y.v) x = 0.5 * x * (1 + std::tanh(kInner * (x + kCubic * x * x * x)));
  store(op.y, y);
  store_amax(op.amax, op.y);
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
  store_amax(op.amax, op.dx);
}

void ReferenceOps::run(const SwigluFwd& op, void*) {
  const Values gu = load(op.gu);  // [N, gate F | up F]
  Values y = zeros_like(op.y);    // [N, F]
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t c = 0; c < y.cols; ++c) y(i, c) = gu(i, c) * sigmoid(gu(i, c)) * gu(i, y.cols + c);
  store(op.y, y);
  store_amax(op.amax, op.y);
}

void ReferenceOps::run(const SwigluBwd& op, void*) {
  const Values dy = load(op.dy), gu = load(op.gu);
  if (op.y) run(SwigluFwd{.y = op.y, .gu = op.gu}, nullptr);  // runs before gu is replaced
  Values dgu = zeros_like(op.dgu);
  for (int64_t i = 0; i < dy.rows; ++i)
    for (int64_t c = 0; c < dy.cols; ++c) {
      const double gate = gu(i, c), up = gu(i, dy.cols + c), s = sigmoid(gate);
      dgu(i, c) = dy(i, c) * up * s * (1 + gate * (1 - s));
      dgu(i, dy.cols + c) = dy(i, c) * gate * s;
    }
  store(op.dgu, dgu);
  store_amax(op.amax, op.dgu);
}

void ReferenceOps::run(const ActivationFwd& op, void*) {
  const Values x = load(op.x);
  Values y = zeros_like(op.y);
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t c = 0; c < y.cols; ++c) y(i, c) = activate(op.f, x(i, c)).value * (op.gated() ? x(i, y.cols + c) : 1);
  store(op.y, y);
  store_amax(op.amax, op.y);
}

void ReferenceOps::run(const ActivationBwd& op, void*) {
  const Values dy = load(op.dy), x = load(op.x);
  Values dx = zeros_like(op.dx);
  for (int64_t i = 0; i < dy.rows; ++i)
    for (int64_t c = 0; c < dy.cols; ++c) {
      const Point f = activate(op.f, x(i, c));
      dx(i, c) = dy(i, c) * f.slope * (op.gated() ? x(i, dy.cols + c) : 1);
      if (op.gated()) dx(i, dy.cols + c) = dy(i, c) * f.value;
    }
  store(op.dx, dx);
  store_amax(op.amax, op.dx);
}

void ReferenceOps::run(const ScaledSum& op, void*) {
  const Values x = load(op.x), z = load(op.z);
  const double a = scalar(op.a), b = scalar(op.b);
  Values y = zeros_like(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = a * x[i] + b * z[i];
  store(op.y, y);
}

void ReferenceOps::run(const ScaledSumBwd& op, void*) {
  const Values dy = load(op.dy), x = load(op.x), z = load(op.z);
  const double a = scalar(op.a), b = scalar(op.b);
  Values dx = zeros_like(op.dx), dz = load(op.dz);
  double da = 0, db = 0;
  for (int64_t i = 0; i < dy.size(); ++i) {
    dx[i] = a * dy[i], dz[i] += b * dy[i];
    da += dy[i] * x[i], db += dy[i] * z[i];
  }
  store(op.dx, dx);
  store(op.dz, dz);
  add_to(op.da, da);
  add_to(op.db, db);
}

void ReferenceOps::run(const GatedSum& op, void*) {
  Values y = zeros_like(op.y);
  const Values x = op.x ? load(op.x) : y, z = op.z ? load(op.z) : y;
  const Values gate = op.gate ? load(op.gate) : Values(y.rows, 1);
  const double a = scalar(op.a), b = scalar(op.b) * double(op.factor);
  const int64_t width = y.cols / op.groups();
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t c = 0; c < y.cols; ++c)
      y(i, c) = a * x(i, c) + b * (op.gate ? sigmoid(gate(i, c / width)) : 1) * z(i, c);
  store(op.y, y);
}

void ReferenceOps::run(const GatedSumBwd& op, void*) {
  const Values dy = load(op.dy), none = zeros_like(op.dy);
  const Values x = op.x ? load(op.x) : none, z = op.z ? load(op.z) : none;
  const Values gate = op.gate ? load(op.gate) : Values(dy.rows, 1);
  const double a = scalar(op.a), b = scalar(op.b), factor = double(op.factor);
  const int64_t width = dy.cols / op.groups();
  Values dx = none, dz = op.dz ? load(op.dz) : none, dgate(dy.rows, op.groups());
  double da = 0, db = 0;
  for (int64_t i = 0; i < dy.rows; ++i)
    for (int64_t c = 0; c < dy.cols; ++c) {
      const int64_t g = c / width;
      const double s = op.gate ? sigmoid(gate(i, g)) : 1;
      dx(i, c) = a * dy(i, c);
      dz(i, c) += b * factor * s * dy(i, c);
      dgate(i, g) += b * factor * s * (1 - s) * dy(i, c) * z(i, c);
      da += dy(i, c) * x(i, c), db += factor * s * dy(i, c) * z(i, c);
    }
  if (op.dx) store(op.dx, dx);
  if (op.dz) store(op.dz, dz);
  if (op.dgate) store(op.dgate, dgate);
  add_to(op.da, da);
  add_to(op.db, db);
}

}  // namespace athanor
