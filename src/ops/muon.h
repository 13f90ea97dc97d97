// Ops of Muon: momentum, and the elementwise steps between its GEMMs.
#pragma once
#include <vector>

#include "ops/optimizer.h"

namespace athanor {

// [Jordan et al. 2024, "Muon"] m = b m + (1 - b) g with g = grad * state.grad_scale; the gradient becomes m, or with
// nesterov (1 - b) g + b m. In a skipped step m is unchanged and the gradient becomes 0. bf16 m is rounded
// stochastically, as in ops/update.h, after use.
struct Momentum {
  struct Part {
    Tensor m;     // [n] f32 or bf16
    Tensor grad;  // [n] f32 or bf16
    uint64_t moment_stream = 0, first = 0;
  };
  std::vector<Part> parts = std::vector<Part>(1);  // all parts have the same dtypes
  Tensor state;                                    // StepState
  double beta = 0.95;
  bool nesterov = true;
  uint64_t seed = 0;
  static constexpr const char* kName = "momentum";
  std::vector<Field> fields() {
    std::vector<Field> all{{"state", Io::in, &state}};
    for (Part& p : parts) all.insert(all.end(), {{"m", Io::inout, &p.m}, {"grad", Io::inout, &p.grad}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).that(!parts.empty(), "at least one part");
    const DType m = parts.front().m.dtype;
    e.that(m == DType::f32 || m == DType::bf16, "momentum.m of f32 or bf16");
    for (const Part& p : parts) {
      e.is("m", p.m, m, p.m.shape).gradient("grad", p.grad, p.m.shape);
      e.dtype("grad", p.grad, parts.front().grad.dtype);
    }
  }
  Cost cost() const {
    int64_t n = 0;
    for (const Part& p : parts) n += p.m.numel();
    return {6.0 * double(n), traffic(*this)};
  }
};

// y = x / (margin * |x| + eps), where |x| is the Frobenius norm; sums of squares are computed in double in fixed
// blocks.
struct NormalizeMatrix {
  Tensor y;  // [R, C] float, contiguous
  Tensor x;  // [R, C] float; rows may be strided
  double margin = 1, eps = 1e-7;
  static constexpr const char* kName = "normalize_matrix";
  std::array<Field, 2> fields() { return {{{"y", Io::out, &y}, {"x", Io::in, &x}}}; }
  void check() const { Expect{kName}.floating("x", x).matrix("x", x).floating("y", y).is("y", y, y.dtype, x.shape); }
  Cost cost() const { return {3.0 * double(x.numel()), traffic(*this)}; }
};

// y = alpha a, or alpha a + beta b if b is present; computed in f32 and rounded once. y may alias a or b.
struct Combine {
  Tensor y;       // [R, C] float; rows of y, a and b may be strided
  Tensor a;       // [R, C] like y
  Tensor b = {};  // [R, C] like y; optional
  float alpha = 1, beta = 0;
  static constexpr const char* kName = "combine";
  std::array<Field, 3> fields() { return {{{"y", Io::out, &y}, {"a", Io::in, &a}, {"b", Io::in, &b}}}; }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).view("a", a, y.dtype, y.shape);
    if (b) e.view("b", b, y.dtype, y.shape);
  }
  Cost cost() const { return {3.0 * double(y.numel()), traffic(*this)}; }
};

// NorMuon [Li et al. 2025, "NorMuon"]: normalizes an update x of a matrix; v is a running mean of squares per output:
//   v = b v + (1 - b) mean(x^2);  u = x / (sqrt(v) + eps);  x = scale u |x| / (|u| + eps)
// where |x| is the Frobenius norm. Sums are in double in a fixed order; v and x are each rounded once. In a skipped
// step v is unchanged and x becomes 0.
struct NormalizeNeurons {
  Tensor x;      // [R, C] float, contiguous
  Tensor v;      // [R] f32 if an output's weights are a row, [C] if they are a column
  Tensor state;  // StepState
  bool columns = false;
  double beta = 0.95, scale = 1, eps = 1e-10;
  static constexpr const char* kName = "normalize_neurons";
  std::array<Field, 3> fields() { return {{{"x", Io::inout, &x}, {"v", Io::inout, &v}, {"state", Io::in, &state}}}; }
  int64_t outputs() const { return columns ? x.cols() : x.rows(); }
  int64_t inputs() const { return columns ? x.rows() : x.cols(); }
  void check() const {
    Expect e{kName};
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
    e.floating("x", x).matrix("x", x).is("x", x, x.dtype, x.shape).is("v", v, DType::f32, {outputs()});
  }
  Cost cost() const { return {4.0 * double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
