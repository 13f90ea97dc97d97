// Fill, cast, add, dropout, sums and initial values.
#include "base/rng.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

template <class T>
void fill_whole(const Tensor& t, float value) {
  for (int64_t i = 0; i < t.numel(); ++i) t.as<T>()[i] = T(value);
}

}  // namespace

void ReferenceOps::run(const Fill& op, void*) {
  switch (op.x.dtype) {
    case DType::i32:
      return fill_whole<int32_t>(op.x, op.value);
    case DType::i64:
      return fill_whole<int64_t>(op.x, op.value);
    case DType::u8:
      return fill_whole<uint8_t>(op.x, op.value);
    default: {
      Values x = zeros_like(op.x);
      for (double& v : x.v) v = op.value;
      store(op.x, x);
    }
  }
}

void ReferenceOps::run(const Cast& op, void*) { store(op.y, load(op.x)); }

void ReferenceOps::run(const MaskedFill& op, void*) {
  const auto size = int64_t(size_of(op.x.dtype));
  auto* bytes = static_cast<std::byte*>(op.x.data);
  for (int64_t i = 0; i < op.x.numel(); ++i)
    if (op.mask.as<uint8_t>()[i] != 0) std::fill_n(bytes + i * size, size, std::byte{0});
}

void ReferenceOps::run(const Add& op, void*) {
  Values y = load(op.a);
  const Values b = load(op.b);
  for (int64_t i = 0; i < y.size(); ++i) y[i] += b[i];
  store(op.y, y);
}

void ReferenceOps::run(const ReduceSum& op, void*) {
  double sum = 0;
  for (double x : load(op.x).v) sum += x;
  *op.out.as<double>() += sum;
}

void ReferenceOps::run(const SquaredNorm& op, void*) {
  for (size_t i = 0; i < op.x.size(); ++i) {
    double sum = 0;
    for (double x : load(op.x[i]).v) sum += x * x;
    *op.sum_of(i).as<double>() += sum;
  }
}

// Both operations are in float, as in the CPU and GPU code, so that initial weights are bit-identical on all backends.
void ReferenceOps::run(const RandomNormal& op, void*) {
  Values x = zeros_like(op.x);
  for (int64_t i = 0; i < x.size(); ++i) {
    const float scaled = op.std * random_normal(op.seed, op.stream, op.first + uint64_t(i));
    x[i] = op.mean + scaled;
  }
  store(op.x, x);
}

void ReferenceOps::run(const DropPath& op, void*) {
  const uint64_t stream = DropPath::stream_at(op.stream, *static_cast<const StepState*>(op.state.data));
  const Values x = load(op.x);
  Values y = op.residual ? load(op.residual) : zeros_like(op.y);
  for (int64_t i = 0; i < y.rows; ++i) {
    for (int64_t c = 0; c < y.cols; ++c)
      y(i, c) += double(op.factor(stream, *op.first.as<int64_t>(), i, c, y.cols)) * x(i, c);
  }
  store(op.y, y);
}

}  // namespace athanor
