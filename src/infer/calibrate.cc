#include "infer/calibrate.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/held_out.h"
#include "data/loader.h"
#include "ops/decorate.h"

namespace athanor {
namespace {

// Which parameter a product reads, by the address of its weight.
class Weights {
 public:
  explicit Weights(const ParamStore& params) {
    for (const ParamSpec& spec : params.specs()) {
      if (spec.role != Role::matrix) continue;
      const Tensor value = params.value(Param{int(&spec - params.specs().data())});
      const auto* begin = static_cast<const std::byte*>(value.data);
      found_[begin] = {begin + value.bytes(), &spec};
    }
  }
  const ParamSpec* at(const void* address) const {
    const auto* place = static_cast<const std::byte*>(address);
    auto it = found_.upper_bound(place);
    if (it == found_.begin()) return nullptr;
    --it;
    return place < it->second.end ? it->second.spec : nullptr;
  }

 private:
  struct Place {
    const std::byte* end;
    const ParamSpec* spec;
  };
  std::map<const std::byte*, Place> found_;
};

class SquaringOps final : public Decorated<SquaringOps> {
 public:
  SquaringOps(Ops& inner, const ParamStore& params) : inner_(inner), weights_(params) {}
  template <class Op>
  void on(const Op& op, void* scratch) {
    inner_.run(op, scratch);
    if constexpr (std::is_same_v<Op, Gemm>) add(op);
  }
  Ops& inner() { return inner_; }
  const Ops& inner() const { return inner_; }
  Importance take() {
    Importance named;
    for (const auto& [spec, squares] : sums_)
      for (const HfSlice& slice : spec->slices) named[slice.name] = squares;
    return named;
  }

 private:
  void add(const Gemm& op) {
    const ParamSpec* spec = weights_.at(op.b.data);
    if (!spec) return;
    CHECK(op.a.dtype == DType::f32 && !op.ta, "calibration reads products of f32");
    InputSquares& squares = sums_[spec];
    const int64_t rows = op.a.rows(), columns = op.a.cols();
    squares.sums.resize(size_t(columns));
    for (int64_t r = 0; r < rows; ++r) {
      const auto* x = reinterpret_cast<const float*>(static_cast<const std::byte*>(op.a.data)) + r * op.a.stride();
      for (int64_t c = 0; c < columns; ++c) squares.sums[size_t(c)] += double(x[c]) * double(x[c]);
    }
    squares.tokens += rows;
  }

  Ops& inner_;
  Weights weights_;
  std::map<const ParamSpec*, InputSquares> sums_;
};

class HessianOps final : public Decorated<HessianOps> {
 public:
  HessianOps(Ops& inner, const ParamStore& params, const std::set<std::string>& weights)
      : inner_(inner), weights_(params), wanted_(weights) {}
  template <class Op>
  void on(const Op& op, void* scratch) {
    inner_.run(op, scratch);
    if constexpr (std::is_same_v<Op, Gemm>) add(op);
  }
  Ops& inner() { return inner_; }
  const Ops& inner() const { return inner_; }
  Hessians take() {
    Hessians named;
    for (auto& [spec, sum] : sums_) {
      const auto shared = std::make_shared<const std::vector<float>>(std::move(sum));
      for (const HfSlice& slice : spec->slices)
        if (wanted_.contains(slice.name)) named[slice.name] = shared;
    }
    return named;
  }

 private:
  void add(const Gemm& op) {
    const ParamSpec* spec = weights_.at(op.b.data);
    if (!spec || std::ranges::none_of(spec->slices, [&](const auto& s) { return wanted_.contains(s.name); })) return;
    CHECK(op.a.dtype == DType::f32 && !op.ta, "calibration reads products of f32");
    const int64_t size = op.a.cols();
    std::vector<float>& sum = sums_[spec];
    sum.resize(size_t(size * size));
    const Gemm product{
        .d = {sum.data(), DType::f32, {size, size}}, .a = op.a, .b = op.a, .ta = true, .accumulate = true};
    std::vector<std::byte> scratch(inner_.scratch(product) + 64);
    void* aligned = scratch.data();
    size_t space = scratch.size();
    std::align(64, inner_.scratch(product), aligned, space);
    inner_.run(product, aligned);
  }

  Ops& inner_;
  Weights weights_;
  const std::set<std::string>& wanted_;
  std::map<const ParamSpec*, std::vector<float>> sums_;
};

// Evaluates whole micro-batches of the chosen windows, so that every row counts.
void run_windows(Engine& engine, Ops& observed, Ops& ops, const Dataset& data, int64_t samples) {
  const int64_t rows = engine.options().micro_batch_size;
  const HeldOut chosen = held_out(data, samples);
  engine.set_ops(observed);
  HostBatch batch(rows, data.seq_length(), {});
  for (size_t first = 0; first + size_t(rows) <= chosen.windows.size(); first += size_t(rows)) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto [source, window] = chosen.windows[first + size_t(r)];
      batch.read(r, data, data.at(source, window), {});
    }
    engine.evaluate(batch.tokens, batch.targets);
  }
  engine.set_ops(ops);
}

}  // namespace

Importance measure_importance(Engine& engine, Ops& ops, const Dataset& data, int64_t samples) {
  SquaringOps squaring(ops, engine.model().params());
  run_windows(engine, squaring, ops, data, samples);
  return squaring.take();
}

Hessians measure_hessians(Engine& engine, Ops& ops, const Dataset& data, int64_t samples,
                          const std::set<std::string>& weights) {
  HessianOps observed(ops, engine.model().params(), weights);
  run_windows(engine, observed, ops, data, samples);
  return observed.take();
}

}  // namespace athanor
