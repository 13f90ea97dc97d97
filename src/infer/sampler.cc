#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "model/int8_weights.h"

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

Sampler::Sampler(const ModelConfig& config, const Recipe& recipe, Backend backend, int64_t capacity, int64_t texts,
                 InferenceWeights weights)
    : recipe_(recipe), backend_(backend), model_(make_model(config)) {
  if (recipe.low_precision())
    throw Error(cat("precision: ", recipe.name,
                    " is not supported for generating text; use bf16, which reads the same weights"),
                Exit::usage);
  CHECK(capacity >= 1 && capacity <= config.max_position_embeddings && texts >= 1, "capacity ", capacity, " of ", texts,
        " texts");
  texts_.assign(size_t(texts), {.logits = std::vector<float>(size_t(config.vocab_size))});
  store_for_inference(*model_, weights, recipe_);
  model_->plan(memory_, recipe_, false, {});
  cache_rows_ = capacity + kPiece - 1;
  const Shape cache_shape{texts * cache_rows_, config.num_key_value_heads * config.head_dim};
  cache_.capacity = capacity;
  cache_.k.resize(size_t(config.num_hidden_layers));
  cache_.v.resize(size_t(config.num_hidden_layers));
  for (size_t l = 0; l < cache_.k.size(); ++l) {
    memory_.add(MemoryKind::cache, cat("keys of layer ", l), recipe_.compute, cache_shape, &cache_.k[l]);
    memory_.add(MemoryKind::cache, cat("values of layer ", l), recipe_.compute, cache_shape, &cache_.v[l]);
  }
  plan_inputs(prompt_, kPiece, 1, "prompt");
  plan_inputs(next_, texts, texts, "next");
  PlanOps plan(backend_.ops);
  for (auto* in : {&prompt_, &next_}) {
    arena_.record(in == &prompt_ ? "prompt" : "next");
    run(context(plan), *in);
    arena_.finish_recording();
  }
  memory_.add(arena_);
}

void Sampler::plan_inputs(Inputs& in, int64_t tokens, int64_t spans, const char* name) {
  const auto input = [&](const char* what, Shape shape, Tensor* t) {
    memory_.add(MemoryKind::inputs, cat(name, " ", what), DType::i32, shape, t);
  };
  input("tokens", {tokens}, &in.batch.tokens);
  input("positions", {tokens}, &in.batch.positions);
  if (model_->config().smear_channels > 0) input("previous tokens", {tokens}, &in.batch.previous);
  input("cache rows", {tokens}, &in.batch.cache_rows);
  input("spans", {spans, kSpanWords}, &in.batch.spans);
  input("last rows", {spans}, &in.last_rows);
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
  return athanor::logits({c, model_->params()}, std::move(x), in.last_rows, model_->head(), model_->head_bias());
}

// Appends a row for token number `at` of the text.
void Sampler::add(Fed& fed, int64_t text, int64_t at, int32_t token) const {
  const std::vector<int32_t>& context = texts_[size_t(text)].context;
  const bool known = at > 0 && at <= int64_t(context.size());
  fed.tokens.push_back(token);
  fed.previous.push_back(known ? context[size_t(at - 1)] : int32_t(model_->config().vocab_size));
  fed.positions.push_back(int32_t(std::min(at, model_->config().max_position_embeddings - 1)));
  fed.cache_rows.push_back(int32_t(text * cache_rows_ + at));
}

