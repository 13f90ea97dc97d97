// Sampling with a KV cache matches the full forward pass; sampling obeys temperature, top-k and top-p.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/config.h"
#include "infer/continue_texts.h"
#include "infer/stop_text.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"
#include "tokenizer/load.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

class CachedLogits : public ::testing::TestWithParam<const char*> {};

TEST_P(CachedLogits, MatchTheFullForwardPass) {
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  const ModelConfig config = load_model_config(folder + "/config.json");
  const SafetensorsFile reference(folder + "/reference.safetensors");
  const int64_t t = reference.at("tokens").shape[2], vocab = config.vocab_size, split = 5;
  std::vector<int32_t> tokens(size_t(reference.at("tokens").bytes / 4));
  reference.read(reference.at("tokens"), std::as_writable_bytes(std::span(tokens)));
  std::vector<float> want(size_t(reference.at("logits").bytes / 4));
  reference.read(reference.at("logits"), std::as_writable_bytes(std::span(want)));
  Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), t);
  sampler.commit();
  load_weights(sampler.model().params(), *rig.device, ModelFolder(folder));
  for (int round = 0; round < 2; ++round) {  // a second prompt forgets the first
    std::span<const float> got = sampler.prompt(std::span(tokens).first(size_t(split)));
    for (int64_t at = split;; ++at) {
      for (int64_t v = 0; v < vocab; ++v)
        ASSERT_NEAR(got[size_t(v)], want[size_t((at - 1) * vocab + v)], 2e-5) << "after " << at;
      if (at == t) break;
      got = sampler.next(tokens[size_t(at)]);
    }
  }
}

// With 8-bit weights and activations, with and without separate outliers, logits are near those of fp32 but not equal.
TEST_P(CachedLogits, Int8LogitsAreNearFp32) {
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  const ModelConfig config = load_model_config(folder + "/config.json");
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
  const auto logits = [&](InferenceWeights weights) {
    Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 8, 1, weights);
    sampler.commit();
    load_weights(sampler.model().params(), *rig.device, ModelFolder(folder));
    const auto got = sampler.prompt(tokens);
    return std::vector<float>(got.begin(), got.end());
  };
  if (has_experts(config.model_type)) {
    try {
      logits(InferenceWeights::int8);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("weights: int8 is not supported for experts"), std::string::npos)
          << e.what();
    }
    return;
  }
  const std::vector<float> want = logits(InferenceWeights::as_precision);
  for (const InferenceWeights weights : {InferenceWeights::int8, InferenceWeights::llm_int8}) {
    const std::vector<float> got = logits(weights);
    double squares = 0, errors = 0;
    for (size_t v = 0; v < want.size(); ++v) {
      squares += double(want[v]) * double(want[v]);
      errors += (double(got[v]) - double(want[v])) * (double(got[v]) - double(want[v]));
    }
    EXPECT_LT(errors, 4e-3 * squares);
    EXPECT_GT(errors, 0);
  }
}

TEST_P(CachedLogits, AreSoftCapped) {
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  ModelConfig config = load_model_config(folder + "/config.json");
  const std::vector<int32_t> tokens{3, 1, 4};
  std::vector<float> want;
  for (const double cap : {0.0, 0.5}) {
    config.final_logit_softcapping = cap;
    Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 8);
    sampler.commit();
    load_weights(sampler.model().params(), *rig.device, ModelFolder(folder));
    const auto got = sampler.prompt(tokens);
    if (cap == 0) want.assign(got.begin(), got.end());
    if (cap == 0) continue;
    EXPECT_GT(*std::max_element(want.begin(), want.end()), 0.3);  // where the cap bends
    for (size_t v = 0; v < want.size(); ++v) ASSERT_NEAR(got[v], cap * std::tanh(double(want[v]) / cap), 1e-6) << v;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, CachedLogits,
                         ::testing::Values("gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral", "mixtral",
                                           "qwen2_moe", "qwen3_moe", "olmoe", "dots1", "deepseek_v3", "gpt_oss",
                                           "nanochat", "speedrun", "gated", "gates", "values", "sinks", "after",
                                           "both"),
                         [](const auto& test) { return std::string(test.param); });

