// The ops of ops/fp4_sum.h, one group at a time in the L1 cache.
#include "ops/fp4_sum.h"

#include <algorithm>

#include "cpu/cpu_ops.h"
#include "tensor/float8.h"

namespace athanor {
namespace {

constexpr int64_t kGroupsAtOnce = 256;  // groups per thread and chunk

void pack_group(const float* x, Fp4Record& record) {
  uint32_t most = 0;  // bits of the amax; NaN is larger than all numbers
  for (int64_t i = 0; i < kFp4Group; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const CodeScale scale = code_scale(std::bit_cast<float>(most), f4_e2m1::kMost, false);
  record.scale = scale.scale;
  for (int64_t word = 0; word < kFp4Group / 8; ++word) {
    uint32_t values = 0;
    for (int i = 0; i < 8; ++i) values |= uint32_t(from_float<f4_e2m1>(x[word * 8 + i] * scale.factor).bits) << (4 * i);
    record.values[word] = values;
  }
}

// Adds a group to `sum`. A group has only 16 distinct values.
void add_group(const Fp4Record& record, float* sum) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = to_float(f4_e2m1{uint8_t(i)}) * record.scale;
  for (int64_t i = 0; i < kFp4Group; ++i) sum[i] += values[record.values[i / 8] >> (4 * (i % 8)) & 0xf];
}

}  // namespace

void CpuOps::run(const PackFp4& op, void*) {
  const int64_t n = op.x.numel();
  const float* x = op.x.as<float>();
  auto* records = reinterpret_cast<Fp4Record*>(op.records.as<uint8_t>());
  pool_.parallel_ranges(fp4_groups(n), kGroupsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * kFp4Group, count = std::min(kFp4Group, n - first);
      if (count == kFp4Group) {
        pack_group(x + first, records[g]);
        continue;
      }
      float rest[kFp4Group] = {};
      std::copy_n(x + first, count, rest);
      pack_group(rest, records[g]);
    }
  });
}

void CpuOps::run(const SumFp4& op, void*) {
  const int64_t n = op.y.numel(), groups = fp4_groups(n);
  const auto* records = reinterpret_cast<const Fp4Record*>(op.records.as<uint8_t>());
  pool_.parallel_ranges(groups, kGroupsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      float sum[kFp4Group] = {};
      for (int w = 0; w < op.workers; ++w) add_group(records[w * groups + g], sum);
      std::copy_n(sum, std::min(kFp4Group, n - g * kFp4Group), op.y.as<float>() + g * kFp4Group);
    }
  });
}

}  // namespace athanor
