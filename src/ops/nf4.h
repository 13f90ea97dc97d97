// NF4 [Dettmers et al. 2023, "QLoRA"]: 4-bit values, two per byte, with an amax ("absmax") per block of 64, which may
// itself be 8 bits wide (double quantization). Tables, among them the 16 values, and arithmetic match bitsandbytes bit
// for bit. Quantization to NF4 is in param/nf4.h.
#pragma once
#include "base/host_device.h"
#include "ops/op.h"

namespace athanor {

constexpr int64_t kNf4Block = 64;         // values that share an absmax
constexpr int64_t kNf4NestedBlock = 256;  // absmaxes that share a nested absmax
constexpr int64_t kNf4MapSize = 256;      // number of values that an 8-bit absmax can index

struct Nf4Table {
  float value[16] = {-1.0f,
                     -0.6961928009986877f,
                     -0.5250730514526367f,
                     -0.39491748809814453f,
                     -0.28444138169288635f,
                     -0.18477343022823334f,
                     -0.09105003625154495f,
                     0.0f,
                     0.07958029955625534f,
                     0.16093020141124725f,
                     0.24611230194568634f,
                     0.33791524171829224f,
                     0.44070982933044434f,
                     0.5626170039176941f,
                     0.7229568362236023f,
                     1.0f};
};
inline constexpr Nf4Table kNf4;

// y = value x absmax of its block, rounded once. If nested, absmax = map[absmax] x nested absmax of its block + offset;
// the product is rounded to f32 before the sum.
struct DequantizeNf4 {
  Tensor y;                   // [n] float
  Tensor packed;              // [(n + 1) / 2] u8: the first value is in the high half
  Tensor absmax;              // [blocks] f32, or nested u8
  Tensor nested_absmax = {};  // [nested blocks] f32; nested only, like map and offset
  Tensor map = {};            // [256] f32
  Tensor offset = {};         // [1] f32
  static constexpr const char* kName = "dequantize_nf4";

  bool nested() const { return absmax.dtype == DType::u8; }
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("packed", packed), Field::in("absmax", absmax),
                     Field::in("nested_absmax", nested_absmax), Field::in("map", map), Field::in("offset", offset));
  }
  void check() const {
    Expect e{kName};
    const int64_t n = y.numel(), blocks = div_ceil(n, kNf4Block);
    e.floating("y", y).is("y", y, y.dtype, {n}).is("packed", packed, DType::u8, {div_ceil<int64_t>(n, 2)});
    if (!nested()) {
      e.is("absmax", absmax, DType::f32, {blocks});
      e.that(!nested_absmax && !map && !offset, "no nested scales with an absmax in f32");
      return;
    }
    e.is("absmax", absmax, DType::u8, {blocks});
    e.is("nested_absmax", nested_absmax, DType::f32, {div_ceil(blocks, kNf4NestedBlock)});
    e.is("map", map, DType::f32, {kNf4MapSize}).is("offset", offset, DType::f32, {1});
  }
  Cost cost() const { return {double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
