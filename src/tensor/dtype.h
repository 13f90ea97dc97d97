// Element types and the only dtype switch of the program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "base/error.h"
#include "tensor/float8.h"

namespace athanor {

// Numeric values are stable, since files may contain them; names are those of safetensors in lower case.
enum class DType : uint8_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  i32 = 3,
  u8 = 4,
  i64 = 5,
  f64 = 6,
  i16 = 7,
  f8_e4m3 = 8,
  f8_e5m2 = 9,
  f8_e8m0 = 10,  // scales
  f4_e2m1 = 11   // stored one per byte, in backends that emulate it
};

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
    case DType::f4_e2m1:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16",     "i32",     "u8",      "i64",
                                    "f64", "i16",  "f8_e4m3", "f8_e5m2", "f8_e8m0", "f4_e2m1"};
  return kNames[static_cast<int>(t)];
}

inline std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::i16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};

template <>
struct DTypeOf<f8_e4m3> {
  static constexpr DType value = DType::f8_e4m3;
};
template <>
struct DTypeOf<f8_e5m2> {
  static constexpr DType value = DType::f8_e5m2;
};
template <>
struct DTypeOf<f4_e2m1> {
  static constexpr DType value = DType::f4_e2m1;
};
template <>
struct DTypeOf<e8m0> {
  static constexpr DType value = DType::f8_e8m0;
};

// by_float(t.dtype, [&]<class T>() { kernel<T>(...); }): calls fn with the C++ type of the float dtype.
template <class Fn>
decltype(auto) by_float(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn.template operator()<float>();
    case DType::bf16:
      return fn.template operator()<bf16>();
    case DType::f16:
      return fn.template operator()<f16>();
    default:
      throw Error(cat("expected a float dtype (f32, bf16, f16), got ", dtype));
  }
}

// Dtypes of quantized values. by_code() and by_scale() work like by_float(), for quantized values and their scales.
constexpr bool is_code(DType t) { return t == DType::f8_e4m3 || t == DType::f8_e5m2 || t == DType::f4_e2m1; }
constexpr float max_code(DType t) {
  return t == DType::f4_e2m1 ? f4_e2m1::kMost : t == DType::f8_e5m2 ? f8_e5m2::kMost : f8_e4m3::kMost;
}

template <class Fn>
decltype(auto) by_code(DType dtype, Fn&& fn) {
  CHECK(is_code(dtype), "expected a quantized type (f8_e4m3, f8_e5m2, f4_e2m1), got ", dtype);
  if (dtype == DType::f4_e2m1) return fn.template operator()<f4_e2m1>();
  return dtype == DType::f8_e4m3 ? fn.template operator()<f8_e4m3>() : fn.template operator()<f8_e5m2>();
}
template <class Fn>
decltype(auto) by_scale(DType dtype, Fn&& fn) {
  CHECK(dtype == DType::f32 || dtype == DType::f8_e8m0 || dtype == DType::f8_e4m3,
        "expected scales (f32, f8_e8m0, f8_e4m3), got ", dtype);
  if (dtype == DType::f8_e4m3) return fn.template operator()<f8_e4m3>();
  return dtype == DType::f32 ? fn.template operator()<float>() : fn.template operator()<e8m0>();
}

}  // namespace athanor
