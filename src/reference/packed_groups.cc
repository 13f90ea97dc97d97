// Ops of ops/packed_groups.h, element by element.
#include "ops/packed_groups.h"

#include <algorithm>
#include <cmath>

#include "reference/reference_ops.h"
#include "reference/values.h"
#include "tensor/float8.h"

namespace athanor {
namespace {

// Applies the Hadamard transform to v[0, n): first to each half, then the halves become their sum and their difference.
void rotate(float* v, int64_t n) {
  if (n == 1) return;
  const int64_t half = n / 2;
  rotate(v, half);
  rotate(v + half, half);
  for (int64_t i = 0; i < half; ++i) {
    const float a = v[i], b = v[i + half];
    v[i] = a + b, v[i + half] = a - b;
  }
}
void rotate_group(float* v) {
  for (int64_t i = 0; i < kPackedGroup; i += kRotated) rotate(v + i, kRotated);
}

template <int Bits>
void pack(const PackGroups& op) {
  const int64_t n = op.x.numel();
  const Values value = load(op.x), minus = op.minus ? load(op.minus) : zeros_like(op.x);
  auto* groups = reinterpret_cast<PackedGroup<Bits>*>(op.groups.as<uint8_t>());
  for (int64_t g = 0; g < packed_groups(n); ++g) {
    float v[kPackedGroup] = {};
    for (int64_t i = 0; i < std::min(kPackedGroup, n - g * kPackedGroup); ++i) {
      const int64_t at = g * kPackedGroup + i;
      v[i] = float(value[at]) - float(minus[at]);
    }
    if (op.rotated) rotate_group(v);
    float amax = 0;
    for (const float x : v)
      if (!(std::abs(x) <= amax)) amax = std::isnan(amax) ? amax : std::abs(x);
    const CodeScale scale = code_scale(amax, Bits == 4 ? f4_e2m1::kMost : f8_e4m3::kMost, false);
    groups[g] = {.scale = scale.scale, .values = {}};
    constexpr int64_t kPerWord = 32 / Bits;
    for (int64_t i = 0; i < kPackedGroup; ++i) {
      const float x = v[i] * scale.factor;
      const uint32_t bits = Bits == 4 ? from_float<f4_e2m1>(x).bits : from_float<f8_e4m3>(x).bits;
      groups[g].values[i / kPerWord] |= bits << (Bits * (i % kPerWord));
    }
  }
}

template <int Bits>
void sum(const SumGroups& op) {
  const auto* groups = reinterpret_cast<const PackedGroup<Bits>*>(op.groups.as<uint8_t>());
  const int64_t n = op.y.numel(), count = packed_groups(n);
  Values y = op.accumulates ? load(op.y) : zeros_like(op.y);
  for (int64_t g = 0; g < count; ++g) {
    float v[kPackedGroup] = {};
    for (int k = 0; k < op.count; ++k)
      for (int64_t i = 0; i < kPackedGroup; ++i) {
        constexpr int64_t kPerWord = 32 / Bits;
        const PackedGroup<Bits>& group = groups[k * count + g];
        const auto bits = uint8_t(group.values[i / kPerWord] >> (Bits * (i % kPerWord)) & ((1u << Bits) - 1));
        const float value = (Bits == 4 ? to_float(f4_e2m1{bits}) : to_float(f8_e4m3{bits})) * group.scale;
        v[i] += value;
      }
    if (op.rotated) {
      rotate_group(v);
      for (float& x : v) x /= float(kRotated);
    }
    for (int64_t i = 0; i < std::min(kPackedGroup, n - g * kPackedGroup); ++i) {
      const int64_t at = g * kPackedGroup + i;
      y[at] = op.accumulates ? float(y[at]) + v[i] : v[i];
    }
  }
  store(op.y, y);
}

}  // namespace

void ReferenceOps::run(const PackGroups& op, void*) { op.format == DType::f4_e2m1 ? pack<4>(op) : pack<8>(op); }
void ReferenceOps::run(const SumGroups& op, void*) { op.format == DType::f4_e2m1 ? sum<4>(op) : sum<8>(op); }

}  // namespace athanor
