// Elementwise ops, reductions to a scalar, and initial values.
#pragma once
#include <vector>

#include "ops/op.h"

namespace athanor {

struct Fill {
  Tensor x;
  float value = 0;
  static constexpr const char* kName = "fill";
  auto fields() { return fields_of(Field::out("x", x)); }
  void check() const { Expect{kName}.contiguous("x", x); }
  Cost cost() const { return {0, double(x.bytes())}; }
};

// y = x rounded to y's dtype, to nearest even.
struct Cast {
  Tensor y, x;  // same shape
  static constexpr const char* kName = "cast";
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x)); }
  void check() const {
    Expect{kName}.floating("y", y).floating("x", x).contiguous("x", x).is("y", y, y.dtype, x.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

// x[i] = 0 where mask[i] is not 0.
struct MaskedFill {
  Tensor x;     // [n], elements of 2 or 4 bytes
  Tensor mask;  // [n] u8
  static constexpr const char* kName = "masked_fill";
  auto fields() { return fields_of(Field::inout("x", x), Field::in("mask", mask)); }
  void check() const {
    const size_t size = size_of(x.dtype);
    Expect{kName}
        .is("x", x, size == 2 || size == 4 ? x.dtype : DType::f32, x.shape)
        .contiguous("x", x)
        .is("mask", mask, DType::u8, x.shape);
  }
  Cost cost() const { return {0, traffic(*this)}; }
};

// y = a + b; y may alias a, or b if it has y's dtype.
struct Add {
  Tensor y, a;  // same shape and dtype
  Tensor b;     // same shape; any float
  static constexpr const char* kName = "add";
  auto fields() { return fields_of(Field::out("y", y), Field::in("a", a), Field::in("b", b)); }
  void check() const {
    Expect{kName}.floating("y", y).contiguous("y", y).is("a", a, y.dtype, y.shape);
    Expect{kName}.floating("b", b).is("b", b, b.dtype, y.shape);
  }
  Cost cost() const { return {double(y.numel()), traffic(*this)}; }
};

// out += sum of x, in double, in fixed blocks: bitwise the same for any number of threads.
struct ReduceSum {
  Tensor out;  // [1] f64
  Tensor x;    // [n] f32 or f64
  static constexpr const char* kName = "reduce_sum";
  auto fields() { return fields_of(Field::inout("out", out), Field::in("x", x)); }
  void check() const {
    const DType dtype = x.dtype == DType::f64 ? DType::f64 : DType::f32;
    Expect{kName}.is("out", out, DType::f64, {1}).is("x", x, dtype, x.shape);
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// out += sum of squares over all tensors, in order (gradient norm); or out[i] += sum of squares of tensor i. Summed in
// fixed blocks, with double between blocks. Non-finite input gives a non-finite result.
struct SquaredNorm {
  Tensor out;                                      // [1] f64, or one per tensor
  std::vector<Tensor> x = std::vector<Tensor>(1);  // [n] each, all f32 or all bf16
  Tensor sum_of(size_t i) const { return out.numel() == 1 ? out : out.slice(int64_t(i), int64_t(i) + 1); }
  static constexpr const char* kName = "squared_norm";
  std::vector<Field> fields() {
    std::vector<Field> all{{"out", Io::inout, &out}};
    for (Tensor& t : x) all.push_back({"x", Io::in, &t});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("out", out, DType::f64, {out.numel() == 1 ? 1 : int64_t(x.size())});
    if (!x.empty()) e.gradient("x", x.front(), x.front().shape);
    for (const Tensor& t : x) e.is("x", t, x.front().dtype, t.shape);
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Tensor& t : x) n += t.numel();
    return {2.0 * double(n), traffic(*this)};
  }
};

// x[i] = mean + std * random_normal(seed, stream, first + i); std = 0 fills with mean.
struct RandomNormal {
  Tensor x;  // [n] f32 or bf16
  uint64_t seed = 0, stream = 0, first = 0;
  float mean = 0, std = 1;
  static constexpr const char* kName = "random_normal";
  auto fields() { return fields_of(Field::out("x", x)); }
  void check() const { Expect{kName}.floating("x", x).contiguous("x", x); }
  Cost cost() const { return {50.0 * double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
