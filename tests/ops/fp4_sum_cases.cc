// Cases of the sums of vectors in 4 bits per element.
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

// A group whose elements are all 0, one of tiny and one of large values; ties between neighbouring E2M1 values.
double delta(uint64_t stream, int64_t i) {
  const int64_t group = i / kFp4Group;
  if (group % 7 == 1) return 0;
  if (group % 7 == 2) return normal(0, 1e-40)(stream, i);
  if (group % 7 == 3) return normal(0, 1e37)(stream, i);
  if (group % 7 == 4) return i % kFp4Group == 5 ? -6 : double(i % 25 - 12) / 4;
  return normal(0, 0.01)(stream, i);
}

// Records with scales of some magnitudes and random values.
double byte_of_fp4(uint64_t stream, int64_t i) {
  constexpr auto kBytes = int64_t(sizeof(Fp4Record));
  if (i % kBytes < 3) return double(i / kBytes % 3 * 64);
  return i % kBytes == 3 ? 0x3c + double(i / kBytes % 2) : double(random_bits(kCaseSeed, stream, uint64_t(i)) % 256);
}

}  // namespace

void fp4_sum_cases(Examiner& examine) {
  for (const int64_t n : {1, 7, 64, 65, 448, 1000, 40003}) {
    const Tensor f32 = tensor(DType::f32, {n});
    const PackFp4 pack{.records = tensor(DType::u8, {fp4_bytes(n)}), .x = f32};
    examine(OpCase<PackFp4>{cat(n), pack, {{"x", delta}}, true});
    for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
      examine(OpCase<PackFp4>{cat(n, " with ", bad),
                              pack,
                              {{"x", [=](uint64_t s, int64_t i) { return i % 500 == 3 ? bad : delta(s, i); }}},
                              true});
    for (const int workers : {1, 2, 3, 5})
      examine(OpCase<SumFp4>{cat(n, " of ", workers),
                             {.y = f32, .records = tensor(DType::u8, {workers * fp4_bytes(n)}), .workers = workers},
                             {{"records", byte_of_fp4}},
                             true});
  }
}

}  // namespace athanor
