#include "comm/reduce.h"

#include <algorithm>
#include <cmath>

namespace athanor {
namespace {

// max propagates NaN, as the program's other reductions do.
template <class A>
A largest(A a, A b) {
  if constexpr (std::is_floating_point_v<A>)
    if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::max(a, b);
}

// Sums of T in Accumulator; load and store convert.
template <class T, class Accumulator, class Load, class Store>
void reduce_as(void* out, std::span<const void* const> parts, int64_t n, Reduce how, Load load, Store store) {
  const auto at = [&](size_t part, int64_t i) { return load(static_cast<const T*>(parts[part])[i]); };
  for (int64_t i = 0; i < n; ++i) {
    Accumulator sum = at(0, i);
    for (size_t p = 1; p < parts.size(); ++p) sum = how == Reduce::max ? largest(sum, at(p, i)) : sum + at(p, i);
    if (how == Reduce::avg) sum /= Accumulator(parts.size());
    static_cast<T*>(out)[i] = store(sum);
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
