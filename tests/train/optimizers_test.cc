// Update rules: 20 steps match an independent implementation; Muon knows which matrices a tensor contains and which of
// their axes are inputs; param groups choose rules by name and role.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "tests/ops/optimizer_references.h"
#include "tests/train/optimizer_rig.h"

namespace athanor::optimizers {
namespace {

TEST(Optimizers, MatchAnIndependentImplementation) {
  namespace r = references;
  OptimizerOptions sgd = with(RuleName::sgd), plain = sgd, nesterov = sgd;
  plain.sgd_momentum = 0;
  nesterov.sgd_nesterov = true;
  OptimizerOptions original = with(RuleName::muon);
  original.muon_nesterov = false;
  OptimizerOptions match_rms = original;
  original.muon_scale = MuonScale::original;
  expect_near(after_20_steps(with(RuleName::adamw)), r::kAdamw, 1e-6, "adamw");
  expect_near(after_20_steps(with(RuleName::adam)), r::kAdam, 1e-6, "adam");
  expect_near(after_20_steps(plain), r::kSgd, 1e-6, "sgd");
  expect_near(after_20_steps(sgd), r::kSgdMomentum, 1e-6, "sgd with momentum");
  expect_near(after_20_steps(nesterov), r::kSgdNesterov, 1e-6, "sgd with Nesterov momentum");
  expect_near(after_20_steps(with(RuleName::lion)), r::kLion, 1e-6, "lion");
  expect_near(after_20_steps(with(RuleName::lamb)), r::kLamb, 1e-6, "lamb");
  expect_near(after_20_steps(original), r::kMuonOriginal, 1e-4, "muon");
  expect_near(after_20_steps(match_rms), r::kMuonMatchRms, 1e-4, "muon, match_rms");
}

TEST(Optimizers, WeightAverageMatchesAnIndependentImplementation) {
  OptimizerOptions o = with(RuleName::adamw);
  o.ema_decay = 0.9;
  Trained t({matrix("w", {kRows, kColumns})}, o);
  t.set(t.master(), values(start, kRows, kColumns, false));
  const auto average = [&] { return t.rig.read<float>(t.flat(t.params.units()[0]->states[2].t, 0)); };
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, kRows, kColumns, false));
    t.step();
    if (step == 0) {
      EXPECT_EQ(average(), t.weights()) << "the first average is the weights";
    }
  }
  expect_near(t.weights(), references::kAdamw, 1e-6, "weights");
  expect_near(average(), references::kAdamwAverage, 1e-6, "average");
  const auto before = average();
  t.set(t.grad(), std::vector<float>(before.size(), NAN));
  t.step(NAN);
  EXPECT_EQ(average(), before) << "a skipped step is none";
}

// The average is the mean of the weights after each step beyond the twelfth; before that, it is the weights themselves.
TEST(Optimizers, TailAverageIsTheMeanOfTheLastWeights) {
  OptimizerOptions o = with(RuleName::lion);
  o.tail_average_start = 12;
  Trained t({matrix("w", {kRows, kColumns})}, o);
  t.set(t.master(), values(start, kRows, kColumns, false));
  const auto average = [&] { return t.rig.read<float>(t.flat(t.params.units()[0]->states[1].t, 0)); };
  std::vector<double> sum(size_t(kRows * kColumns)), later = sum;
  for (int step = 1; step <= 20; ++step) {
    t.set(t.grad(), std::vector<float>(sum.size(), NAN));
    t.step(NAN);  // a skipped step does not count
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, kRows, kColumns, false));
    t.step();
    const std::vector<float> now = t.weights();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += step > 12 ? now[i] : 0, later[i] += step > 13 ? now[i] : 0;
    if (step <= 13) expect_near(average(), std::vector<double>(now.begin(), now.end()), 1e-6, cat("step ", step));
  }
  for (double& x : sum) x /= 8;
  for (double& x : later) x /= 7;
  const auto got = average();
  expect_near(got, sum, 1e-6, "mean");
  double least_off = 0;  // distance to a mean that starts one step later, which must be detectable
  for (size_t i = 0; i < got.size(); ++i) least_off = std::max(least_off, std::abs(double(got[i]) - later[i]));
  EXPECT_GT(least_off, 1e-3);
}

