// Dot products of 8-bit integers, compiled once per instruction set and chosen at run time. Sums of integers are exact,
// so every instruction set gives the same bits.
#pragma once
#include <cstdint>

namespace athanor {

// out[i, j] = sum over k of a[i, k] (w[j, k] - 128)
struct Int8Dots {
  int32_t* out;  // out[i * out_stride + j]
  int64_t out_stride;
  const int8_t* a;      // [m, k]: -127 .. 127
  const int32_t* sums;  // [m]: sum of each row of a
  const uint8_t* w;     // [n, k]: 1 .. 255
  int64_t m, n, k;
};
using Int8DotsFn = void (*)(const Int8Dots&);

Int8DotsFn int8_dots();  // the best version for this CPU
// "AVX-512 VNNI", "AVX2" or "baseline"; null if this CPU or compiler does not support it.
Int8DotsFn int8_dots_named(const char* name);

}  // namespace athanor
