// Cases of vectors in 4 and 8 bits per element.
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

// A group whose elements are all 0, one of tiny and one of large values; ties between neighbouring E2M1 values.
double delta(uint64_t stream, int64_t i) {
  const int64_t group = i / kPackedGroup;
  if (group % 7 == 1) return 0;
  if (group % 7 == 2) return normal(0, 1e-40)(stream, i);
  if (group % 7 == 3) return normal(0, 1e36)(stream, i);
  if (group % 7 == 4) return i % kPackedGroup == 5 ? -6 : double(i % 25 - 12) / 4;
  return normal(0, 0.01)(stream, i);
}

// Groups with scales of some magnitudes and random values: any E2M1, and any E4M3 but NaN.
double byte_of_group(DType format, uint64_t stream, int64_t i) {
  const int64_t bytes = packed_bytes(format, kPackedGroup);
  if (i % bytes < 3) return double(i / bytes % 3 * 64);
  if (i % bytes == 3) return 0x3c + double(i / bytes % 2);
  return double(random_bits(kCaseSeed, stream, uint64_t(i)) % 127);
}

void pack_cases(Examiner& examine, const std::string& name, const PackGroups& pack) {
  examine(OpCase<PackGroups>{name, pack, {{"x", delta}, {"minus", delta}}, true});
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    examine(OpCase<PackGroups>{cat(name, " with ", bad),
                               pack,
                               {{"x", [=](uint64_t s, int64_t i) { return i % 500 == 3 ? bad : delta(s, i); }}},
                               true});
}

}  // namespace

void packed_groups_cases(Examiner& examine) {
  for (const int64_t n : {1, 7, 64, 65, 448, 1000, 40003})
    for (const bool rotated : {false, true})
      for (const DType format : {DType::f4_e2m1, DType::f8_e4m3})
        for (const DType dtype : {DType::f32, DType::bf16}) {
          if (n == 40003 && rotated != (dtype == DType::f32)) continue;
          const std::string name = cat(n, " ", dtype, " as ", format, rotated ? " rotated" : "");
          const Tensor x = tensor(dtype, {n});
          const int64_t bytes = packed_bytes(format, n);
          PackGroups pack{.groups = tensor(DType::u8, {bytes}), .x = x, .format = format, .rotated = rotated};
          pack_cases(examine, name, pack);
          if (n == 448) {
            pack.minus = x;
            pack_cases(examine, cat(name, " of a difference"), pack);
          }
          for (const int count : {1, 2, 5})
            examine(OpCase<SumGroups>{
                cat(name, " of ", count),
                {.y = x,
                 .groups = tensor(DType::u8, {count * bytes}),
                 .count = count,
                 .accumulates = count == 2,
                 .format = format,
                 .rotated = rotated},
                {{"groups", [=](uint64_t s, int64_t i) { return byte_of_group(format, s, i); }}, {"y", normal(0, 0.1)}},
                true});
        }
}

}  // namespace athanor
