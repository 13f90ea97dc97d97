// Mixture of experts in whole steps: router counts, experts equivalent to a dense layer, and the router's losses.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"
#include "train/routing_report.h"

namespace athanor {
namespace {

using testing::Rig;

constexpr int64_t kMoeLength = 12, kMoeBatch = 4, kMoeVocab = 61;

ModelConfig tiny(ModelType type) {
  return testing::tiny_model(
      type, {.vocab = kMoeVocab, .hidden = 16, .heads = 4, .kv_heads = 2, .intermediate = 24, .positions = kMoeLength});
}

EngineOptions options(int64_t micro, Recompute recompute = {}) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.recompute = recompute;
  o.seq_length = kMoeLength;
  o.micro_batch_size = micro;
  o.global_batch_size = kMoeBatch;
  o.seed = 5;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-2, .min_lr = 1e-2};
  return o;
}

std::vector<int32_t> tokens_of(const char* name) {
  std::vector<int32_t> t(size_t(kMoeBatch * kMoeLength));
  for (size_t i = 0; i < t.size(); ++i) t[i] = int32_t(random_bits(2, stream_of(name), i) % uint64_t(kMoeVocab));
  return t;
}

void accumulate(Engine& engine) {
  const auto tokens = tokens_of("tokens"), targets = tokens_of("targets");
  const auto each = size_t(engine.options().micro_batch_size * kMoeLength);
  PhaseClock clock;
  for (size_t at = 0; at < tokens.size(); at += each)
    engine.micro_batch(std::span(tokens).subspan(at, each), std::span(targets).subspan(at, each), clock);
}

struct Started {
  Started(const ModelConfig& config, const EngineOptions& o) : engine(config, o, rig.backend()) {
    engine.commit();
    engine.init_weights();
  }
  Rig rig;
  Engine engine;
};

// capacity: expert_capacity_factor; if above 0, some choices of a token are dropped.
void expect_tokens_are_counted_once(double capacity) {
  using Kind = Recompute::Granularity;
  std::vector<double> want;
  const ModelConfig m = tiny(ModelType::qwen3_moe);
  const RouterStatistics at{m.num_experts};
  for (const int64_t micro : {4, 1})
    for (const Recompute recompute : {Recompute{}, Recompute{Kind::selective, 1}, Recompute{Kind::full, 1}}) {
      EngineOptions o = options(micro, recompute);
      o.expert_capacity_factor = capacity;
      Started s(m, o);
      accumulate(s.engine);
      s.engine.finish_step();
      const auto each = size_t(micro * kMoeLength);
      const auto other = tokens_of("other"), targets = tokens_of("targets");
      s.engine.evaluate(std::span(other).first(each), std::span(targets).first(each));
      const std::vector<double> got = s.engine.take_routing();
      ASSERT_EQ(int64_t(got.size()), m.num_hidden_layers * at.size());
      for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) {
        double rows = 0;
        for (int64_t e = 0; e < m.num_experts; ++e) rows += got[size_t(layer * at.size() + e)];
        EXPECT_EQ(rows, double(kMoeBatch * kMoeLength * m.num_experts_per_tok)) << "micro-batches of " << micro;
        EXPECT_EQ(got[size_t(layer * at.size() + at.dropped())] > 0, capacity > 0) << "layer " << layer;
      }
      if (want.empty()) want = got;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * std::abs(want[i])) << i;
      for (const double sum : s.engine.take_routing()) EXPECT_EQ(sum, 0) << "taken twice";
    }
}
TEST(Moe, EveryTrainedTokenIsCountedOnce) {
  for (const double capacity : {0.0, 1.0}) expect_tokens_are_counted_once(capacity);
}

// A small step along the gradient lowers the loss by its length times the gradient's norm: the gradient is that of the
// loss with dropped choices.
TEST(Moe, GradientCoversOnlyKeptChoices) {
  for (const ModelType type : {ModelType::qwen2_moe, ModelType::qwen3_moe, ModelType::dots1}) {
    ModelConfig m = tiny(type);
    m.initializer_range = 0.3;
    m.router_aux_loss_coef = m.router_z_loss_coef = 0;  // these are not in the loss
    EngineOptions o = options(4);
    o.optimizer.rule = RuleName::sgd;
    o.optimizer.sgd_momentum = 0, o.optimizer.weight_decay = 0;
    o.router_bias_rate = 0;
    o.schedule.lr = o.schedule.min_lr = 1e-4;
    o.expert_capacity_factor = 0.7;
    Started s(m, o);
    StepState steps[2];
    for (StepState& step : steps) accumulate(s.engine), step = s.engine.finish_step();
    const double before = steps[0].loss / steps[0].loss_targets, after = steps[1].loss / steps[1].loss_targets;
    EXPECT_NEAR((before - after) / (o.schedule.lr * std::pow(steps[0].grad_norm, 2)), 1, 0.02) << name_of(type);
  }
}

