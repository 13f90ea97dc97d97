// One micro-batch of a tiny model with adapters, whose values a test chooses.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {

using testing::Rig;
using Values = std::vector<float>;

inline ModelConfig small(ModelType type) {
  return testing::tiny_model(
      type, {.vocab = 50, .hidden = 24, .heads = 4, .kv_heads = 2, .intermediate = 40, .positions = 16});
}

inline EngineOptions options_of(Recompute::Granularity recompute, const LoraOptions& lora) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.recompute = {recompute, 1};
  o.seq_length = 16;
  o.micro_batch_size = o.global_batch_size = 2;
  o.seed = 3;
  o.lora = lora;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-30, .min_lr = 1e-30};
  return o;
}

// One micro-batch of an engine whose values the test chooses.
struct OneBatch {
  explicit OneBatch(ModelType type, Recompute::Granularity recompute, const LoraOptions& lora)
      : OneBatch(type, options_of(recompute, lora)) {}
  OneBatch(ModelType type, const EngineOptions& options) : engine(small(type), options, rig.backend()) {
    engine.commit();
    engine.init_weights();
  }
  ParamStore::Piece piece(const std::string& name) {
    for (const ParamStore::Piece& p : engine.model().params().pieces())
      if (p.slice->name == name) return p;
    throw Error("no tensor " + name);
  }
  const ParamStore::Unit& unit(const ParamStore::Piece& p) { return *engine.model().params().units()[size_t(p.unit)]; }
  static Tensor part(const Tensor& flat, const ParamStore::Piece& p) {
    return flat.slice(p.offset, p.offset + p.slice->shape.numel());
  }
  Values value(const std::string& name) {
    const auto p = piece(name);
    return rig.read<float>(part(unit(p).weights(), p));
  }
  Values gradient(const std::string& name) {
    const auto p = piece(name);
    return rig.read<float>(part(unit(p).grad, p));
  }
  void set(const std::string& name, const Values& values) {
    const auto p = piece(name);
    const Tensor to = part(unit(p).weights(), p);
    rig.device->copy(to.data, values.data(), to.bytes(), Stream::compute);
    rig.device->sync();
  }
  double run() {
    std::vector<int32_t> tokens(32), targets(32);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(7 * i % 50), targets[i] = int32_t(11 * i % 50);
    PhaseClock clock;
    engine.micro_batch(tokens, targets, clock);
    return engine.read_state().loss_sum;
  }
  Rig rig;
  Engine engine;
};

// [rows, inner] times [inner, columns]; with ta and tb of transposes.
inline Values product(const Values& a, bool ta, const Values& b, bool tb, int64_t rows, int64_t inner,
                      int64_t columns) {
  Values out(size_t(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += double(a[size_t(ta ? k * rows + i : i * inner + k)]) * b[size_t(tb ? j * inner + k : k * columns + j)];
      out[size_t(i * columns + j)] = float(sum);
    }
  return out;
}

inline void expect_close(const Values& want, const Values& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i)
    difference += std::pow(double(want[i]) - got[i], 2), size += std::pow(double(want[i]), 2);
  EXPECT_LT(std::sqrt(difference), 2e-5 * std::sqrt(size)) << what;
  EXPECT_GT(size, 0) << what;
}

}  // namespace athanor
