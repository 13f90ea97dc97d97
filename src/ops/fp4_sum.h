// Sums over workers of vectors that each worker sends in 4 bits per element, for Streaming DiLoCo [Douillard et al.
// 2025]: a vector is rounded once, by the worker that sends it to all others, and everyone adds up the rounded vectors
// in f32, in one order, so that all have the same bits. 64 neighbouring elements share an f32 scale, amax
// / 6 (code_scale(), tensor/float8.h), and are E2M1 values: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. With the
// scale that is 4.5 bits per element. The paper has E3M0, powers of two, which reach further down and have larger gaps:
// here elements below 1/24 of their group's amax become 0. Groups begin at the vector's first element. A group with Inf
// or NaN becomes NaN.
#pragma once
#include "base/host_device.h"
#include "ops/op.h"

namespace athanor {

constexpr int64_t kFp4Group = 64;

// A group of elements. Element i has bits 4 (i % 8) to 4 (i % 8) + 3 of values[i / 8].
struct Fp4Record {
  float scale;
  uint32_t values[kFp4Group / 8];
};
static_assert(sizeof(Fp4Record) == 36);

ATHANOR_HOST_DEVICE constexpr int64_t fp4_groups(int64_t elements) { return (elements + kFp4Group - 1) / kFp4Group; }
constexpr int64_t fp4_bytes(int64_t elements) { return fp4_groups(elements) * int64_t{sizeof(Fp4Record)}; }

// Rounds x to nearest, ties to even. Elements beyond n in the last group are 0.
struct PackFp4 {
  Tensor records;  // [fp4_bytes(n)] u8
  Tensor x;        // [n] f32
  static constexpr const char* kName = "pack_fp4";
  std::array<Field, 2> fields() { return {{{"records", Io::out, &records}, {"x", Io::in, &x}}}; }
  void check() const {
    Expect{kName}.is("x", x, DType::f32, {x.numel()}).is("records", records, DType::u8, {fp4_bytes(x.numel())});
  }
  Cost cost() const { return {2.0 * double(x.numel()), traffic(*this)}; }
};

// y = sum of the workers' vectors: value times scale, rounded to f32, is added to the sum, vector by vector.
struct SumFp4 {
  Tensor y;        // [n] f32
  Tensor records;  // [workers * fp4_bytes(n)] u8
  int workers = 1;
  static constexpr const char* kName = "sum_fp4";
  std::array<Field, 2> fields() { return {{{"y", Io::out, &y}, {"records", Io::in, &records}}}; }
  void check() const {
    Expect{kName}
        .that(workers > 0, "workers", "some")
        .is("y", y, DType::f32, {y.numel()})
        .is("records", records, DType::u8, {workers * fp4_bytes(y.numel())});
  }
  Cost cost() const { return {2.0 * workers * double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