// A prompt that fills all positions of the model is processed in several chunks, the last of which is padded.
void long_prompts_equal_their_tokens(const ModelConfig& config) {
  testing::Rig rig;
  Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 150);
  sampler.commit();
  for (const auto& unit : sampler.model().params().units())
    rig.backend().ops.run(RandomNormal{.x = unit->value, .std = 0.3f}, nullptr);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 150; ++i) tokens.push_back(i * i % 67);
  sampler.prompt(std::span(tokens).first(1));
  for (size_t length = 1; length <= tokens.size(); ++length) {
    const auto now = length > 1 ? sampler.next(tokens[length - 1]) : sampler.prompt(std::span(tokens).first(1));
    const std::vector<float> one_by_one(now.begin(), now.end());
    if (length != 63 && length != 64 && length != 65 && length != 128 && length != 150) continue;
    Sampler other(config, make_recipe("fp32", DType::f32), rig.backend(), 150);
    other.commit();
    for (const auto& unit : other.model().params().units())
      rig.backend().ops.run(RandomNormal{.x = unit->value, .std = 0.3f}, nullptr);
    const auto whole = other.prompt(std::span(tokens).first(length));
    for (size_t v = 0; v < whole.size(); ++v) ASSERT_NEAR(whole[v], one_by_one[v], 1e-4) << length;
    if (length == 65) {
      const auto a = other.next(5);
      const std::vector<float> after(a.begin(), a.end());
      std::vector<int32_t> longer(tokens.begin(), tokens.begin() + 65);
      longer.push_back(5);
      const auto b = other.prompt(longer);
      for (size_t v = 0; v < b.size(); ++v) ASSERT_NEAR(after[v], b[v], 1e-4);
    }
  }
}

TEST(Prompts, LongPromptsMatchTokenByTokenDecoding) {
  for (const ModelType type : {ModelType::gpt2, ModelType::athanor})  // the latter with sparse attention
    long_prompts_equal_their_tokens(
        testing::tiny_model(type, {.vocab = 67, .hidden = 16, .heads = 2, .intermediate = 32, .positions = 150}));
}

// Beyond the context each token follows from the last half of it or more, as if that were the prompt.
TEST(Prompts, SlidingContextMatchesANewPrompt) {
  for (const char* name : {"gpt2", "llama", "mistral"}) {
    testing::Rig rig;
    const std::string folder = cat("tests/golden/", name);
    const ModelConfig config = load_model_config(folder + "/config.json");
    const int64_t context = std::min<int64_t>(config.max_position_embeddings, 13);
    Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), context),
        fresh(config, make_recipe("fp32", DType::f32), rig.backend(), context);
    for (Sampler* s : {&sampler, &fresh}) {
      s->commit();
      load_weights(s->model().params(), *rig.device, ModelFolder(folder));
    }
    std::vector<int32_t> tokens{3, 1, 4};
    sampler.prompt(tokens);
    for (int32_t i = 0; i < 40; ++i) {
      const int64_t length = sampler.length();
      const bool slides = length == context;
      tokens.push_back((i * i + 5) % 40);
      const auto got = sampler.next(tokens.back());
      const std::vector<float> after(got.begin(), got.end());
      EXPECT_EQ(sampler.length(), slides ? (context + 1) / 2 : length + 1);
      const auto want = fresh.prompt(std::span(tokens).last(size_t(sampler.length())));
      for (size_t v = 0; v < want.size(); ++v) ASSERT_NEAR(after[v], want[v], 1e-4) << name << " " << i;
    }
  }
}