// A capacity that no expert reaches changes no bit, and evaluations have none.
TEST(Moe, OnlyTrainingStepsDropChoices) {
  const ModelConfig m = tiny(ModelType::qwen3_moe);
  const auto tokens = tokens_of("tokens"), targets = tokens_of("targets");
  const auto results = [&](double capacity) {
    EngineOptions o = options(4);
    o.expert_capacity_factor = capacity;
    Started s(m, o);
    std::vector<double> losses = {s.engine.evaluate(tokens, targets)};
    for (int step = 0; step < 2; ++step) accumulate(s.engine), losses.push_back(s.engine.finish_step().loss);
    return losses;
  };
  const std::vector<double> all = results(0), enough = results(2.45),
                            few = results(0.5);  // a factor of 2.5 covers all tokens
  EXPECT_EQ(enough, all);
  EXPECT_EQ(few[0], all[0]) << "evaluation";
  EXPECT_NE(few[1], all[1]);
}

// [layers with experts, E]
std::vector<float> router_bias(Started& s) {
  return s.rig.read<float>(s.engine.model().params().value(s.engine.model().router_bias()));
}

// How much a step of these micro-batches must change the bias, computed from the counts in the routers' records.
std::vector<float> expected_bias(const ModelConfig& m, const std::vector<double>& counted, float rate) {
  const RouterStatistics at{m.num_experts};
  std::vector<float> bias;
  for (int64_t layer = m.first_k_dense_replace; layer < m.num_hidden_layers; ++layer) {
    const auto count = [&](int64_t e) { return counted[size_t(layer * at.size() + e)]; };
    const double mean = double(kMoeBatch * kMoeLength * m.num_experts_per_tok) / double(m.num_experts);
    for (int64_t e = 0; e < m.num_experts; ++e) bias.push_back(count(e) < mean ? rate : count(e) > mean ? -rate : 0.0f);
  }
  return bias;
}

// The bias is updated once per step, from the counts of all micro-batches, without recomputed ones, and in f32 with
// every recipe.
TEST(Moe, RouterBiasFollowsTheCountsOfTheWholeStep) {
  using Kind = Recompute::Granularity;
  const ModelConfig m = tiny(ModelType::dots1);
  constexpr float kRate = 0.0013f;  // not representable in bf16
  for (const char* precision : {"fp32", "bf16"})
    for (const int64_t micro : {4, 1})
      for (const Recompute recompute : {Recompute{}, Recompute{Kind::full, 1}}) {
        EngineOptions o = options(micro, recompute);
        o.recipe = make_recipe(precision, DType::f32);
        o.router_bias_rate = kRate;
        Started s(m, o);
        EXPECT_EQ(router_bias(s), std::vector<float>(size_t(m.num_experts), 0.0f));
        accumulate(s.engine);
        s.engine.finish_step();
        const std::vector<double> counted = s.engine.take_routing();
        for (int64_t i = 0; i < RouterStatistics{m.num_experts}.size(); ++i)
          EXPECT_EQ(counted[size_t(i)], 0) << "layer 0 has no experts";
        EXPECT_EQ(router_bias(s), expected_bias(m, counted, kRate)) << precision << " micro-batches of " << micro;
      }
}

// Evaluations and discarded steps do not change the bias, and neither do gradients, weight decay or averaging.
TEST(Moe, OnlyStepsMoveTheRouterBias) {
  const ModelConfig m = tiny(ModelType::dots1);
  const auto after = [&](bool disturbed) {
    EngineOptions o = options(4);
    o.optimizer.weight_decay = 0.1;
    o.optimizer.ema_decay = 0.9;
    Started s(m, o);
    const auto other = tokens_of("other"), targets = tokens_of("targets");
    for (int step = 0; step < 3; ++step) {
      if (disturbed) s.engine.evaluate(other, targets);
      if (disturbed) {
        PhaseClock clock;
        s.engine.micro_batch(other, targets, clock);
        s.engine.discard_step();
      }
      accumulate(s.engine);
      s.engine.finish_step();
    }
    return router_bias(s);
  };
  const std::vector<float> plain = after(false);
  EXPECT_EQ(plain, after(true));
  for (const float b : plain) EXPECT_NEAR(std::round(1000 * b), 1000 * b, 1e-3) << "steps of the default rate alone";
  EngineOptions still = options(4);
  still.router_bias_rate = 0;
  Started s(m, still);
  accumulate(s.engine);
  s.engine.finish_step();
  EXPECT_EQ(router_bias(s), std::vector<float>(size_t(m.num_experts), 0.0f));
}