TEST(Muon, Gpt2LayoutMatchesTheTransposedUpdate) {
  for (const MuonScale scale : {MuonScale::original, MuonScale::match_rms, MuonScale::spectral})
    for (const auto coefficients : {MuonCoefficients::quintic, MuonCoefficients::polar_express}) {
      OptimizerOptions o = with(RuleName::muon);
      o.muon_scale = scale, o.muon_coefficients = coefficients;
      const auto rows = after_20_steps(o);
      const std::vector<double> want(rows.begin(), rows.end());
      expect_near(after_20_steps(o, true), want, 1e-4, cat("scale ", int(scale)));
    }
}

// One step from zero weights: minus learning rate times scale times an orthogonal matrix, whatever the size of the
// gradient.
TEST(Muon, UpdatesAreNearlyOrthogonalForAnyGradient) {
  for (const char* precision : {"fp32", "bf16"})
    for (const auto coefficients : {MuonCoefficients::quintic, MuonCoefficients::polar_express})
      for (const float size : {1e-5f, 1.f, 1e5f}) {
        OptimizerOptions o = with(RuleName::muon);
        o.muon_scale = MuonScale::original, o.muon_coefficients = coefficients;
        Trained t({matrix("w", {24, 40})}, o, precision);
        std::vector<float> g(24 * 40);
        for (size_t i = 0; i < g.size(); ++i) g[i] = size * random_normal(3, 4, i);
        t.set(t.master(), std::vector<float>(g.size()));
        t.set(t.grad(), g);
        t.step();
        const auto w = t.weights();
        double trace = 0, inner = 0;  // trace: of W W', over squared learning rate; inner: product of W and G
        for (size_t i = 0; i < w.size(); ++i) trace += double(w[i]) * w[i], inner += double(w[i]) * g[i];
        EXPECT_LT(inner, 0) << "downhill";
        EXPECT_NEAR(trace / (kRate * kRate) / 24, coefficients == MuonCoefficients::quintic ? 0.8 : 1.0, 0.25);
        EXPECT_EQ(t.rig.read<float>(t.grad()), std::vector<float>(g.size())) << "gradients start the next step at zero";
      }
}

// Q, K and V in one tensor are three matrices, stored next to each other in rows (Llama) or columns (GPT-2).
TEST(Muon, FusedQkvIsOrthogonalizedPerMatrix) {
  const int64_t c = 8;
  const auto value = [&](int part, int64_t r, int64_t k) { return float(gradient(100 * part + r * c + k, part + 1)); };
  std::vector<std::vector<float>> apart;
  {
    Trained t({matrix("q", {c, c}, true), matrix("k", {c, c}, true), matrix("v", {c, c}, true)}, with(RuleName::muon));
    for (int p = 0; p < 3; ++p) {
      std::vector<float> g;
      for (int64_t r = 0; r < c; ++r)
        for (int64_t k = 0; k < c; ++k) g.push_back(value(p, r, k));
      t.set(t.grad(size_t(p)), g);
    }
    t.step();
    for (size_t p = 0; p < 3; ++p) apart.push_back(t.weights(p));
  }
  ParamSpec stacked{.name = "qkv", .shape = {3 * c, c}, .role = Role::matrix, .in_out = true};
  for (int64_t p = 0; p < 3; ++p) stacked.slices.push_back({cat("part", p), {c, c}, p * c * c});
  ParamSpec beside = matrix("c_attn", {c, 3 * c}, true);
  beside.cut = {.axis = 1, .parts = {c, c, c}, .whole = 4};
  for (const bool columns : {false, true}) {
    Trained t({columns ? beside : stacked}, with(RuleName::muon));
    const auto at = [&](int64_t p, int64_t r, int64_t k) {
      return size_t(columns ? r * 3 * c + p * c + k : (p * c + r) * c + k);
    };
    std::vector<float> g(size_t(3 * c * c));
    for (int p = 0; p < 3; ++p)
      for (int64_t r = 0; r < c; ++r)
        for (int64_t k = 0; k < c; ++k) g[at(p, r, k)] = value(p, r, k);
    const Tensor all = t.params.units()[0]->grad.slice(0, 3 * c * c);
    t.set(all, g);
    t.step();
    const auto w = t.rig.read<float>(t.params.units()[0]->master.slice(0, 3 * c * c));
    for (int p = 0; p < 3; ++p)
      for (int64_t r = 0; r < c; ++r)
        for (int64_t k = 0; k < c; ++k)
          EXPECT_EQ(w[at(p, r, k)], apart[size_t(p)][size_t(r * c + k)]) << (columns ? "columns " : "rows ") << p;
  }
}

