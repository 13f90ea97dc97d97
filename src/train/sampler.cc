#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace athanor {

int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, uint64_t draw) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  if (options.temperature <= 0) return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const size_t keep = options.top_k > 0 ? std::min(size_t(options.top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(keep), order.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  });
  std::vector<double> cumulative(keep);
  double sum = 0;
  for (size_t i = 0; i < keep; ++i) {
    sum += std::exp((double(logits[size_t(order[i])]) - double(logits[size_t(order[0])])) / options.temperature);
    cumulative[i] = sum;
  }
  size_t nucleus = 0;
  while (nucleus + 1 < keep && cumulative[nucleus] < options.top_p * sum) ++nucleus;
  const double u = double(random_uniform(options.seed, stream_of("sample"), draw)) * cumulative[nucleus];
  const auto it = std::upper_bound(cumulative.begin(), cumulative.begin() + std::ptrdiff_t(nucleus) + 1, u);
  return order[std::min(size_t(it - cumulative.begin()), nucleus)];
}

Sampler::Sampler(const ModelConfig& config, const Recipe& recipe, Backend backend, int64_t prompt_tokens,
                 int64_t capacity)
    : recipe_(recipe), backend_(backend), model_(make_model(config)) {
  CHECK(prompt_tokens >= 1 && prompt_tokens <= capacity && capacity <= config.max_position_embeddings, "prompt of ",
        prompt_tokens, " tokens, capacity ", capacity);
  model_->plan(memory_, recipe_, false, {});
  const Shape cache_shape{capacity, config.num_key_value_heads * config.head_dim};
  cache_.capacity = capacity;
  cache_.k.resize(size_t(config.num_hidden_layers));
  cache_.v.resize(size_t(config.num_hidden_layers));
  for (size_t l = 0; l < cache_.k.size(); ++l) {
    memory_.add(MemoryKind::cache, cat("keys of layer ", l), recipe_.compute, cache_shape, &cache_.k[l]);
    memory_.add(MemoryKind::cache, cat("values of layer ", l), recipe_.compute, cache_shape, &cache_.v[l]);
  }
  plan_inputs(prompt_, prompt_tokens, "prompt");
  plan_inputs(next_, 1, "next");
  PlanOps plan(backend_.ops);
  for (auto* in : {&prompt_, &next_}) {
    arena_.record(in == &prompt_ ? "prompt" : "next");
    run(context(plan), *in, nullptr);
    arena_.finish_recording();
  }
  memory_.add(arena_);
}

void Sampler::plan_inputs(Inputs& in, int64_t tokens, const char* name) {
  const auto input = [&](const char* what, Shape shape, Tensor* t) {
    memory_.add(MemoryKind::inputs, cat(name, " ", what), DType::i32, shape, t);
  };
  input("tokens", {tokens}, &in.batch.tokens);
  input("positions", {tokens}, &in.batch.positions);
  input("cache rows", {tokens}, &in.batch.cache_rows);
  input("spans", {1, kSpanWords}, &in.batch.spans);
  input("last row", {1}, &in.last_row);
  in.batch.cache = &cache_;
}

void Sampler::commit() {
  memory_.commit(backend_.device);
  model_->init_constants(backend_.device);
}

Ctx Sampler::context(Ops& ops) {
  return {.ops = ops, .device = backend_.device, .arena = arena_, .mesh = backend_.mesh, .recipe = recipe_};
}

void Sampler::run(Ctx c, const Inputs& in, std::vector<float>* out) {
  Var x = forward(*model_, c, in.batch, {});
  Buffer z = logits({c, model_->params()}, std::move(x), in.last_row, model_->head());
  if (!out) return;
  out->resize(size_t(model_->config().vocab_size));
  backend_.device.copy(out->data(), z.t.data, out->size() * sizeof(float), Lane::compute);
  backend_.device.sync();
}

std::vector<float> Sampler::feed(const char* phase, Inputs& in, std::span<const int32_t> tokens) {
  const auto n = int64_t(tokens.size());
  CHECK(n == in.batch.tokens.numel() && length_ + n <= cache_.capacity, "fed ", n, " tokens at ", length_, " of ",
        cache_.capacity);
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), int32_t(length_));
  const Span span{.q_begin = 0,
                  .q_len = int32_t(n),
                  .k_begin = 0,
                  .k_len = int32_t(length_ + n),
                  .q_pos = int32_t(length_),
                  .k_pos = 0};
  const auto last = int32_t(n - 1);
  Device& device = backend_.device;
  device.copy(in.batch.tokens.data, tokens.data(), tokens.size_bytes(), Lane::compute);
  device.copy(in.batch.positions.data, positions.data(), tokens.size_bytes(), Lane::compute);
  device.copy(in.batch.cache_rows.data, positions.data(), tokens.size_bytes(), Lane::compute);
  device.copy(in.batch.spans.data, &span, sizeof span, Lane::compute);
  device.copy(in.last_row.data, &last, sizeof last, Lane::compute);
  std::vector<float> out;
  arena_.begin(phase);
  run(context(backend_.ops), in, &out);
  arena_.end();
  length_ += n;
  return out;
}

std::vector<float> Sampler::prompt(std::span<const int32_t> tokens) {
  length_ = 0;
  return feed("prompt", prompt_, tokens);
}

std::vector<float> Sampler::next(int32_t token) { return feed("next", next_, {&token, 1}); }

}  // namespace athanor
