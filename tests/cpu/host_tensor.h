// Test tensors that own their memory, and runs of one op that catch reads of unset scratch and writes past its end.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "cpu/cpu_ops.h"

namespace athanor {

class HostTensor {
 public:
  HostTensor(DType dtype, Shape shape) : bytes_(size_t(shape.numel()) * size_of(dtype)) {
    t = {bytes_.data(), dtype, shape};
  }
  HostTensor(const HostTensor& o) : t(o.t), bytes_(o.bytes_) { t.data = bytes_.data(); }
  HostTensor& operator=(const HostTensor&) = delete;

  // Seeded normal values, rounded to the dtype.
  static HostTensor normal(DType dtype, Shape shape, uint64_t seed, double mean = 0, double std = 1) {
    HostTensor x(dtype, shape);
    for (int64_t i = 0; i < shape.numel(); ++i) x.set(i, mean + std * double(random_normal(seed, 77, uint64_t(i))));
    return x;
  }
  static HostTensor indices(std::vector<int32_t> values) {
    HostTensor x(DType::i32, {int64_t(values.size())});
    std::ranges::copy(values, x.t.as<int32_t>());
    return x;
  }

  double operator[](int64_t i) const {
    if (t.dtype == DType::i32) return t.as<int32_t>()[i];
    if (t.dtype == DType::f64) return t.as<double>()[i];
    return by_float(t.dtype, [&]<class T>() { return double(to_float(t.as<T>()[i])); });
  }
  void set(int64_t i, double value) {
    if (t.dtype == DType::i32)
      t.as<int32_t>()[i] = int32_t(value);
    else if (t.dtype == DType::f64)
      t.as<double>()[i] = value;
    else
      by_float(t.dtype, [&]<class T>() { t.as<T>()[i] = from_float<T>(float(value)); });
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  Tensor t;

 private:
  std::vector<std::byte> bytes_;
};

// Scratch starts as NaN, and one byte more than was asked for must survive.
template <class Op>
void run_op(const Op& op, int threads = 2) {
  op.check();
  ThreadPool pool(threads);
  CpuOps ops(pool);
  const size_t n = ops.scratch(op);
  std::vector<double> workspace(n / sizeof(double) + 2);
  std::memset(workspace.data(), 0xff, workspace.size() * sizeof(double));
  ops.run(op, workspace.data());
  const auto* bytes = reinterpret_cast<const unsigned char*>(workspace.data());
  for (size_t i = n; i < workspace.size() * sizeof(double); ++i)
    ASSERT_EQ(bytes[i], 0xff) << op.kName << " scratch " << i;
}

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

// Half a unit in the last place of a value near 1, and some f32 arithmetic.
inline double tolerance(DType t) { return t == DType::f32 ? 4e-6 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

inline void expect_near(double actual, double expected, double tolerance, const std::string& what, int64_t i) {
  ASSERT_NEAR(actual, expected, tolerance * (1 + std::abs(expected))) << what << "[" << i << "]";
}

// run(threads) returns the outputs; their bits must not depend on the number of threads.
template <class Fn>
void expect_same_bits(Fn&& run) {
  const std::vector<HostTensor> one = run(1);
  for (int threads : {2, 3, 7}) {
    const std::vector<HostTensor> many = run(threads);
    for (size_t k = 0; k < one.size(); ++k) ASSERT_EQ(one[k].bytes(), many[k].bytes()) << "output " << k;
  }
}

}  // namespace athanor