// Texts of different lengths, one of which slides its context and one of which restarts, match texts sampled alone bit
// for bit.
TEST_P(CachedLogits, BatchedTextsMatchSingleOnesBitExactly) {
  constexpr int64_t kTexts = 5;
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  const ModelConfig config = load_model_config(folder + "/config.json");
  const int64_t context = std::min<int64_t>(config.max_position_embeddings, 11);
  Sampler many(config, make_recipe("fp32", DType::f32), rig.backend(), context, kTexts),
      alone(config, make_recipe("fp32", DType::f32), rig.backend(), context);
  for (Sampler* s : {&many, &alone}) {
    s->commit();
    load_weights(s->model().params(), *rig.device, ModelFolder(folder));
  }
  const auto token = [&](int64_t text, int64_t at) { return int32_t((3 + 7 * text + at * at) % config.vocab_size); };
  const auto start = [&](int64_t text) {
    std::vector<int32_t> tokens;
    for (int64_t at = 0; at <= 2 * text; ++at) tokens.push_back(token(text, at));
    return tokens;
  };
  std::vector<std::vector<std::vector<float>>> got(kTexts);
  for (int64_t text = kTexts - 1; text >= 0; --text) {
    const auto logits = many.prompt(start(text), text);
    got[size_t(text)].emplace_back(logits.begin(), logits.end());
  }
  for (int64_t at = 0; at < 12; ++at) {
    std::vector<NextToken> tokens;
    for (int64_t text = 0; text < kTexts; ++text)
      if ((at + text) % 3 > 0) tokens.push_back({text, token(text, 100 + at)});
    many.next(tokens);
    if (at == 6) many.prompt(start(2), 2);
    for (const auto& [text, unused] : tokens)
      got[size_t(text)].emplace_back(many.logits(text).begin(), many.logits(text).end());
  }
  for (int64_t text = 0; text < kTexts; ++text) {
    auto want = alone.prompt(start(text));
    size_t number = 0;
    ASSERT_TRUE(std::ranges::equal(want, got[size_t(text)][number])) << "prompt of text " << text;
    for (int64_t at = 0; at < 12; ++at) {
      if ((at + text) % 3 == 0) continue;
      want = alone.next(token(text, 100 + at));
      if (at == 6 && text == 2) want = alone.prompt(start(2));
      ASSERT_TRUE(std::ranges::equal(want, got[size_t(text)][++number])) << "text " << text << " after " << at;
    }
  }
}

void fill(Sampler& sampler, testing::Rig& rig, float std) {
  sampler.commit();
  for (const auto& unit : sampler.model().params().units())
    rig.backend().ops.run(RandomNormal{.x = unit->value, .std = std}, nullptr);
}

// GEMMs of up to 8 rows on the CPU sum every row as they sum one.
TEST(Prompts, EightBatchedTextsMatchSingleOnesBitExactlyInLargerGemms) {
  testing::Rig rig;
  const ModelConfig config = testing::tiny_model(
      ModelType::llama, {.vocab = 503, .hidden = 256, .heads = 4, .intermediate = 700, .positions = 150});
  for (const char* precision : {"fp32", "bf16"}) {
    Sampler many(config, make_recipe(precision, DType::f32), rig.backend(), 40, 8),
        alone(config, make_recipe(precision, DType::f32), rig.backend(), 40);
    fill(many, rig, 0.02f);
    fill(alone, rig, 0.02f);
    std::vector<NextToken> next;
    for (int64_t t = 0; t < many.texts(); ++t) {
      many.prompt(std::vector<int32_t>(size_t(1 + 4 * t), int32_t(t)), t);
      next.push_back({t, 5});
    }
    many.next(next);
    for (int64_t t = 0; t < many.texts(); ++t) {
      alone.prompt(std::vector<int32_t>(size_t(1 + 4 * t), int32_t(t)));
      EXPECT_TRUE(std::ranges::equal(alone.next(5), many.logits(t))) << precision << ", text " << t;
    }
  }
}

// Prompts of other lengths make the sampler's capacity larger; on the CPU GEMMs of up to 8 rows round differently.
TEST(Prompts, LogitsDoNotDependOnTheCapacity) {
  testing::Rig rig;
  for (const ModelType type : {ModelType::llama, ModelType::mixtral}) {
    const ModelConfig config =
        testing::tiny_model(type, {.vocab = 97, .hidden = 128, .heads = 4, .intermediate = 300, .positions = 150});
    std::vector<float> first;
    for (const int64_t capacity : {4, 20, 150}) {
      Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), capacity);
      fill(sampler, rig, 0.05f);
      const auto logits = sampler.prompt(std::vector<int32_t>{3, 1, 4});
      if (first.empty()) first.assign(logits.begin(), logits.end());
      EXPECT_TRUE(std::ranges::equal(logits, first)) << name_of(type) << ", capacity " << capacity;
    }
  }
}

