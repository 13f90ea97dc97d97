#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace athanor {
namespace {

// max propagates NaN, like the program's other reductions.
template <class A>
A largest(A a, A b) {
  if constexpr (std::is_floating_point_v<A>)
    if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::max(a, b);
}

// Reduces T in Accumulator; load and store convert. Works in blocks, so that each loop over elements is vectorized and
// the sums stay in the L1 cache. `out` may be one of the parts.
template <class T, class Accumulator, class Load, class Store>
void reduce_as(void* out, std::span<const void* const> parts, int64_t n, Reduce how, Load load, Store store) {
  constexpr int64_t kBlock = 1024;
  std::array<Accumulator, size_t(kBlock)> sums;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const auto count = size_t(std::min(kBlock, n - begin));
    for (size_t p = 0; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + begin;
      if (p == 0)
        for (size_t i = 0; i < count; ++i) sums[i] = load(part[i]);
      else if (how == Reduce::max)
        for (size_t i = 0; i < count; ++i) sums[i] = largest<Accumulator>(sums[i], load(part[i]));
      else
        for (size_t i = 0; i < count; ++i) sums[i] += load(part[i]);
    }
    if (how == Reduce::avg)
      for (size_t i = 0; i < count; ++i) sums[i] /= Accumulator(parts.size());
    T* to = static_cast<T*>(out) + begin;
    for (size_t i = 0; i < count; ++i) to[i] = store(sums[i]);
  }
}

template <class T>
void reduce_integers(void* out, std::span<const void* const> parts, int64_t n, Reduce how) {
  CHECK(how != Reduce::avg, "integers have no exact average");
  using Wide = uint64_t;  // sums wrap around; signed overflow would be undefined
  if (how == Reduce::max)
    reduce_as<T, T>(
        out, parts, n, how, [](T x) { return x; }, [](T x) { return x; });
  else
    reduce_as<T, Wide>(
        out, parts, n, how, [](T x) { return Wide(x); }, [](Wide x) { return T(x); });
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> parts, int64_t n, DType dtype, Reduce how) {
  CHECK(!parts.empty(), "nothing to reduce");
  switch (dtype) {
    case DType::f64:
      return reduce_as<double, double>(
          out, parts, n, how, [](double x) { return x; }, [](double x) { return x; });
    case DType::i32:
      return reduce_integers<int32_t>(out, parts, n, how);
    case DType::i64:
      return reduce_integers<int64_t>(out, parts, n, how);
    case DType::u8:
      return reduce_integers<uint8_t>(out, parts, n, how);
    default:
      by_float(dtype, [&]<class T>() {
        reduce_as<T, float>(
            out, parts, n, how, [](T x) { return to_float(x); }, [](float x) { return from_float<T>(x); });
      });
  }
}

}  // namespace athanor
