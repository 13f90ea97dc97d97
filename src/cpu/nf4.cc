// Dequantization of NF4 weights.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"

namespace athanor {
namespace {

float absmax_of(const DequantizeNf4& op, int64_t block) {
  if (!op.nested()) return op.absmax.as<float>()[block];
  const float share = op.map.as<float>()[op.absmax.as<uint8_t>()[block]];
  const float product = share * op.nested_absmax.as<float>()[block / kNf4NestedBlock];
  return product + *op.offset.as<float>();
}

}  // namespace

// A block has only 16 distinct results, which are rounded once and then copied.
void CpuOps::run(const DequantizeNf4& op, void*) {
  const auto* packed = op.packed.as<uint8_t>();
  by_float(op.y.dtype, [&]<class T>() {
    T* y = op.y.as<T>();
    pool_.parallel_ranges(op.y.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin / kNf4Block; block * kNf4Block < end; ++block) {
        const float absmax = absmax_of(op, block);
        T results[16];
        for (int i = 0; i < 16; ++i) results[i] = from_float<T>(kNf4.value[i] * absmax);
        const int64_t first = block * kNf4Block, n = std::min(kNf4Block, end - first);
        for (int64_t i = 0; i + 1 < n; i += 2) {
          const uint8_t pair = packed[(first + i) / 2];
          y[first + i] = results[pair >> 4];
          y[first + i + 1] = results[pair & 15];
        }
        if (n % 2 == 1) y[first + n - 1] = results[packed[(first + n - 1) / 2] >> 4];
      }
    });
  });
}

}  // namespace athanor
