// OpCase: an op with the shapes and dtypes of its tensors and the values they start with. It owns no memory: the
// Examiner places it on whatever backend it examines.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/ops.h"

namespace athanor {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

// A present tensor of a case: shape, dtype, and an address that must not be dereferenced.
inline Tensor tensor(DType dtype, Shape shape, int64_t row_stride = 0) {
  return {reinterpret_cast<void*>(uintptr_t{256}), dtype, shape, row_stride};
}

// Value of element i (row-major); `stream` is derived from the tensor's name, so that tensors of one name agree.
using Init = std::function<double(uint64_t stream, int64_t i)>;
constexpr uint64_t kCaseSeed = 1;

// Near enough to normal for a test input, and quick: the sum of four uniform values.
inline Init normal(double mean = 0, double std = 1) {
  return [=](uint64_t s, int64_t i) {
    const auto r = philox(kCaseSeed, s, uint64_t(i));
    const double sum = (double(r[0]) + double(r[1]) + double(r[2]) + double(r[3])) * 0x1p-32 - 2;
    return mean + std * 1.7320508075688772 * sum;  // each has variance 1/12
  };
}
inline Init uniform(double lo, double hi) {
  return [=](uint64_t s, int64_t i) { return lo + (hi - lo) * double(random_uniform(kCaseSeed, s, uint64_t(i))); };
}
inline Init below(int64_t n) {  // integers in [0, n)
  return [=](uint64_t s, int64_t i) { return double(random_bits(kCaseSeed, s, uint64_t(i)) % uint64_t(n)); };
}
inline Init constant(double x) {
  return [=](uint64_t, int64_t) { return x; };
}
// The list, repeated.
inline Init listed(std::vector<double> values) {
  return [values = std::move(values)](uint64_t, int64_t i) { return values[size_t(i) % values.size()]; };
}
template <class T>
Init bytes_of(const T& record) {
  const auto* p = reinterpret_cast<const uint8_t*>(&record);
  return listed(std::vector<double>(p, p + sizeof record));
}

using Values = std::map<std::string, Init>;

template <class Op>
struct OpCase {
  std::string name;  // unique among the cases of an op
  Op op;
  Values values = {};                              // by tensor; default: standard normal
  bool exact = false;                              // the outputs must be bit-identical to the reference
  std::map<std::string, std::string> shared = {};  // output -> input whose memory it uses
};

// Contents of one tensor of a case before and after a run, dense.
struct Result {
  std::string name;
  Io io;
  Tensor like;
  std::vector<std::byte> before, after;
};

std::vector<double> decoded(DType, const std::vector<std::byte>&);

}  // namespace athanor
