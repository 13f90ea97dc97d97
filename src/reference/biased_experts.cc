// Biases of experts and the clamped activation of GPT-OSS.
#include <algorithm>
#include <cmath>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

size_t checked_slot(const Tensor& slots, int64_t row, const Values& weights) {
  const int32_t slot = slots.as<int32_t>()[row];
  CHECK(slot >= 0 && size_t(slot) < weights.v.size(), "slots: ", slot, " of row ", row, " is not below ",
        weights.v.size());
  return size_t(slot);
}

// Calls fn(row, expert) for each row of an expert.
template <class Fn>
void each_row(const Tensor& offsets, int64_t experts, int64_t rows, Fn&& fn) {
  const int32_t* first = offsets.as<int32_t>();
  CHECK(first[0] == 0 && first[experts] <= rows, "offsets: from ", first[0], " to ", first[experts], " of ", rows,
        " rows");
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = first[e]; r < first[e + 1]; ++r) fn(r, e);
}

}  // namespace

void ReferenceOps::run(const AddExpertBias& op, void*) {
  const Values bias = load(op.bias), weights = op.weights ? load(op.weights) : Values(0, 0);
  Values x = load(op.x);
  each_row(op.offsets, op.experts(), x.rows, [&](int64_t r, int64_t e) {
    const double weight = op.weights ? weights.v[checked_slot(op.slots, r, weights)] : 1;
    for (int64_t c = 0; c < x.cols; ++c) x(r, c) += weight * bias(e, c);
  });
  store(op.x, x);
}

void ReferenceOps::run(const AddExpertBiasBwd& op, void*) {
  const Values dx = load(op.dx), bias = load(op.bias), weights = op.weights ? load(op.weights) : Values(0, 0);
  Values dbias = op.dbias ? load(op.dbias) : Values(bias.rows, bias.cols);
  Values dweights = op.weights ? load(op.dweights) : Values(0, 0);
  each_row(op.offsets, op.experts(), dx.rows, [&](int64_t r, int64_t e) {
    const size_t slot = op.weights ? checked_slot(op.slots, r, weights) : 0;
    for (int64_t c = 0; c < dx.cols; ++c) {
      dbias(e, c) += (op.weights ? weights.v[slot] : 1) * dx(r, c);
      if (op.weights) dweights.v[slot] += dx(r, c) * bias(e, c);
    }
  });
  if (op.dbias) store(op.dbias, dbias);
  if (op.weights) store(op.dweights, dweights);
}

namespace {

struct ClampedGlu {
  double y, dgate, dup;  // derivatives of y
  ClampedGlu(double gate, double up, double limit, double steepness) {
    const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit), s = 1 / (1 + std::exp(-steepness * g));
    y = (u + 1) * g * s;
    dgate = gate <= limit ? (u + 1) * s * (1 + steepness * g * (1 - s)) : 0;
    dup = std::abs(up) <= limit ? g * s : 0;
  }
};

}  // namespace

void ReferenceOps::run(const ClampedGluFwd& op, void*) {
  const Values gu = load(op.gu), weights = load(op.weights);
  Values y = zeros_like(op.y);
  for (int64_t r = 0; r < y.rows; ++r) {
    const double weight = weights.v[checked_slot(op.slots, r, weights)];
    for (int64_t c = 0; c < y.cols; ++c)
      y(r, c) = weight * ClampedGlu(gu(r, c), gu(r, y.cols + c), double(op.limit), double(op.kSteepness)).y;
  }
  store(op.y, y);
}

void ReferenceOps::run(const ClampedGluBwd& op, void*) {
  const Values dy = load(op.dy), gu = load(op.gu), weights = load(op.weights);
  Values dgu = zeros_like(op.dgu), dweights = zeros_like(op.dweights), y = zeros_like(op.y);
  for (int64_t r = 0; r < dy.rows; ++r) {
    const size_t slot = checked_slot(op.slots, r, weights);
    for (int64_t c = 0; c < dy.cols; ++c) {
      const ClampedGlu f(gu(r, c), gu(r, dy.cols + c), double(op.limit), double(ClampedGluFwd::kSteepness));
      y(r, c) = weights.v[slot] * f.y;
      dweights.v[slot] += dy(r, c) * f.y;
      dgu(r, c) = weights.v[slot] * dy(r, c) * f.dgate;
      dgu(r, dy.cols + c) = weights.v[slot] * dy(r, c) * f.dup;
    }
  }
  store(op.y, y);
  store(op.dgu, dgu);
  store(op.dweights, dweights);
}

}  // namespace athanor
