// The ops of ops/packed_groups.h, one group at a time in the L1 cache.
#include "ops/packed_groups.h"

#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cpu/simd.h"
#include "tensor/float8.h"

namespace athanor {
namespace {

constexpr int64_t kGroupsAtOnce = 256;  // groups per thread and chunk

struct E2m1 {
  static constexpr int kBits = 4;
  static constexpr float kMost = f4_e2m1::kMost;
  ATHANOR_INLINE static uint32_t bits(float x) { return from_float<f4_e2m1>(x).bits; }
  static float value(int bits) { return to_float(f4_e2m1{uint8_t(bits)}); }
};
struct E4m3 {
  static constexpr int kBits = 8;
  static constexpr float kMost = f8_e4m3::kMost;
  ATHANOR_INLINE static uint32_t bits(float x) { return from_float<f8_e4m3>(x).bits; }
  static float value(int bits) { return to_float(f8_e4m3{uint8_t(bits)}); }
};

// Applies a Hadamard transform to every kRotated consecutive elements of a group.
ATHANOR_CLONES void rotate(float* v) {
  for (int64_t apart = 1; apart < kRotated; apart *= 2)
    for (int64_t begin = 0; begin < kPackedGroup; begin += 2 * apart)
      for (int64_t i = begin; i < begin + apart; ++i) {
        const float a = v[i], b = v[i + apart];
        v[i] = a + b, v[i + apart] = a - b;
      }
}

template <class Format>
ATHANOR_CLONES void pack(const float* x, PackedGroup<Format::kBits>& group) {
  uint32_t most = 0;  // bits of the amax; NaN is larger than all numbers
  for (int64_t i = 0; i < kPackedGroup; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const CodeScale scale = code_scale(std::bit_cast<float>(most), Format::kMost, false);
  group.scale = scale.scale;
  uint32_t bits[kPackedGroup];
  for (int64_t i = 0; i < kPackedGroup; ++i) bits[i] = Format::bits(x[i] * scale.factor);
  constexpr int64_t kPerWord = 32 / Format::kBits;
  for (int64_t word = 0; word < kPackedGroup / kPerWord; ++word) {
    uint32_t values = 0;
    for (int64_t i = 0; i < kPerWord; ++i) values |= bits[word * kPerWord + i] << (Format::kBits * i);
    group.values[word] = values;
  }
}

template <class Format>
ATHANOR_CLONES void add(const PackedGroup<Format::kBits>& group, const float* values, float* sum) {
  constexpr int64_t kPerWord = 32 / Format::kBits;
  for (int64_t i = 0; i < kPackedGroup; ++i) {
    const uint32_t bits = group.values[i / kPerWord] >> (Format::kBits * (i % kPerWord)) & ((1u << Format::kBits) - 1);
    const float value = values[bits] * group.scale;
    sum[i] += value;
  }
}

// Elements [first, first + n) as f32, n at most a group's; absent ones become 0.
void load(const Tensor& t, int64_t first, int64_t n, float* v) {
  if (t.dtype == DType::bf16)
    load_row(v, t.as<bf16>() + first, n);
  else
    std::copy_n(t.as<float>() + first, n, v);
  std::fill(v + n, v + kPackedGroup, 0.0f);
}

template <class Format>
void pack_all(const PackGroups& op, ThreadPool& pool) {
  const int64_t n = op.x.numel();
  auto* groups = reinterpret_cast<PackedGroup<Format::kBits>*>(op.groups.as<uint8_t>());
  pool.parallel_ranges(packed_groups(n), kGroupsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * kPackedGroup, count = std::min(kPackedGroup, n - first);
      float x[kPackedGroup], minus[kPackedGroup];
      load(op.x, first, count, x);
      if (op.minus) {
        load(op.minus, first, count, minus);
        for (int64_t i = 0; i < kPackedGroup; ++i) x[i] -= minus[i];
      }
      if (op.rotated) rotate(x);
      pack<Format>(x, groups[g]);
    }
  });
}

template <class Format>
void sum_all(const SumGroups& op, ThreadPool& pool) {
  const int64_t n = op.y.numel(), count = packed_groups(n);
  const auto* groups = reinterpret_cast<const PackedGroup<Format::kBits>*>(op.groups.as<uint8_t>());
  float values[1 << Format::kBits];
  for (int bits = 0; bits < 1 << Format::kBits; ++bits) values[bits] = Format::value(bits);
  pool.parallel_ranges(count, kGroupsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * kPackedGroup, size = std::min(kPackedGroup, n - first);
      float sum[kPackedGroup] = {}, before[kPackedGroup];
      for (int k = 0; k < op.count; ++k) add<Format>(groups[k * count + g], values, sum);
      if (op.rotated) {
        rotate(sum);
        for (float& x : sum) x *= 1.0f / kRotated;
      }
      if (op.accumulates) {
        load(op.y, first, size, before);
        for (int64_t i = 0; i < kPackedGroup; ++i) sum[i] += before[i];
      }
      if (op.y.dtype == DType::bf16)
        store_row(op.y.as<bf16>() + first, sum, size);
      else
        std::copy_n(sum, size, op.y.as<float>() + first);
    }
  });
}

}  // namespace

void CpuOps::run(const PackGroups& op, void*) {
  op.format == DType::f4_e2m1 ? pack_all<E2m1>(op, pool_) : pack_all<E4m3>(op, pool_);
}
void CpuOps::run(const SumGroups& op, void*) {
  op.format == DType::f4_e2m1 ? sum_all<E2m1>(op, pool_) : sum_all<E4m3>(op, pool_);
}

}  // namespace athanor
