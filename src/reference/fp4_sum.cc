// The ops of ops/fp4_sum.h, element by element.
#include "ops/fp4_sum.h"

#include <algorithm>

#include "reference/reference_ops.h"
#include "tensor/float8.h"

namespace athanor {

void ReferenceOps::run(const PackFp4& op, void*) {
  const float* x = op.x.as<float>();
  auto* records = reinterpret_cast<Fp4Record*>(op.records.as<uint8_t>());
  for (int64_t g = 0; g < fp4_groups(op.x.numel()); ++g) {
    const int64_t begin = g * kFp4Group, end = std::min(op.x.numel(), begin + kFp4Group);
    float amax = 0;
    for (int64_t i = begin; i < end; ++i)
      if (!(std::abs(x[i]) <= amax)) amax = std::isnan(amax) ? amax : std::abs(x[i]);
    const CodeScale scale = code_scale(amax, f4_e2m1::kMost, false);
    records[g] = {.scale = scale.scale, .values = {}};
    for (int64_t i = begin; i < end; ++i)
      records[g].values[(i - begin) / 8] |= uint32_t(from_float<f4_e2m1>(x[i] * scale.factor).bits) << (4 * (i % 8));
  }
}

void ReferenceOps::run(const SumFp4& op, void*) {
  const auto* records = reinterpret_cast<const Fp4Record*>(op.records.as<uint8_t>());
  const int64_t n = op.y.numel(), groups = fp4_groups(n);
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int w = 0; w < op.workers; ++w) {
      const Fp4Record& record = records[w * groups + i / kFp4Group];
      const auto bits = uint8_t(record.values[i % kFp4Group / 8] >> (4 * (i % 8)) & 0xf);
      const float value = to_float(f4_e2m1{bits}) * record.scale;
      sum += value;
    }
    op.y.as<float>()[i] = sum;
  }
}

}  // namespace athanor
