// Definitions shared by all ops: roles of tensors, cost, and helpers for shape checks. An op is a plain struct of
// tensors and scalars that runs nothing. A backend is a set of run(const Op&) overloads.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

enum class Io : uint8_t { in, out, inout };

struct Field {
  const char* name;
  Io io;
  Tensor* t;  // an absent optional tensor has no data
  static Field in(const char* name, Tensor& t) { return {name, Io::in, &t}; }
  static Field out(const char* name, Tensor& t) { return {name, Io::out, &t}; }
  static Field inout(const char* name, Tensor& t) { return {name, Io::inout, &t}; }
};

template <class... Fields>
std::array<Field, sizeof...(Fields)> fields_of(Fields... fields) {
  return {fields...};
}

struct Cost {
  double flops = 0;
  double bytes = 0;  // minimum traffic: every tensor read or written once per role
};

// Operand type of a GEMM, which determines its peak rate: the run's dtype (matrices); FP8 or FP4 values; or
// quantized values that are dequantized to f32 and multiplied without tensor cores (floats).
enum class Factors : uint8_t { matrices, quantized, floats, fp4_values };

// Peak rates of a device. Work takes at least the longer of its two times [Williams et al. 2009, roofline].
struct Ceilings {
  double flops = 0, bytes = 0;       // per second; FLOP/s of GEMMs in the run's dtype
  double quantized = 0, floats = 0;  // FLOP/s of FP8 GEMMs and of f32 GEMMs; 0: same as `flops`
  // FP4 has twice the rate of FP8. [NVIDIA, data sheet of HGX B200]
  double flops_of(Factors f) const {
    if (f == Factors::fp4_values) return 2 * flops_of(Factors::quantized);
    const double own = f == Factors::quantized ? quantized : f == Factors::floats ? floats : flops;
    return own > 0 ? own : flops;
  }
  double least_seconds(const Cost& c) const { return std::max(c.flops / flops, c.bytes / bytes); }
};

// Minimum memory traffic of an op, from the roles of its tensors.
template <class Op>
double traffic(const Op& op) {
  Op copy = op;
  double bytes = 0;
  for (const Field& f : copy.fields())
    if (*f.t) bytes += double(f.t->bytes()) * (f.io == Io::inout ? 2 : 1);
  return bytes;
}

// Elements of a tensor that each part of an op has, over all parts.
template <class Part>
int64_t elements(const std::vector<Part>& parts, Tensor Part::*tensor) {
  int64_t n = 0;
  for (const Part& p : parts) n += (p.*tensor).numel();
  return n;
}

// Shape and dtype checks; a failure names op and tensor. User sizes reach ops only through checked configs, so these
// are internal checks.
struct Expect {
  const char* op;
  const Expect& shape(const char* name, const Tensor& t, const Shape& s) const {
    CHECK(t.shape == s, op, ".", name, " is ", t.shape, ", expected ", s);
    return *this;
  }
  const Expect& dtype(const char* name, const Tensor& t, DType d) const {
    CHECK(t.dtype == d, op, ".", name, " is ", t.dtype, ", expected ", d);
    return *this;
  }
  const Expect& is(const char* name, const Tensor& t, DType d, const Shape& s) const {
    return view(name, t, d, s).contiguous(name, t);
  }
  // Expects a tensor that ops accumulate a gradient into: f32, or bf16, whose sum is computed in f32 and rounded to
  // nearest when it is stored.
  const Expect& gradient(const char* name, const Tensor& t, const Shape& s) const {
    CHECK(t.dtype == DType::f32 || t.dtype == DType::bf16, op, ".", name, " is ", t.dtype, ", expected f32 or bf16");
    return is(name, t, t.dtype, s);
  }
  // Like is(), but rows may be strided.
  const Expect& view(const char* name, const Tensor& t, DType d, const Shape& s) const {
    return dtype(name, t, d).shape(name, t, s);
  }
  const Expect& matrix(const char* name, const Tensor& t) const {
    CHECK(t.shape.rank == 2, op, ".", name, " is ", t.shape, ", expected a matrix");
    return *this;
  }
  const Expect& floating(const char* name, const Tensor& t) const {
    CHECK(t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16, op, ".", name, " is ", t.dtype,
          ", expected a float");
    return *this;
  }
  // Expects a matrix of floats without gaps between its rows.
  const Expect& float_matrix(const char* name, const Tensor& t) const {
    return floating(name, t).matrix(name, t).contiguous(name, t);
  }
  const Expect& contiguous(const char* name, const Tensor& t) const {
    CHECK(t.contiguous(), op, ".", name, " is ", t.shape, " with rows ", t.row_stride, " apart, expected no gaps");
    return *this;
  }
  // Expects an output for the amax: absent, or [1] f32.
  const Expect& amax(const char* name, const Tensor& t) const { return t ? is(name, t, DType::f32, {1}) : *this; }
  const Expect& that(bool ok, const char* what) const {
    CHECK(ok, op, ": expected ", what);
    return *this;
  }
  const Expect& that(bool ok, const char* name, const char* what) const {
    CHECK(ok, op, ".", name, ": expected ", what);
    return *this;
  }
};

}  // namespace athanor