// Text, stop reason and order of the sink's calls do not depend on how many texts are sampled at once.
TEST(ContinueTexts, DoNotDependOnOtherPrompts) {
  testing::Rig rig;
  const ModelConfig config = testing::tiny_model(
      ModelType::llama, {.vocab = 260, .hidden = 16, .heads = 2, .intermediate = 32, .positions = 40});
  const auto tokenizer = make_tokenizer({});
  std::vector<Prompt> prompts = {{"", {tokenizer->eod_id()}}};
  for (const char* text : {"a", "long prompts end later", "b", "a", "zzz", "one more than the others have"})
    prompts.push_back({text, tokenizer->encode(text)});
  const ContinueOptions options{
      .sampling = {.temperature = 0.7, .top_k = 30, .seed = 11}, .max_tokens = 60, .stops = {"e", "\x01"}};
  std::vector<std::string> first;
  for (const int64_t at_once : {1, 3, 7, 8}) {
    Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 40, at_once);
    fill(sampler, rig, 0.3f);
    std::vector<std::string> got;
    std::string shown;
    continue_texts(sampler, *tokenizer, prompts, options,
                   {.begin = [&](const Prompt&) { shown.clear(); },
                    .piece = [&](std::string_view piece) { shown += piece; },
                    .end =
                        [&](const Prompt& prompt, const Continuation& c) {
                          EXPECT_EQ(&prompt, &prompts[got.size()]);
                          EXPECT_EQ(shown, c.text);
                          EXPECT_EQ(c.seed, 11 + got.size());
                          got.push_back(cat(c.text, " ", c.tokens, " ", c.stopped_by));
                        }});
    ASSERT_EQ(got.size(), prompts.size());
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << at_once << " at once";
  }
  EXPECT_NE(first[1], first[4]) << "equal prompts have different seeds";
  const auto ended_by = [&](const char* by) {
    return std::ranges::count_if(first, [&](const std::string& text) { return text.ends_with(by); });
  };
  EXPECT_GT(ended_by("stop"), 0);
  EXPECT_GT(ended_by("60 length"), 0);
}

// A token is a draw by its number in the text and the prompt's seed, among the ids that the tokenizer has.
TEST(ContinueTexts, AreSampledTokenByTokenFromSeedAndPosition) {
  testing::Rig rig;
  const ModelConfig config = testing::tiny_model(
      ModelType::llama, {.vocab = 260, .hidden = 16, .heads = 2, .intermediate = 32, .positions = 40});
  const auto tokenizer = make_tokenizer({});
  const std::vector<Prompt> prompts = {{"a", tokenizer->encode("a")}, {"zzz", tokenizer->encode("zzz")}};
  Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 40, 2);
  fill(sampler, rig, 0.3f);
  std::vector<std::string> got;
  continue_texts(sampler, *tokenizer, prompts, {.sampling = {.seed = 5}, .max_tokens = 30},
                 {.begin = [](const Prompt&) {},
                  .piece = [](std::string_view) {},
                  .end = [&](const Prompt&, const Continuation& c) { got.push_back(c.text); }});
  ASSERT_EQ(got.size(), 2u);
  std::string want;
  auto logits = sampler.prompt(prompts[1].tokens, 1);
  for (uint64_t draw = 0; draw < 30; ++draw) {
    const int32_t token = choose_token(logits.first(257), {.seed = 6}, draw);
    if (token == tokenizer->eod_id()) break;
    want += char(token);
    const NextToken next{1, token};
    sampler.next({&next, 1});
    logits = sampler.logits(1);
  }
  EXPECT_EQ(got[1], want);
  EXPECT_GT(want.size(), 5u);
}

// Instruction-tuned models have several tokens that end a text.
TEST(ContinueTexts, StopAtEveryEndToken) {
  testing::Rig rig;
  const ModelConfig config = testing::tiny_model(
      ModelType::llama, {.vocab = 260, .hidden = 16, .heads = 2, .intermediate = 32, .positions = 40});
  const auto tokenizer = make_tokenizer({});
  const std::vector<Prompt> prompts = {{"a", tokenizer->encode("a")}};
  Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), 40, 1);
  fill(sampler, rig, 0.3f);
  const auto continued = [&](std::vector<int32_t> ends) {
    Continuation got;
    continue_texts(sampler, *tokenizer, prompts, {.sampling = {.seed = 6}, .max_tokens = 12, .ends = std::move(ends)},
                   {.begin = [](const Prompt&) {},
                    .piece = [](std::string_view) {},
                    .end = [&](const Prompt&, const Continuation& c) { got = c; }});
    return got;
  };
  const std::string whole = continued({}).text;
  ASSERT_GT(whole.size(), 5u);
  const int32_t fourth = uint8_t(whole[3]);
  const Continuation ended = continued({258, fourth});
  EXPECT_EQ(ended.text, whole.substr(0, whole.find(char(fourth))));
  EXPECT_STREQ(ended.stopped_by, "eod");
}