// Without an auxiliary loss, only the bias can balance the load of the experts.
TEST(Moe, RouterBiasBalancesLoad) {
  const auto spread = [](float rate) {
    ModelConfig m = tiny(ModelType::dots1);
    m.n_group = m.topk_group = 1, m.initializer_range = 0.5;
    EngineOptions o = options(4);
    o.router_bias_rate = rate;
    o.schedule.lr = o.schedule.min_lr = 1e-5;
    Started s(m, o);
    for (int step = 0; step < 60; ++step) {
      s.engine.take_routing();
      accumulate(s.engine);
      s.engine.finish_step();
    }
    const auto records = routing_records(m, s.engine.take_routing(), 60);
    EXPECT_EQ(records.size(), 1u);
    EXPECT_EQ(records.at(0).layer, 1);
    return records.at(0).largest_share - records.at(0).smallest_share;
  };
  EXPECT_LT(spread(0.01f), spread(0) / 2);
}

// Evaluations, discarded micro-batches and recomputed passes do not count in the balance loss over the global batch.
TEST(Moe, LoadsOfTheGlobalBatchBeginWithEachStep) {
  ModelConfig m = tiny(ModelType::qwen3_moe);
  m.router_aux_loss_coef = 1, m.initializer_range = 0.5;
  const auto other = tokens_of("other"), targets = tokens_of("targets");
  const auto norms = [&](bool disturbed, Recompute recompute) {
    EngineOptions o = options(1, recompute);
    o.aux_loss_scope = AuxLossScope::global_batch;
    Started s(m, o);
    std::vector<double> all;
    for (int step = 0; step < 2; ++step) {
      if (disturbed) {
        PhaseClock clock;
        s.engine.micro_batch(std::span(other).first(kMoeLength), std::span(targets).first(kMoeLength), clock);
        s.engine.discard_step();
        s.engine.evaluate(std::span(other).first(kMoeLength), std::span(targets).first(kMoeLength));
      }
      accumulate(s.engine);
      all.push_back(s.engine.finish_step().grad_norm);
    }
    return all;
  };
  const std::vector<double> plain = norms(false, {});
  EXPECT_EQ(norms(true, {}), plain);
  EXPECT_EQ(norms(false, {Recompute::Granularity::full, 1}), plain);
}

TEST(Moe, ModelsWithoutExpertsCountNothing) {
  Started s(tiny(ModelType::qwen3), options(4));
  accumulate(s.engine);
  s.engine.finish_step();
  EXPECT_TRUE(s.engine.take_routing().empty());
}

// Identical experts whose weights sum to 1 are equivalent to the dense layer that each of them is.
TEST(Moe, EqualExpertsMatchTheDenseLayer) {
  ModelConfig m = tiny(ModelType::qwen3_moe);
  m.norm_topk_prob = true;
  Started dense(tiny(ModelType::qwen3), options(4)), experts(m, options(4));
  std::map<std::string, Tensor> weights;
  const auto master = [](Engine& engine, const ParamStore::Piece& piece) {
    const Tensor& all = engine.model().params().units()[size_t(piece.unit)]->master;
    return all.slice(piece.offset, piece.offset + piece.slice->shape.numel());
  };
  for (const auto& piece : dense.engine.model().params().pieces())
    weights[piece.slice->name] = master(dense.engine, piece);
  for (const auto& piece : experts.engine.model().params().pieces()) {
    std::string name = piece.slice->name;
    if (name.ends_with("mlp.gate.weight")) continue;
    if (const size_t at = name.find("experts."); at != std::string::npos)
      name.erase(at, name.find('.', at + 8) + 1 - at);
    const Tensor to = master(experts.engine, piece), from = weights.at(name);
    experts.rig.device->copy(to.data, from.data, to.bytes(), Stream::compute);
  }
  experts.rig.device->sync();
  experts.engine.refresh_values();
  const auto tokens = tokens_of("tokens"), targets = tokens_of("targets");
  dense.engine.evaluate(tokens, targets);
  experts.engine.evaluate(tokens, targets);
  const auto want = dense.engine.losses(), got = experts.engine.losses();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6 * want[i]) << i;
}