// [Li et al. 2025, "NorMuon"] in double, with Muon's quintic polynomial; and mistakes that a test must detect.
enum class Mistake { none, uphill, decay_twice, other_axis, other_norm, mean_of_all };
std::vector<double> normuon_in_double(Mistake mistake) {
  constexpr size_t m = kRows, n = kColumns;
  std::vector<double> w(m * n), average(m * n), x(m * n), v(m * n);  // v: per output, at its first element
  const auto norm = [&] {
    double sum = 0;
    for (const double e : x) sum += e * e;
    return std::sqrt(sum);
  };
  for (size_t i = 0; i < m * n; ++i) w[i] = float(start(int64_t(i)));
  for (int step = 0; step < 20; ++step) {
    for (size_t i = 0; i < m * n; ++i) {
      const double g = float(gradient(int64_t(i), step));
      average[i] = 0.95 * average[i] + 0.05 * g;
      x[i] = 0.05 * g + 0.95 * average[i];
    }
    const double size = norm() + 1e-7;
    for (double& e : x) e /= size;
    for (int turn = 0; turn < 5; ++turn) {
      std::vector<double> gram(n * n), factor(n * n), next(m * n);
      for (size_t r = 0; r < m; ++r)
        for (size_t i = 0; i < n; ++i)
          for (size_t k = 0; k < n; ++k) gram[i * n + k] += x[r * n + i] * x[r * n + k];
      for (size_t i = 0; i < n; ++i)
        for (size_t k = 0; k < n; ++k) {
          factor[i * n + k] = (i == k ? 3.4445 : 0) - 4.7750 * gram[i * n + k];
          for (size_t j = 0; j < n; ++j) factor[i * n + k] += 2.0315 * gram[i * n + j] * gram[j * n + k];
        }
      for (size_t r = 0; r < m; ++r)
        for (size_t k = 0; k < n; ++k)
          for (size_t i = 0; i < n; ++i) next[r * n + k] += x[r * n + i] * factor[i * n + k];
      x = next;
    }
    const double before = norm();
    const auto of = [&](size_t i) {
      return mistake == Mistake::mean_of_all ? 0 : mistake == Mistake::other_axis ? i % n : i / n * n;
    };
    std::vector<double> mean(m * n), count(m * n);
    for (size_t i = 0; i < m * n; ++i) mean[of(i)] += x[i] * x[i], ++count[of(i)];
    for (size_t i = 0; i < m * n; ++i)
      if (count[i] > 0) v[i] = 0.95 * v[i] + 0.05 * mean[i] / count[i];
    for (size_t i = 0; i < m * n; ++i) x[i] /= std::sqrt(v[of(i)]) + 1e-10;
    const double scale = 0.2 * std::sqrt(double(m)) * (mistake == Mistake::other_norm ? 1 : before / norm());
    const double kept = 1 - kRate * kDecay * (mistake == Mistake::decay_twice ? 2 : 1);
    for (size_t i = 0; i < m * n; ++i)
      w[i] = w[i] * kept - (mistake == Mistake::uphill ? -1 : 1) * kRate * scale * x[i];
  }
  return w;
}