TEST(StopText, EndsBeforeTheFirstStopForAnyChunking) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"one END two", "one "}, {"EN EN END", "EN EN "}, {"no stop EN", "no stop EN"},
      {"a\n\nb END", "a"},     {"EEND", "E"},           {"", ""},
      {"ENDEND", ""}};
  for (const auto& [text, want] : cases)
    for (size_t piece = 1; piece <= 4; ++piece) {
      StopText stop({"END", "\n\n", ""});
      std::string shown;
      for (size_t at = 0; at < text.size() && !stop.found(); at += piece) shown += stop.add(text.substr(at, piece));
      if (!stop.found()) shown += stop.rest();
      EXPECT_EQ(shown, want) << text << " in pieces of " << piece;
    }
}

TEST(ChooseToken, NeverSamplesMaskedTokens) {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {none, 1.0f, none, 1.0f, none};
  for (const double top_p : {1.0, 0.99})
    for (uint64_t d = 0; d < 2000; ++d) {
      const int32_t token = choose_token(logits, {.top_p = top_p, .seed = 2}, d);
      ASSERT_TRUE(token == 1 || token == 3) << token;
    }
}

TEST(ChooseToken, ZeroTemperatureIsArgmax) {
  EXPECT_EQ(choose_token(std::vector<float>{0.1f, 3.0f, 2.9f}, {.temperature = 0}, 5), 1);
}

TEST(ChooseToken, FrequenciesMatchTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
  double sum = 0, count[4] = {};
  for (const float z : logits) sum += std::exp(double(z));
  constexpr int kDraws = 20000;
  for (uint64_t d = 0; d < kDraws; ++d) ++count[choose_token(logits, {.seed = 3}, d)];
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(count[i] / kDraws, std::exp(double(logits[i])) / sum, 0.01) << i;
}

TEST(ChooseToken, TopKAndTopPKeepTheLikeliest) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};  // probabilities .087 .236 .032 .644
  bool seen[2][4] = {};
  for (uint64_t d = 0; d < 2000; ++d) {
    seen[0][choose_token(logits, {.top_k = 2, .seed = 1}, d)] = true;
    seen[1][choose_token(logits, {.top_p = 0.9, .seed = 1}, d)] = true;
  }
  EXPECT_TRUE(seen[0][3] && seen[0][1]);
  EXPECT_FALSE(seen[0][0] || seen[0][2]);
  EXPECT_TRUE(seen[1][3] && seen[1][1] && seen[1][0]);
  EXPECT_FALSE(seen[1][2]);
}

TEST(ChooseToken, MinPKeepsTokensRelativeToTheLikeliest) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 2.0f};  // .135 .368 .050 1 1 of the likeliest
  const auto drawn = [&](const SamplingOptions& options) {
    std::string ids;
    bool seen[5] = {};
    for (uint64_t d = 0; d < 2000; ++d) seen[choose_token(logits, options, d)] = true;
    for (int i = 0; i < 5; ++i)
      if (seen[i]) ids += char('0' + i);
    return ids;
  };
  EXPECT_EQ(drawn({.min_p = 0.3, .seed = 1}), "134");
  EXPECT_EQ(drawn({.min_p = 0.1, .seed = 1}), "0134");
  EXPECT_EQ(drawn({.min_p = 1, .seed = 1}), "34");                        // equally likely ones stay
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.3, .seed = 1}), "0134");  // of the tempered distribution
  EXPECT_EQ(drawn({.top_k = 1, .min_p = 0.1, .seed = 1}), "3");
}

TEST(ChooseToken, SameSeedGivesTheSameText) {
  const std::vector<float> logits(50, 0.0f);
  for (uint64_t d = 0; d < 20; ++d)
    EXPECT_EQ(choose_token(logits, {.seed = 9}, d), choose_token(logits, {.seed = 9}, d));
}

}  // namespace
}  // namespace athanor
