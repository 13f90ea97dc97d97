// Vectors that ranks send each other in 4 or 8 bits per element: deltas of Streaming DiLoCo [Douillard et al. 2025],
// and gradients and weights as in SDP4Bit [Jia et al. 2024]. The rank that sends a vector rounds it once, and all ranks
// add the rounded vectors in f32 in the same order, so that all have the same bits. A group is 64 neighbouring
// elements, E2M1 or E4M3 values that share an f32 scale, amax / most (code_scale(), tensor/float8.h): with the scale
// 4.5 or 8.5 bits per element. Groups begin at the vector's first element. A group with Inf or NaN becomes NaN. Both
// papers use other formats. Streaming DiLoCo uses E3M0, powers of two, which represent smaller values but with larger
// gaps: in E2M1 elements below 1/24 of their group's amax become 0. SDP4Bit uses integers and larger groups.
#pragma once
#include "base/host_device.h"
#include "ops/op.h"

namespace athanor {

constexpr int64_t kPackedGroup = 64;
// Number of elements that are transformed together before they are rounded, so that an outlier is spread over them: a
// group's halves are multiplied by the Hadamard matrix H in Sylvester's order. H is not normalized; H H / 32 is the
// identity. In stages of elements 1, 2, 4, 8 and 16 apart, each stage in f32: (a, b) becomes (a + b, a - b).
constexpr int64_t kRotated = 32;

// Element i is the `Bits` bits from bit Bits (i % (32 / Bits)) of values[i / (32 / Bits)] on.
template <int Bits>
struct PackedGroup {
  float scale;
  uint32_t values[kPackedGroup * Bits / 32];
};
static_assert(sizeof(PackedGroup<4>) == 36 && sizeof(PackedGroup<8>) == 68);

ATHANOR_HOST_DEVICE constexpr int64_t packed_groups(int64_t elements) {
  return (elements + kPackedGroup - 1) / kPackedGroup;
}
// format: f4_e2m1 or f8_e4m3.
constexpr int64_t packed_bytes(DType format, int64_t elements) {
  const size_t group = format == DType::f4_e2m1 ? sizeof(PackedGroup<4>) : sizeof(PackedGroup<8>);
  return packed_groups(elements) * int64_t(group);
}
inline void expect_packed(const Expect& e, DType format, const Tensor& groups, int64_t elements, int64_t vectors = 1) {
  e.that(format == DType::f4_e2m1 || format == DType::f8_e4m3, "format", "f4_e2m1 or f8_e4m3")
      .is("groups", groups, DType::u8, {vectors * packed_bytes(format, elements)});
}

// groups = x, or x - minus, rounded to nearest, ties to even. Elements beyond n in the last group are 0.
struct PackGroups {
  Tensor groups;      // [packed_bytes(format, n)] u8
  Tensor x;           // [n] f32 or bf16
  Tensor minus = {};  // [n] like x; optional
  DType format = DType::f4_e2m1;
  bool rotated = false;
  static constexpr const char* kName = "pack_groups";
  auto fields() { return fields_of(Field::out("groups", groups), Field::in("x", x), Field::in("minus", minus)); }
  void check() const {
    const Expect e{kName};
    e.gradient("x", x, {x.numel()});
    if (minus) e.is("minus", minus, x.dtype, {x.numel()});
    expect_packed(e, format, groups, x.numel());
  }
  Cost cost() const { return {(rotated ? 7.0 : 2.0) * double(x.numel()), traffic(*this)}; }
};

// y = sum of `count` vectors: value times scale, rounded to f32, is added to the sum, vector by vector. Adds the sum to
// y if `accumulates`, in f32, rounded once.
struct SumGroups {
  Tensor y;       // [n] f32 or bf16
  Tensor groups;  // [count * packed_bytes(format, n)] u8
  int count = 1;
  bool accumulates = false;
  DType format = DType::f4_e2m1;
  bool rotated = false;  // true if the packed vectors are rotated
  static constexpr const char* kName = "sum_groups";
  auto fields() { return fields_of(Field{"y", accumulates ? Io::inout : Io::out, &y}, Field::in("groups", groups)); }
  void check() const {
    const Expect e{kName};
    e.that(count > 0, "count", "some").gradient("y", y, {y.numel()});
    expect_packed(e, format, groups, y.numel(), count);
  }
  Cost cost() const { return {(2.0 * count + (rotated ? 5 : 0)) * double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
