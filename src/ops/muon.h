// Ops of Muon: momentum, Newton-Schulz iterations, and their elementwise steps.
#pragma once
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ops/gemm.h"
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
    e.that(m == DType::f32 || m == DType::bf16, "m", "f32 or bf16");
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
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x)); }
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
  auto fields() { return fields_of(Field::out("y", y), Field::in("a", a), Field::in("b", b)); }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).view("a", a, y.dtype, y.shape);
    if (b) e.view("b", b, y.dtype, y.shape);
  }
  Cost cost() const { return {3.0 * double(y.numel()), traffic(*this)}; }
};

// Newton-Schulz iterations [Jordan et al. 2024, "Muon"], for each matrix on its own: x is divided by `margin` times its
// Frobenius norm; then each iteration makes x <- a x + b (x x') x + c (x x')^2 x, and the last one also multiplies by
// the matrix's scale. in_parts() below defines it.
struct Orthogonalize {
  struct Coefficients {
    double a, b, c;
  };
  struct Matrix {
    Tensor y;          // [R, C] f32 or bf16, contiguous
    Tensor x;          // [R, C] like y; rows may be strided, no overlap with y
    double scale = 1;  // factor on y
    // The iteration uses the smaller of x x' [R, R] and x' x [C, C].
    bool wide() const { return y.rows() <= y.cols(); }
    int64_t side() const { return std::min(y.rows(), y.cols()); }
  };
  std::vector<Matrix> matrices = std::vector<Matrix>(1);
  std::span<const Coefficients> iterations;  // an odd number
  double margin = 1;
  bool tf32 = false;
  static constexpr const char* kName = "orthogonalize";
  std::vector<Field> fields() {
    std::vector<Field> all;
    for (Matrix& m : matrices) all.insert(all.end(), {{"y", Io::out, &m.y}, {"x", Io::in, &m.x}});
    return all;
  }
  void check() const {
    Expect e{kName};
    e.that(!matrices.empty() && iterations.size() % 2 == 1, "matrices",
           "at least one, and an odd number of iterations");
    for (const Matrix& m : matrices)
      e.floating("x", m.x).matrix("x", m.x).floating("y", m.y).is("y", m.y, m.x.dtype, m.x.shape);
  }
  // Returns the FLOPs for a matrix. With sides s <= l, two GEMMs of an iteration cost 2 s^2 l each, one 2 s^3.
  static double flops(const Matrix& m, size_t iterations) {
    const auto side = double(m.side()), other = double(m.y.numel()) / std::max(side, 1.0);
    return double(iterations) * 2 * side * side * (2 * other + side);
  }
  Cost cost() const {
    double sum = 0;
    for (const Matrix& m : matrices) sum += flops(m, iterations.size());
    return {sum, traffic(*this)};
  }
};

// Memory for the iterations of one matrix: an intermediate result, the Gram matrix and its square.
struct OrthogonalizeWorkspace {
  static constexpr size_t kAlign = 256;  // bytes
  size_t gram, square, bytes;
  explicit OrthogonalizeWorkspace(const Orthogonalize::Matrix& m) {
    const auto aligned = [&](int64_t n) { return round_up(size_t(n) * size_of(m.y.dtype), kAlign); };
    gram = aligned(m.y.numel());
    square = gram + aligned(m.side() * m.side());
    bytes = square + aligned(m.side() * m.side());
  }
  // Returns the bytes needed for any one matrix of the op.
  static size_t of_any(const Orthogonalize& op) {
    size_t most = 0;
    for (const Orthogonalize::Matrix& m : op.matrices) most = std::max(most, OrthogonalizeWorkspace(m).bytes);
    return most;
  }
};

// Defines the iterations of one matrix: run() gets their ops in order.
template <class Run>
void in_parts(const Orthogonalize& op, const Orthogonalize::Matrix& m, void* workspace, Run&& run) {
  const OrthogonalizeWorkspace at(m);
  const DType type = m.y.dtype;
  const auto placed = [&](size_t offset, Shape shape) {
    return Tensor{static_cast<char*>(workspace) + offset, type, shape};
  };
  Tensor x = placed(0, m.y.shape), y = m.y;
  const Tensor gram = placed(at.gram, {m.side(), m.side()}), square = placed(at.square, {m.side(), m.side()});
  run(NormalizeMatrix{.y = x, .x = m.x, .margin = op.margin});
  for (size_t i = 0; i < op.iterations.size(); ++i) {
    const double by = i + 1 == op.iterations.size() ? m.scale : 1;
    const auto [a, b, c] = op.iterations[i];
    run(Gemm{.d = gram, .a = x, .b = x, .ta = !m.wide(), .tb = m.wide(), .tf32 = op.tf32, .symmetric = true});
    run(Gemm{.d = square, .a = gram, .b = gram, .tb = true, .tf32 = op.tf32, .symmetric = true});
    run(Combine{.y = square, .a = gram, .b = square, .alpha = float(by * b), .beta = float(by * c)});
    run(Combine{.y = y, .a = x, .alpha = float(by * a)});
    const Tensor &left = m.wide() ? square : x, &right = m.wide() ? x : square;
    run(Gemm{.d = y, .a = left, .b = right, .accumulate = true, .tf32 = op.tf32});
    std::swap(x, y);
  }
}

// Runs the iterations of one matrix in parts on `ops`. scratch: scratch_of_parts() bytes.
template <class AnyOps>
void run_parts(const Orthogonalize& op, const Orthogonalize::Matrix& m, void* scratch, AnyOps& ops) {
  void* rest = static_cast<char*>(scratch) + OrthogonalizeWorkspace::of_any(op);
  in_parts(op, m, scratch, [&](const auto& part) { ops.run(part, rest); });
}
// Returns the bytes for any one matrix of the op: the workspace, followed by the scratch memory that any part needs
// from `ops`.
template <class AnyOps>
size_t scratch_of_parts(const Orthogonalize& op, const AnyOps& ops) {
  const Orthogonalize one{.matrices = {}, .iterations = op.iterations.first(1), .tf32 = op.tf32};  // all need the same
  size_t most = 0;
  char somewhere[1];  // an address only: parts are not run here
  for (const Orthogonalize::Matrix& m : op.matrices)
    in_parts(one, m, somewhere, [&](const auto& part) { most = std::max(most, ops.scratch(part)); });
  return OrthogonalizeWorkspace::of_any(op) + most;
}

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
  auto fields() { return fields_of(Field::inout("x", x), Field::inout("v", v), Field::in("state", state)); }
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