// Steps that use only the router's losses: nothing else can raise the entropy, or pull log-sum-exps towards 0.
TEST(Moe, RouterLossesBalanceLoad) {
  const auto after = [](double balance, double z, AuxLossScope scope = AuxLossScope::sequence) {
    ModelConfig m = tiny(ModelType::qwen3_moe);
    m.initializer_range = 0.5;  // the load is unbalanced at first
    m.router_aux_loss_coef = balance, m.router_z_loss_coef = z;
    EngineOptions o = options(4);
    o.aux_loss_scope = scope;
    Started s(m, o);
    for (int step = 0; step < 40; ++step) {
      s.engine.take_routing();
      accumulate(s.engine);
      s.engine.finish_step();
    }
    return routing_records(m, s.engine.take_routing(), 40);
  };
  const auto plain = after(0, 0), balanced = after(10, 0), small = after(0, 1);
  const auto by_micro_batch = after(10, 0, AuxLossScope::micro_batch);
  const auto by_step = after(10, 0, AuxLossScope::global_batch);
  ASSERT_EQ(plain.size(), 2u);
  for (size_t layer = 0; layer < plain.size(); ++layer) {
    EXPECT_GT(plain[layer].balance_loss, 1.02) << layer;
    EXPECT_LT(balanced[layer].balance_loss - 1, (plain[layer].balance_loss - 1) / 2) << layer;
    for (const auto& scope : {by_micro_batch, by_step})
      EXPECT_LT(scope[layer].largest_share - scope[layer].smallest_share,
                (plain[layer].largest_share - plain[layer].smallest_share) / 2)
          << layer;
    EXPECT_LT(small[layer].z_loss, plain[layer].z_loss / 2) << layer;
  }
}

TEST(RoutingAlarm, NamesLayersWithDeadOrOverfullExperts) {
  Config c;
  c.model.num_experts = 8, c.model.num_experts_per_tok = 2;
  const RoutingMetrics healthy{.layer = 0, .tokens = 1000, .largest_share = 0.4, .smallest_share = 0.1};
  EXPECT_EQ(routing_alarm(std::vector{healthy}, c), "");
  RoutingMetrics dead = healthy, full = healthy;
  dead.layer = 3, dead.dead_experts = 2;
  full.layer = 5, full.largest_share = 0.97;
  const std::string text = routing_alarm(std::vector{healthy, dead, full}, c);
  EXPECT_NE(text.find("no token chose, by layer: 3 (2 of 8)"), text.npos) << text;
  EXPECT_NE(text.find("nearly all tokens, by layer: 5 (97 %)"), text.npos) << text;
  RoutingMetrics dropping = healthy;
  dropping.layer = 2, dropping.dropped_share = 0.31;
  const std::string drops = routing_alarm(std::vector{healthy, dropping}, c);
  EXPECT_NE(drops.find("dropped, by layer: 2 (31 %); raise"), drops.npos) << drops;
  EXPECT_NE(drops.find("moe.expert_capacity_factor"), drops.npos) << drops;
  dead.tokens = 100;  // 25 rows per expert: too few for an alarm
  EXPECT_EQ(routing_alarm(std::vector{dead}, c), "");
  c.model.num_experts = 2;
  EXPECT_EQ(routing_alarm(std::vector{full}, c), "") << "every token passes both";
}

TEST(RoutingAlarm, NamesTheBiasRateOnlyInRunsThatMoveTheBias) {
  Config c;
  c.model.num_experts = 8, c.model.num_experts_per_tok = 2;
  const std::vector<RoutingMetrics> full{{.tokens = 1000, .largest_share = 0.97, .smallest_share = 0.1}};
  const auto names_rate = [&](ModelType type, int64_t lora_rank) {
    c.model.model_type = type, c.lora_rank = lora_rank;
    return routing_alarm(full, c).find("moe.router_bias_update_rate") != std::string::npos;
  };
  EXPECT_TRUE(names_rate(ModelType::dots1, 0));
  EXPECT_FALSE(names_rate(ModelType::dots1, 4)) << "adapters freeze the bias";
  EXPECT_FALSE(names_rate(ModelType::mixtral, 0));
}

TEST(Routing, OlderCheckpointsLoadWithoutDroppedChoices) {
  ModelConfig m = tiny(ModelType::qwen3_moe);
  m.num_experts = 2;
  const std::vector<double> older = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, now = {1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 0};
  EXPECT_EQ(with_dropped(m, older), now);
  EXPECT_EQ(with_dropped(m, now), now);
  EXPECT_EQ(with_dropped(m, {}), std::vector<double>{});
}

TEST(Routing, RecordsReportTheFractionOfDroppedChoices) {
  ModelConfig m = tiny(ModelType::qwen3_moe);
  m.num_hidden_layers = 1, m.num_experts = 2, m.num_experts_per_tok = 1;
  EXPECT_EQ(routing_records(m, std::vector<double>{6, 2, 0, 0, 0, 2}, 1).at(0).dropped_share, 0.25);
}

}  // namespace
}  // namespace athanor
