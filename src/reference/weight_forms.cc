// Frozen weights in NF4, and columns scaled as in DoRA.
#include <cmath>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

void ReferenceOps::run(const DequantizeNf4& op, void*) {
  Values y = zeros_like(op.y);
  const auto* packed = op.packed.as<uint8_t>();
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t block = i / kNf4Block;
    float absmax = 0;
    if (op.nested()) {
      const float share = op.map.as<float>()[op.absmax.as<uint8_t>()[block]];
      absmax = share * op.nested_absmax.as<float>()[block / kNf4NestedBlock];
      absmax += *op.offset.as<float>();
    } else {
      absmax = op.absmax.as<float>()[block];
    }
    const int value = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
    y[i] = double(kNf4.value[value]) * double(absmax);
  }
  store(op.y, y);
}

void ReferenceOps::run(const ScaleByMagnitude& op, void*) {
  const Values x = load(op.x);
  Values y = op.accumulate ? load(op.y) : zeros_like(op.y);
  const Values m = op.magnitude ? load(op.magnitude) : Values(1, y.cols),
               b = op.bias ? load(op.bias) : Values(1, y.cols);
  for (int64_t c = 0; c < y.cols; ++c) {
    const double factor = op.magnitude ? double(float(m[c] / std::sqrt(op.squares.as<double>()[c]))) : 1;
    for (int64_t r = 0; r < y.rows; ++r) y(r, c) += x(r, c) * factor + b[c];
  }
  store(op.y, y);
}

void ReferenceOps::run(const ScaleByMagnitudeBwd& op, void*) {
  Values dx = load(op.dy), dm = load(op.dm);
  const Values x = load(op.x), m = load(op.magnitude);
  for (int64_t c = 0; c < dx.cols; ++c) {
    const double norm = std::sqrt(op.squares.as<double>()[c]);
    for (int64_t r = 0; r < dx.rows; ++r) {
      dm[c] += dx(r, c) * x(r, c) / norm;
      dx(r, c) *= double(float(m[c] / norm));
    }
  }
  store(op.dx, dx);
  store(op.dm, dm);
}

}  // namespace athanor
