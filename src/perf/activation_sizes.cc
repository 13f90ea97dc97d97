#include "perf/activation_sizes.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "tensor/half.h"

namespace athanor {
namespace {

template <class T>
double squares(const Tensor& t) {
  double sum = 0;
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) {
      const double x = double(to_float(t.as<T>()[r * t.stride() + c]));
      sum += x * x;
    }
  return sum;
}

class SizedOps final : public Decorated<SizedOps> {
 public:
  SizedOps(const Model& model, const Backend& backend) : backend_(backend) {
    const ParamStore& params = model.params();
    for (int id = 0; id < int(params.specs().size()); ++id)
      if (params.spec(Param{id}).stored == StoredAs::values)
        names_.emplace(params.value(Param{id}).data, params.spec(Param{id}).name);
  }
  const Ops& inner() const { return backend_.ops; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    backend_.ops.run(op, scratch);
    if constexpr (std::is_same_v<Op, Gemm>) {
      const auto weight = names_.contains(op.b.data) ? names_.find(op.b.data) : names_.find(op.a.data);
      note(weight == names_.end() ? "gemm" : weight->second, op.d);
    }
    if constexpr (std::is_same_v<Op, AttentionFwd>) note(cat("attention ", attentions_++), op.y);
  }
  std::vector<ActivationSize> sizes() const {
    std::vector<ActivationSize> out;
    for (const Sum& sum : sums_) out.push_back({sum.name, std::sqrt(sum.squares / sum.count)});
    return out;
  }

 private:
  struct Sum {
    std::string name;
    double squares, count;
  };
  // Accumulates consecutive tensors of one name, since the head's logits come in chunks of rows.
  void note(const std::string& name, const Tensor& t) {
    const size_t bytes = size_t((t.rows() - 1) * t.stride() + t.cols()) * size_of(t.dtype);
    memory_.resize(bytes / sizeof(uint32_t) + 1);
    backend_.device.copy(memory_.data(), t.data, bytes, Stream::compute);
    backend_.device.sync();
    Tensor copy = t;
    copy.data = memory_.data();
    const double sum = t.dtype == DType::f32    ? squares<float>(copy)
                       : t.dtype == DType::bf16 ? squares<bf16>(copy)
                                                : squares<f16>(copy);
    if (sums_.empty() || sums_.back().name != name) sums_.push_back({name, 0, 0});
    sums_.back().squares += sum;
    sums_.back().count += double(t.numel());
  }

  const Backend& backend_;
  std::map<const void*, std::string> names_;
  std::vector<uint32_t> memory_;
  std::vector<Sum> sums_;
  int attentions_ = 0;
};

}  // namespace

std::vector<ActivationSize> activation_sizes(Engine& engine, const Backend& backend, std::span<const int32_t> tokens,
                                             std::span<const int32_t> targets) {
  SizedOps ops(engine.model(), backend);
  engine.set_ops(ops);
  engine.evaluate(tokens, targets);
  engine.set_ops(backend.ops);
  return ops.sizes();
}

double spread(std::span<const std::vector<ActivationSize>> models, size_t activation) {
  double least = INFINITY, most = 0;
  for (const std::vector<ActivationSize>& sizes : models) {
    const double size = sizes.at(activation).rms;
    if (!std::isfinite(size)) return INFINITY;
    least = std::min(least, size);
    most = std::max(most, size);
  }
  return most > least ? most / least : 1;
}

}  // namespace athanor
