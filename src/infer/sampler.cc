#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace athanor {

void require_finite_logits(std::span<const float> logits, int64_t vocab_size) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (bad == logits.end()) return;
  throw Error(cat("logits: expected finite numbers, got ", *bad, " for token ", (bad - logits.begin()) % vocab_size,
                  ": the weights have diverged, or overflow in this precision (try fp32)"));
}

int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, uint64_t draw) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return int32_t(largest - logits.begin());
  const bool all = options.top_k <= 0 && options.top_p >= 1 && options.min_p <= 0;  // then order is irrelevant
  const size_t keep = options.top_k > 0 ? std::min(size_t(options.top_k), logits.size()) : logits.size();
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  if (!all)
    std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(keep), order.end(), [&](int32_t a, int32_t b) {
      return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
    });
  std::vector<double> cumulative(keep);
  double sum = 0;
  for (size_t i = 0; i < keep; ++i) {
    sum += std::exp((double(logits[size_t(order[i])]) - double(*largest)) / options.temperature);
    cumulative[i] = sum;
  }
  size_t last = keep - 1;  // last candidate that is kept
  if (options.top_p < 1)
    last = size_t(std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * sum) - cumulative.begin());
  last = std::min(last, keep - 1);
  if (options.min_p > 0) {
    const double least = double(*largest) + options.temperature * std::log(options.min_p);
    while (last > 0 && double(logits[size_t(order[last])]) < least) --last;
  }
  const double u = double(random_uniform(options.seed, stream_of("sample"), draw)) * cumulative[last];
  const auto it = std::upper_bound(cumulative.begin(), cumulative.begin() + std::ptrdiff_t(last) + 1, u);
  return order[std::min(size_t(it - cumulative.begin()), last)];
}

Sampler::Sampler(const ModelConfig& config, const Recipe& recipe, Backend backend, int64_t capacity)
    : recipe_(recipe), backend_(backend), model_(make_model(config)), logits_(size_t(config.vocab_size)) {
  if (recipe.low_precision())
    throw Error(cat("precision: text is not generated with products in 8 bits, got ", recipe.name,
                    "; use bf16, which has the same weights"),
                Exit::usage);
  CHECK(capacity >= 1 && capacity <= config.max_position_embeddings, "capacity ", capacity);
  const int64_t piece = std::min(kPiece, capacity);
  model_->plan(memory_, recipe_, false, {});
  const Shape cache_shape{capacity + piece - 1, config.num_key_value_heads * config.head_dim};
  cache_.capacity = capacity;
  cache_.k.resize(size_t(config.num_hidden_layers));
  cache_.v.resize(size_t(config.num_hidden_layers));
  for (size_t l = 0; l < cache_.k.size(); ++l) {
    memory_.add(MemoryKind::cache, cat("keys of layer ", l), recipe_.compute, cache_shape, &cache_.k[l]);
    memory_.add(MemoryKind::cache, cat("values of layer ", l), recipe_.compute, cache_shape, &cache_.v[l]);
  }
  plan_inputs(prompt_, piece, "prompt");
  plan_inputs(next_, 1, "next");
  PlanOps plan(backend_.ops);
  for (auto* in : {&prompt_, &next_}) {
    arena_.record(in == &prompt_ ? "prompt" : "next");
    run(context(plan), *in);
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
  if (model_->config().smear_channels > 0) input("previous tokens", {tokens}, &in.batch.previous);
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

Buffer Sampler::run(Ctx c, const Inputs& in) {
  Var x = forward(*model_, c, in.batch, {});
  return logits({c, model_->params()}, std::move(x), in.last_row, model_->head(), model_->head_bias());
}

// An incomplete last piece is padded with tokens that no query sees: their keys and values are past the span's end and
// get overwritten by the following tokens.
void Sampler::feed(const char* phase, Inputs& in, std::span<const int32_t> tokens) {
  const auto n = int64_t(tokens.size()), planned = in.batch.tokens.numel();
  CHECK(n >= 1 && n <= planned && length_ + n <= cache_.capacity, "fed ", n, " tokens at ", length_, " of ",
        cache_.capacity);
  const auto size = size_t(planned);
  std::vector<int32_t> padded(tokens.begin(), tokens.end()), positions(size), rows(size);
  padded.resize(size, 0);
  const auto most = int32_t(model_->config().max_position_embeddings - 1);
  for (int64_t i = 0; i < planned; ++i) {
    rows[size_t(i)] = int32_t(length_ + i);
    positions[size_t(i)] = std::min(int32_t(length_ + i), most);
  }
  const Span span{.q_begin = 0,
                  .q_len = int32_t(n),
                  .k_begin = 0,
                  .k_len = int32_t(length_ + n),
                  .q_pos = int32_t(length_),
                  .k_pos = 0};
  const auto last = int32_t(n - 1);
  Device& device = backend_.device;
  device.copy(in.batch.tokens.data, padded.data(), in.batch.tokens.bytes(), Stream::compute);
  device.copy(in.batch.positions.data, positions.data(), in.batch.positions.bytes(), Stream::compute);
  device.copy(in.batch.cache_rows.data, rows.data(), in.batch.cache_rows.bytes(), Stream::compute);
  device.copy(in.batch.spans.data, &span, sizeof span, Stream::compute);
  device.copy(in.last_row.data, &last, sizeof last, Stream::compute);
  std::vector<int32_t> previous{length_ > 0 ? context_[size_t(length_ - 1)] : int32_t(model_->config().vocab_size)};
  previous.insert(previous.end(), padded.begin(), padded.end() - 1);
  if (in.batch.previous)
    device.copy(in.batch.previous.data, previous.data(), in.batch.previous.bytes(), Stream::compute);
  arena_.begin(phase);
  {
    const Buffer z = run(context(backend_.ops), in);
    const ModelConfig& config = model_->config();
    read_logits(device, z.t, float(config.final_logit_softcapping), config.vocab_size, logits_);
  }
  arena_.end();
  length_ += n;
}

std::span<const float> Sampler::prompt(std::span<const int32_t> tokens) {
  length_ = 0;
  context_.assign(tokens.begin(), tokens.end());
  const auto piece = size_t(prompt_.batch.tokens.numel());
  for (size_t at = 0; at < tokens.size(); at += piece)
    feed("prompt", prompt_, tokens.subspan(at, std::min(piece, tokens.size() - at)));
  return logits_;
}

std::span<const float> Sampler::next(int32_t token) {
  context_.push_back(token);
  if (length_ == cache_.capacity) {
    const std::vector<int32_t> last(context_.end() - std::ptrdiff_t((cache_.capacity + 1) / 2), context_.end());
    return prompt(last);
  }
  feed("next", next_, {&token, 1});
  return logits_;
}

}  // namespace athanor
