// Element-wise odds and ends, reductions to a scalar, and initial values.
#pragma once
#include "ops/op.h"

namespace athanor {

struct Fill {
  Tensor x;
  float value = 0;
  static constexpr const char* kName = "fill";
  std::array<Field, 1> fields() { return {{{"x", Io::out, &x}}}; }
  void check() const { Expect{kName}.contiguous("x", x); }
  Cost cost() const { return {0, double(x.bytes())}; }
};

// y = x rounded to y's dtype, to nearest even.
struct Cast {
  Tensor y, x;  // same shape
  static constexpr const char* kName = "cast";
  std::array<Field, 2> fields() { return {{{"y", Io::out, &y}, {"x", Io::in, &x}}}; }
  void check() const {
    Expect{kName}.floating("y", y).floating("x", x).contiguous("x", x).is("y", y, y.dtype, x.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

// y = a + b; y may be a or b.
struct Add {
  Tensor y, a, b;  // same shape and dtype
  static constexpr const char* kName = "add";
  std::array<Field, 3> fields() { return {{{"y", Io::out, &y}, {"a", Io::in, &a}, {"b", Io::in, &b}}}; }
  void check() const {
    Expect{kName}.floating("y", y).contiguous("y", y).is("a", a, y.dtype, y.shape).is("b", b, y.dtype, y.shape);
  }
  Cost cost() const { return {double(y.numel()), traffic(*this)}; }
};

// out += sum of x, in double, in fixed blocks: the same bits for any number of threads.
struct ReduceSum {
  Tensor out;  // [1] f64
  Tensor x;    // [n] f32 or f64
  static constexpr const char* kName = "reduce_sum";
  std::array<Field, 2> fields() { return {{{"out", Io::inout, &out}, {"x", Io::in, &x}}}; }
  void check() const {
    const DType dtype = x.dtype == DType::f64 ? DType::f64 : DType::f32;
    Expect{kName}.is("out", out, DType::f64, {1}).is("x", x, dtype, x.shape);
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// out += sum of squares of x (gradient norm); fixed blocks, double between blocks. Non-finite input gives non-finite.
struct SquaredNorm {
  Tensor out;  // [1] f64
  Tensor x;    // [n] f32
  static constexpr const char* kName = "squared_norm";
  std::array<Field, 2> fields() { return {{{"out", Io::inout, &out}, {"x", Io::in, &x}}}; }
  void check() const { Expect{kName}.is("out", out, DType::f64, {1}).is("x", x, DType::f32, x.shape); }
  Cost cost() const { return {2.0 * double(x.numel()), traffic(*this)}; }
};

// x[i] = mean + std * random_normal(seed, stream, first + i); std = 0 fills with mean.
struct RandomNormal {
  Tensor x;  // [n] f32 or bf16
  uint64_t seed = 0, stream = 0, first = 0;
  float mean = 0, std = 1;
  static constexpr const char* kName = "random_normal";
  std::array<Field, 1> fields() { return {{{"x", Io::out, &x}}}; }
  void check() const { Expect{kName}.floating("x", x).contiguous("x", x); }
  Cost cost() const { return {50.0 * double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