TEST(NorMuon, MatchesPaperReference) {
  const auto got = after_20_steps(with(RuleName::normuon)), in_out = after_20_steps(with(RuleName::normuon), true);
  expect_near(got, normuon_in_double(Mistake::none), 1e-4, "normuon");
  expect_near(in_out, normuon_in_double(Mistake::none), 1e-4, "normuon of inputs in rows");
  for (const Mistake mistake :
       {Mistake::uphill, Mistake::decay_twice, Mistake::other_axis, Mistake::other_norm, Mistake::mean_of_all}) {
    const std::vector<double> wrong = normuon_in_double(mistake);
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - wrong[i]));
    EXPECT_GT(most, 1e-3) << int(mistake);
  }
}

// A weight decays only if the rest of its update does not increase its magnitude, bit for bit.
TEST(Optimizers, CautiousDecaySkipsWeightsThatGrow) {
  for (const RuleName rule :
       {RuleName::adamw, RuleName::lion, RuleName::muon, RuleName::normuon, RuleName::schedule_free_adamw}) {
    const auto before = values(start, kRows, kColumns, false);
    const auto after = [&](double decay, bool cautious) {
      OptimizerOptions o = with(rule);
      o.weight_decay = decay;
      o.cautious_weight_decay = cautious;
      Trained t({matrix("w", {kRows, kColumns})}, o);
      t.set(t.master(), before);
      t.set(t.grad(), values([](int64_t i) { return gradient(i, 1); }, kRows, kColumns, false));
      t.step();
      return t.weights();
    };
    const auto without = after(0, false), always = after(kDecay, false), cautious = after(kDecay, true);
    size_t grown = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const bool grows = std::abs(without[i]) > std::abs(before[i]);
      grown += grows;
      EXPECT_EQ(cautious[i], grows ? without[i] : always[i]) << kRuleNames[size_t(rule)] << " element " << i;
    }
    EXPECT_GT(grown, 5U);
    EXPECT_LT(grown, before.size() - 5);
  }
}

TEST(Optimizers, SkippedStepChangesNothing) {
  for (const RuleName rule : {RuleName::adam, RuleName::sgd, RuleName::lion, RuleName::muon, RuleName::normuon,
                              RuleName::lamb, RuleName::schedule_free_adamw, RuleName::adamw}) {
    OptimizerOptions o = with(rule);
    if (rule == RuleName::adamw) o.update_clip_threshold = 0.6;  // otherwise the rule behaves like adam
    Trained t({matrix("w", {kRows, kColumns})}, o);
    const auto before = values(start, kRows, kColumns, false);
    t.set(t.master(), before);
    t.set(t.grad(), std::vector<float>(before.size(), NAN));
    t.step(NAN);
    EXPECT_EQ(t.weights(), before);
    EXPECT_EQ(t.rig.read<float>(t.grad()), std::vector<float>(before.size()));
    EXPECT_EQ(t.rig.read<float>(t.params.units()[0]->states[0].t)[0], 0);
  }
}

std::vector<ParamSpec> three() {
  return {matrix("h.0.mlp", {4, 6}),
          matrix("h.1.mlp", {4, 6}),
          {.name = "norm", .shape = {5}, .role = Role::vector, .slices = {{"norm.weight", {5}, 0}}}};
}

// The first matching group applies to a weight; values that a group does not give are the run's; frozen weights stay.
TEST(Groups, FirstMatchWins) {
  OptimizerOptions o = with(RuleName::adamw);
  o.groups = {{.match = "h.0.*", .rule = RuleName::lion, .weight_decay = 0.0},
              {.match = "h.*", .frozen = true},
              {.role = Role::vector, .lr_factor = 0.5, .weight_decay = 0.0}};
  Trained t(three(), o);
  EXPECT_EQ(t.optimizer->averages(), (std::vector<Average>{{0.9, true}, {0.95}}));
  const auto& states = t.params.units()[0]->states;
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].t.numel(), 64 + 64) << "m of the first matrix and, with its padding, of the vector";
  EXPECT_EQ(states[1].t.numel(), 64) << "v of the vector";
  for (size_t p = 0; p < 3; ++p) {
    t.set(t.master(p), std::vector<float>(size_t(t.master(p).numel()), 1));
    t.set(t.grad(p), std::vector<float>(size_t(t.grad(p).numel()), 0.25f));
  }
  t.step();
  EXPECT_FLOAT_EQ(t.weights(0)[3], float(1 - kRate));
  EXPECT_FLOAT_EQ(t.weights(1)[3], 1);
  EXPECT_NEAR(t.weights(2)[3], 1 - kRate / 2, 1e-6);
  const auto lines = describe_groups(o, t.params);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "param_groups[0]: lion, learning rate x 1, weight decay 0, 24 parameters: h.*.mlp.weight");
  EXPECT_EQ(lines[1], "param_groups[1]: frozen, 24 parameters: h.*.mlp.weight");
}

