#include "infer/calibrate.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "data/held_out.h"
#include "data/loader.h"
#include "ops/decorate.h"

namespace athanor {
namespace {

// A linear layer: a parameter, or the part of it that is one expert's.
struct Layer {
  const ParamSpec* spec;
  int64_t expert = 0;
  auto operator<=>(const Layer&) const = default;

  // Names in files of the layer's weights.
  std::vector<std::string> names() const {
    const int64_t size = spec->shape.numel() / spec->experts;
    std::vector<std::string> names;
    for (const HfSlice& slice : spec->slices)
      if (slice.offset / size == expert) names.push_back(slice.name);
    return names;
  }
};

// Finds the parameter that a GEMM reads, by the address of its weight.
class Weights {
 public:
  explicit Weights(const ParamStore& params) {
    for (const ParamSpec& spec : params.specs()) {
      if (!is_linear_or_expert(spec)) continue;
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

// Calls a function for each GEMM of a linear layer with the layer and its input [tokens, K]; for each expert, also for
// one without tokens.
class WatchedGemms final : public Decorated<WatchedGemms> {
 public:
  using Watch = std::function<void(const Layer&, const Tensor& x)>;
  WatchedGemms(Ops& inner, const ParamStore& params, Watch watch)
      : inner_(inner), weights_(params), watch_(std::move(watch)) {}
  template <class Op>
  void on(const Op& op, void* scratch) {
    inner_.run(op, scratch);
    if constexpr (std::is_same_v<Op, Gemm> || std::is_same_v<Op, GroupedGemm>) {
      const ParamSpec* spec = weights_.at(op.b.data);
      if (!spec) return;
      CHECK(op.a.dtype == DType::f32, "calibration reads GEMMs of f32");
      if constexpr (std::is_same_v<Op, Gemm>) {
        CHECK(!op.ta, "calibration reads GEMMs of inputs");
        watch_({spec}, op.a);
      } else {
        const auto* rows = op.offsets.template as<int32_t>();
        for (int64_t e = 0; e < op.experts(); ++e) watch_({spec, e}, op.a.slice(rows[e], rows[e + 1]));
      }
    }
  }
  Ops& inner() { return inner_; }
  const Ops& inner() const { return inner_; }

 private:
  Ops& inner_;
  Weights weights_;
  Watch watch_;
};

// Adds the squares of x, summed over rows, to `squares`.
void add_squares(InputSquares& squares, const Tensor& x) {
  squares.sums.resize(size_t(x.cols()));
  for (int64_t r = 0; r < x.rows(); ++r) {
    const float* row = x.as<float>() + r * x.stride();
    for (size_t c = 0; c < squares.sums.size(); ++c) squares.sums[c] += double(row[c]) * double(row[c]);
  }
  squares.tokens += x.rows();
}

// sum += x^T x.
void add_outer_products(std::vector<float>& sum, const Tensor& x, Ops& ops) {
  const int64_t size = x.cols();
  sum.resize(size_t(size * size));
  if (x.rows() == 0) return;
  const Gemm gemm{.d = {sum.data(), DType::f32, {size, size}}, .a = x, .b = x, .ta = true, .accumulate = true};
  std::vector<std::byte> scratch(ops.scratch(gemm) + 64);
  void* aligned = scratch.data();
  size_t space = scratch.size();
  std::align(64, ops.scratch(gemm), aligned, space);
  ops.run(gemm, aligned);
}

// Evaluates only whole micro-batches of the chosen windows, so that every row counts.
void run_windows(Engine& engine, Ops& observed, Ops& ops, const Dataset& data, int64_t samples) {
  const int64_t rows = engine.options().micro_batch_size;
  const HeldOut chosen = held_out(data, samples);
  engine.set_ops(observed);
  HostBatch batch(rows, data.seq_length(), data.whole_rows());
  for (size_t first = 0; first + size_t(rows) <= chosen.windows.size(); first += size_t(rows)) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto [source, window] = chosen.windows[first + size_t(r)];
      batch.read(r, data, data.at(source, window), data.whole_rows());
    }
    engine.set_pixels(batch.pixels);
    engine.evaluate(batch.tokens, batch.targets);
  }
  engine.set_ops(ops);
}

}  // namespace

Importance measure_importance(Engine& engine, Ops& ops, const Dataset& data, int64_t samples) {
  std::map<Layer, InputSquares> sums;
  WatchedGemms watched(ops, engine.model().params(),
                       [&](const Layer& layer, const Tensor& x) { add_squares(sums[layer], x); });
  run_windows(engine, watched, ops, data, samples);
  Importance named;
  for (const auto& [layer, squares] : sums)
    for (const std::string& name : layer.names()) named[name] = squares;
  return named;
}

Hessians measure_hessians(Engine& engine, Ops& ops, const Dataset& data, int64_t samples,
                          const std::set<std::string>& weights) {
  const auto is_wanted = [&](const std::string& name) { return weights.contains(name); };
  std::map<Layer, std::vector<float>> sums;
  WatchedGemms watched(ops, engine.model().params(), [&](const Layer& layer, const Tensor& x) {
    if (std::ranges::any_of(layer.names(), is_wanted)) add_outer_products(sums[layer], x, ops);
  });
  run_windows(engine, watched, ops, data, samples);
  Hessians named;
  for (auto& [layer, sum] : sums) {
    const auto shared = std::make_shared<const std::vector<float>>(std::move(sum));
    for (const std::string& name : layer.names())
      if (is_wanted(name)) named[name] = shared;
  }
  return named;
}

}  // namespace athanor