// Runs a forward pass; returns logits [spans, V].
std::vector<float> Sampler::feed(const char* phase, const Inputs& in, const Fed& fed) {
  Device& device = backend_.device;
  const auto upload = [&](const Tensor& to, const auto& values) {
    CHECK(to.bytes() == values.size() * sizeof(values.front()), phase, ": ", values.size(), " values for ", to.shape);
    device.copy(to.data, values.data(), to.bytes(), Stream::compute);
  };
  upload(in.batch.tokens, fed.tokens);
  upload(in.batch.positions, fed.positions);
  if (in.batch.previous) upload(in.batch.previous, fed.previous);
  upload(in.batch.cache_rows, fed.cache_rows);
  upload(in.batch.spans, fed.spans);
  upload(in.last_rows, fed.last_rows);
  const ModelConfig& config = model_->config();
  std::vector<float> logits(fed.spans.size() * size_t(config.vocab_size));
  arena_.begin(phase);
  {
    const Buffer z = run(context(backend_.ops), in);
    read_logits(device, z.t, float(config.final_logit_softcapping), config.vocab_size, logits);
  }
  arena_.end();
  return logits;
}

// Pads an incomplete last piece with tokens that no query sees: their keys and values are past the span's end and are
// overwritten by the following tokens.
void Sampler::feed_prompt(int64_t text, std::span<const int32_t> tokens) {
  Text& t = texts_[size_t(text)];
  const auto n = int64_t(tokens.size()), planned = prompt_.batch.tokens.numel();
  CHECK(n >= 1 && n <= planned && t.length + n <= cache_.capacity, "fed ", n, " tokens at ", t.length, " of ",
        cache_.capacity);
  Fed fed;
  for (int64_t i = 0; i < planned; ++i) add(fed, text, t.length + i, i < n ? tokens[size_t(i)] : 0);
  fed.spans.push_back({.q_begin = 0,
                       .q_len = int32_t(n),
                       .k_begin = int32_t(text * cache_rows_),
                       .k_len = int32_t(t.length + n),
                       .q_pos = int32_t(t.length),
                       .k_pos = 0});
  fed.last_rows.push_back(int32_t(n - 1));
  t.logits = feed("prompt", prompt_, fed);
  t.length += n;
}

std::span<const float> Sampler::prompt(std::span<const int32_t> tokens, int64_t text) {
  Text& t = texts_[size_t(text)];
  t.length = 0;
  t.context.assign(tokens.begin(), tokens.end());
  for (size_t at = 0; at < tokens.size(); at += kPiece)
    feed_prompt(text, tokens.subspan(at, std::min<size_t>(kPiece, tokens.size() - at)));
  return t.logits;
}

// Row i belongs to text i. A text without a token also has a row, which no query sees and the text's next token
// overwrites.
void Sampler::next(std::span<const NextToken> tokens) {
  std::vector<const NextToken*> fed_to(texts_.size());
  for (const NextToken& next : tokens) {
    Text& t = texts_[size_t(next.text)];
    t.context.push_back(next.token);
    if (t.length == cache_.capacity)
      prompt(std::vector<int32_t>(t.context.end() - std::ptrdiff_t((cache_.capacity + 1) / 2), t.context.end()),
             next.text);
    else
      fed_to[size_t(next.text)] = &next;
  }
  if (std::ranges::count(fed_to, nullptr) == std::ptrdiff_t(fed_to.size())) return;
  Fed fed;
  for (int64_t i = 0; i < texts(); ++i) {
    const NextToken* next = fed_to[size_t(i)];
    const int64_t at = length(i);
    add(fed, i, at, next ? next->token : 0);
    fed.spans.push_back({.q_begin = int32_t(i),
                         .q_len = next ? 1 : 0,
                         .k_begin = int32_t(i * cache_rows_),
                         .k_len = int32_t(at + 1),
                         .q_pos = int32_t(at),
                         .k_pos = 0});
    fed.last_rows.push_back(int32_t(i));
  }
  const std::vector<float> all = feed("next", next_, fed);
  for (int64_t i = 0; i < texts(); ++i) {
    if (!fed_to[size_t(i)]) continue;
    Text& t = texts_[size_t(i)];
    const auto vocab = std::ptrdiff_t(t.logits.size());
    t.logits.assign(all.begin() + i * vocab, all.begin() + (i + 1) * vocab);
    ++t.length;
  }
}

}  // namespace athanor