TEST(Groups, ReportWhyNoWeightHas8BitMoments) {
  const auto why = [](std::vector<ParamSpec> specs, const OptimizerOptions& o) {
    Trained t(std::move(specs), o);
    return why_no_8bit_moments(o, t.params);
  };
  const OptimizerOptions coded = with(RuleName::adamw_8bit);
  const ParamSpec table{
      .name = "table", .shape = {64, 64}, .role = Role::embedding, .slices = {{"table", {64, 64}, 0}}};
  EXPECT_EQ(why({matrix("small", {4, 6})}, with(RuleName::adamw)), "");
  EXPECT_EQ(why({matrix("small", {4, 6}), matrix("large", {64, 64})}, coded), "");
  const std::string first =
      "optimizer adamw_8bit: no weight has 8-bit moments, so it updates all of them as adamw does, with moments of f32 "
      "and f32; it keeps 8-bit moments of hidden layers' matrices of at least 4096 elements (adam.min_8bit_size) that "
      "are "
      "whole blocks of 256, ";
  EXPECT_EQ(why({matrix("less", {4, 6}), matrix("small", {32, 64})}, coded),
            first + "and the largest, small.weight [32, 64], has 2048 elements; lower adam.min_8bit_size");
  EXPECT_EQ(why({matrix("ragged", {65, 65})}, coded),
            first + "and the largest, ragged.weight [65, 65], is not; choose sizes that are multiples of 256");
  EXPECT_EQ(why({table}, coded), first + "and none of its weights is one");
  OptimizerOptions grouped = with(RuleName::adamw);
  grouped.groups.insert(grouped.groups.begin(), {.match = "small*", .rule = RuleName::adamw_8bit});
  EXPECT_NE(why({matrix("small", {4, 6}), matrix("large", {64, 64})}, grouped), "");
  grouped.groups.front().frozen = true;
  EXPECT_EQ(why({matrix("small", {4, 6}), matrix("large", {64, 64})}, grouped), "");
}

std::string refusal(const OptimizerOptions& o) {
  try {
    Trained t(three(), o);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Groups, InvalidGroupsAreRefusedByName) {
  OptimizerOptions o = with(RuleName::adamw);
  o.groups = {{.match = "h.*.mpl.weight"}};
  EXPECT_EQ(refusal(o),
            "param_groups[0]: match \"h.*.mpl.weight\" matches no parameter; the nearest is h.0.mlp.weight");
  o.groups = {{.match = "norm*", .rule = RuleName::muon}};
  EXPECT_EQ(refusal(o),
            "param_groups[0]: muon updates matrices of hidden layers; norm.weight is a vector: set another optimizer "
            "for it in param_groups");
  o.groups.front().frozen = true;
  EXPECT_EQ(refusal(o), "") << "it updates nothing";
  o.groups.clear();
  for (int i = 0; i < 9; ++i) o.groups.push_back({.match = cat("part", i), .beta2 = 0.9 + 0.01 * i});
  ParamSpec parts{.name = "parts", .shape = {9, 4}, .role = Role::matrix};
  for (int64_t p = 0; p < 9; ++p) parts.slices.push_back({cat("part", p), {1, 4}, p * 4});
  try {
    Trained t({parts}, o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "param_groups: 10 different betas, expected at most 8; let groups share some");
  }
}

}  // namespace
}  // namespace athanor::optimizers
