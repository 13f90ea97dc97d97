// Update rules: 20 steps are those of an independent implementation; Muon knows which matrices there are in a tensor
// and which of their axes are inputs; groups choose rules by name and role.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/rng.h"
#include "optim/optimizer.h"
#include "tests/ops/optimizer_references.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

using testing::Rig;

constexpr double kRate = 0.01, kDecay = 0.3;
constexpr int64_t kRows = 9, kColumns = 5;

double start(int64_t i) { return std::cos(1.7 * double(i) + 0.3); }
double gradient(int64_t i, int step) {
  return std::sin(0.9 * double(i) + 1.3 * step) + 0.2 * std::sin(0.31 * double(i) * step);
}

ParamSpec matrix(std::string name, Shape shape, bool in_out = false) {
  return {
      .name = name, .shape = shape, .role = Role::matrix, .slices = {{name + ".weight", shape, 0}}, .in_out = in_out};
}

OptimizerOptions with(RuleName rule) {
  OptimizerOptions o;
  o.rule = rule;
  o.weight_decay = kDecay;
  o.groups = default_groups(rule);
  return o;
}

// Parameters of one unit and their optimizer.
struct Trained {
  Rig rig;
  ParamStore params;
  std::unique_ptr<Optimizer> optimizer;
  Arena arena;
  Recipe recipe;
  Tensor state;
  MemoryPlan plan;

  Trained(std::vector<ParamSpec> specs, const OptimizerOptions& options, const char* precision = "fp32",
          DType master = DType::f32)
      : recipe(make_recipe(precision, master)) {
    for (ParamSpec& spec : specs) params.declare(std::move(spec));
    optimizer = std::make_unique<Optimizer>(options, params);
    params.plan(plan, recipe, true, optimizer->states());
    plan.add(MemoryKind::inputs, "state", DType::u8, {int64_t(sizeof(StepState))}, &state);
    PlanOps none(*rig.ops);
    arena.record("step");
    Ctx c = context(none);
    optimizer->step(c, params, state);
    arena.finish_recording();
    plan.add(arena);
    plan.commit(*rig.device);
    write(StepState{});
  }
  Ctx context(Ops& ops) {
    return {.ops = ops, .device = *rig.device, .arena = arena, .mesh = *rig.mesh, .recipe = recipe};
  }
  void write(const StepState& s) {
    rig.device->copy(state.data, &s, sizeof s, Lane::compute);
    rig.device->sync();
  }
  Tensor flat(Tensor t, size_t piece) const {
    const auto p = params.pieces()[piece];
    return t.slice(p.offset, p.offset + p.slice->shape.numel());
  }
  void set(const Tensor& t, const std::vector<float>& values) {
    rig.device->copy(t.data, values.data(), t.bytes(), Lane::compute);
    rig.device->sync();
  }
  Tensor master(size_t piece = 0) { return flat(params.units()[0]->master, piece); }
  Tensor grad(size_t piece = 0) { return flat(params.units()[0]->grad, piece); }
  std::vector<float> weights(size_t piece = 0) { return rig.read<float>(master(piece)); }
  void step(double norm_sq = 0) {
    StepState s;
    rig.device->copy(&s, state.data, sizeof s, Lane::compute);
    rig.device->sync();
    s.norm_sq = norm_sq;
    write(s);
    arena.begin("step");
    Ctx c = context(*rig.ops);
    StepControl control{.state = state, .schedule = {.lr = kRate, .min_lr = kRate}};
    std::ranges::copy(optimizer->averages(), control.averages);
    c.run(control);
    optimizer->step(c, params, state);
    arena.end();
  }
};

// Values of an m x n matrix, or of its transpose.
std::vector<float> values(const std::function<double(int64_t)>& at, int64_t rows, int64_t cols, bool transposed) {
  std::vector<float> x(size_t(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) x[size_t(transposed ? c * rows + r : r * cols + c)] = float(at(r * cols + c));
  return x;
}

// 20 steps of a [kRows, kColumns] matrix; in_out: of the same matrix in GPT-2's order, given back in the other.
std::vector<float> after_20_steps(const OptimizerOptions& o, bool in_out = false) {
  const Shape shape = in_out ? Shape{kColumns, kRows} : Shape{kRows, kColumns};
  Trained t({matrix("w", shape, in_out)}, o);
  t.set(t.master(), values(start, kRows, kColumns, in_out));
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, kRows, kColumns, in_out));
    t.step();
  }
  std::vector<float> w = t.weights(), out = w;
  if (in_out)
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c) out[size_t(r * kColumns + c)] = w[size_t(c * kRows + r)];
  return out;
}

void expect_near(const std::vector<float>& got, std::span<const double> want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(double(got[i]), want[i], tolerance) << what << " element " << i;
}

TEST(Optimizers, AreThoseOfAnIndependentImplementation) {
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
  expect_near(after_20_steps(with(RuleName::adam_mini)), r::kAdamMini, 1e-6, "adam_mini");
  expect_near(after_20_steps(with(RuleName::adam_mini), true), r::kAdamMini, 1e-6, "adam_mini of inputs in rows");
  expect_near(after_20_steps(original), r::kMuonOriginal, 1e-4, "muon");
  expect_near(after_20_steps(match_rms), r::kMuonMatchRms, 1e-4, "muon, match_rms");
}

TEST(Optimizers, TheAverageOfWeightsIsThatOfAnIndependentImplementation) {
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

TEST(Muon, GPT2sOrderIsTheTranspose) {
  for (const MuonScale scale : {MuonScale::original, MuonScale::match_rms, MuonScale::spectral})
    for (const auto coefficients : {MuonCoefficients::quintic, MuonCoefficients::polar_express}) {
      OptimizerOptions o = with(RuleName::muon);
      o.muon_scale = scale, o.muon_coefficients = coefficients;
      const auto rows = after_20_steps(o);
      const std::vector<double> want(rows.begin(), rows.end());
      expect_near(after_20_steps(o, true), want, 1e-4, cat("scale ", int(scale)));
    }
}

// One step from weights 0: minus rate times scale times an orthogonal matrix, whatever the size of the gradient.
TEST(Muon, UpdatesAreNearlyOrthogonalWhateverTheGradient) {
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
        double trace = 0, inner = 0;  // of W W', over rate squared; of W and G
        for (size_t i = 0; i < w.size(); ++i) trace += double(w[i]) * w[i], inner += double(w[i]) * g[i];
        EXPECT_LT(inner, 0) << "downhill";
        EXPECT_NEAR(trace / (kRate * kRate) / 24, coefficients == MuonCoefficients::quintic ? 0.8 : 1.0, 0.25);
        EXPECT_EQ(t.rig.read<float>(t.grad()), std::vector<float>(g.size())) << "gradients start the next step at zero";
      }
}

// Queries, keys and values in one tensor are three matrices, side by side in rows (Llama) or columns (GPT-2).
TEST(Muon, PartsOfATensorAreMatricesOfTheirOwn) {
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

// [Li et al. 2025, "NorMuon"] in double, with Muon's quintic polynomial; mistakes that a test has to see.
enum class Mistake { none, uphill, decay_twice, other_axis, other_norm, mean_of_all };
std::vector<double> normuon_in_double(Mistake mistake) {
  constexpr size_t m = kRows, n = kColumns;
  std::vector<double> w(m * n), average(m * n), x(m * n), v(m * n);  // v: of the outputs, at their first elements
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

TEST(NorMuon, IsThatOfThePaperAndMistakesShow) {
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

// [You et al. 2020, "Large Batch Optimization for Deep Learning", alg. 2] in double, of three tensors; mistakes that a
// test has to see.
enum class Trust { right, cautious, none, of_all, decay_apart };
std::vector<std::vector<double>> lamb_in_double(const std::vector<size_t>& sizes, Trust how) {
  const auto norm = [](const std::vector<double>& x) {
    double sum = 0;
    for (const double e : x) sum += e * e;
    return std::sqrt(sum);
  };
  std::vector<std::vector<double>> w, m, v;
  for (const size_t n : sizes) {
    w.emplace_back(n), m.emplace_back(n), v.emplace_back(n);
    for (size_t i = 0; i < n; ++i) w.back()[i] = float(double(w.size()) * start(int64_t(i)));
  }
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    std::vector<std::vector<double>> all;
    std::vector<double> ratios;
    double of_w = 0, of_r = 0;
    for (size_t t = 0; t < w.size(); ++t) {
      std::vector<double>& r = all.emplace_back(w[t].size());
      for (size_t i = 0; i < r.size(); ++i) {
        const double g = float(gradient(int64_t(i), step));
        m[t][i] = 0.9 * m[t][i] + 0.1 * g, v[t][i] = 0.95 * v[t][i] + 0.05 * g * g;
        r[i] = m[t][i] / c1 / (std::sqrt(v[t][i] / c2) + 1e-8);
        if (how != Trust::decay_apart && !(how == Trust::cautious && w[t][i] * r[i] < 0)) r[i] += kDecay * w[t][i];
      }
      ratios.push_back(how == Trust::none ? 1 : norm(w[t]) / norm(r));
      of_w += std::pow(norm(w[t]), 2), of_r += std::pow(norm(r), 2);
    }
    for (size_t t = 0; t < w.size(); ++t)
      for (size_t i = 0; i < w[t].size(); ++i) {
        if (how == Trust::decay_apart) w[t][i] *= 1 - kRate * kDecay;
        w[t][i] -= kRate * (how == Trust::of_all ? std::sqrt(of_w / of_r) : ratios[t]) * all[t][i];
      }
  }
  return w;
}

// Two tensors of one parameter, as queries and keys are, which no boundary of memory divides; and another one.
TEST(Lamb, EachTensorHasItsTrustRatioAndMistakesShow) {
  ParamSpec two{.name = "two", .shape = {14, 5}, .role = Role::matrix};
  two.slices = {{"first", {9, 5}, 0}, {"second", {5, 5}, 45}};
  const std::vector<size_t> sizes{45, 25, 77};
  const auto numbers = [](size_t n, const auto& of) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = float(of(int64_t(i)));
    return x;
  };
  const auto most_off = [&](bool cautious, Trust how) {
    OptimizerOptions o = with(RuleName::lamb);
    o.cautious_weight_decay = cautious;
    Trained t({two, matrix("third", {7, 11})}, o);
    for (size_t p = 0; p < 3; ++p)
      t.set(t.master(p), numbers(sizes[p], [&](int64_t i) { return double(p + 1) * start(i); }));
    for (int step = 0; step < 20; ++step) {
      for (size_t p = 0; p < 3; ++p) t.set(t.grad(p), numbers(sizes[p], [&](int64_t i) { return gradient(i, step); }));
      t.step();
    }
    const auto want = lamb_in_double(sizes, how);
    double most = 0;
    for (size_t p = 0; p < 3; ++p) {
      const std::vector<float> got = t.weights(p);
      for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - want[p][i]));
    }
    return most;
  };
  EXPECT_LT(most_off(false, Trust::right), 1e-5);
  EXPECT_LT(most_off(true, Trust::cautious), 1e-5);
  for (const Trust mistake : {Trust::cautious, Trust::none, Trust::of_all, Trust::decay_apart})
    EXPECT_GT(most_off(false, mistake), 1e-3) << int(mistake);
}

// [Zhang et al. 2024, "Adam-mini", alg. 1] in double, of an [11, 5] matrix: block[o] is that of output o.
std::vector<double> adam_mini_in_double(const std::vector<size_t>& block) {
  const size_t inputs = 5, n = block.size() * inputs;
  std::vector<double> w(n), m(n), v(n);
  for (size_t i = 0; i < n; ++i) w[i] = float(start(int64_t(i)));
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    std::vector<double> sum(n), count(n);
    for (size_t i = 0; i < n; ++i) {
      const double g = float(gradient(int64_t(i), step));
      m[i] = 0.9 * m[i] + 0.1 * g;
      sum[block[i / inputs]] += g * g, ++count[block[i / inputs]];
    }
    for (size_t b = 0; b < n; ++b)
      if (count[b] > 0) v[b] = 0.95 * v[b] + 0.05 * sum[b] / count[b];
    for (size_t i = 0; i < n; ++i)
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * m[i] / c1 / (std::sqrt(v[block[i / inputs]] / c2) + 1e-8);
  }
  return w;
}

// Queries and keys have a second moment for each head, values and other matrices one for each output, in Llama's order
// and in GPT-2's.
TEST(AdamMini, BlocksAreHeadsAndOutputsAndMistakesShow) {
  const int64_t outputs = 11, inputs = 5;
  ParamSpec rows{.name = "qkv", .shape = {outputs, inputs}, .role = Role::matrix};
  rows.slices = {{"q", {4, inputs}, 0}, {"k", {4, inputs}, 4 * inputs}, {"v", {3, inputs}, 8 * inputs}};
  rows.cut = {.axis = 0, .parts = {4, 4, 3}, .whole = 2};
  ParamSpec columns = matrix("c_attn", {inputs, outputs}, true);
  columns.cut = {.axis = 1, .parts = {4, 4, 3}, .whole = 2};
  const std::vector<size_t> heads{0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6}, each{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto trained = [&](ParamSpec spec) {
    const bool in_out = spec.in_out;
    Trained t({std::move(spec)}, with(RuleName::adam_mini));
    const ParamStore::Unit& unit = *t.params.units()[0];
    const auto all = [&](const Tensor& flat) { return flat.slice(0, outputs * inputs); };
    t.set(all(unit.master), values(start, outputs, inputs, in_out));
    for (int step = 0; step < 20; ++step) {
      t.set(all(unit.grad), values([&](int64_t i) { return gradient(i, step); }, outputs, inputs, in_out));
      t.step();
    }
    const auto w = t.rig.read<float>(all(unit.master));
    std::vector<float> out = w;
    for (int64_t o = 0; o < outputs && in_out; ++o)
      for (int64_t i = 0; i < inputs; ++i) out[size_t(o * inputs + i)] = w[size_t(i * outputs + o)];
    return out;
  };
  ParamSpec plain = rows;
  plain.cut = {};
  expect_near(trained(rows), adam_mini_in_double(heads), 1e-6, "queries, keys and values in rows");
  expect_near(trained(columns), adam_mini_in_double(heads), 1e-6, "in columns");
  expect_near(trained(plain), adam_mini_in_double(each), 1e-6, "another matrix");
  const auto got = trained(rows);
  for (const std::vector<size_t>& wrong : {each, std::vector<size_t>(11), {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5}}) {
    const auto want = adam_mini_in_double(wrong);
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - want[i]));
    EXPECT_GT(most, 1e-3);
  }
}

// [Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"] with its own codes; mistakes that a test has
// to see.
enum class Coded { right, other_map, one_scale, shorter_blocks, steps_by_codes };
std::vector<double> adamw_8bit_in_double(int64_t n, Coded mistake) {
  std::vector<double> maps[2];  // of m and of v
  for (int k = 0; k < 2; ++k) {
    maps[k] = {0, 1};
    const bool sign = k == 0 || mistake == Coded::other_map;
    for (int i = 0; i < 7; ++i)
      for (int parts = 1 << (sign ? i : i + 1), j = 0; j < parts; ++j) {
        maps[k].push_back(std::pow(10, i - 6) * (0.1 + 0.9 * (j + 0.5) / parts));
        if (sign) maps[k].push_back(-maps[k].back());
      }
    std::ranges::sort(maps[k]);
  }
  const auto rounded = [&](std::vector<double>& x, const std::vector<double>& map) {
    const auto block = size_t(mistake == Coded::one_scale ? n : mistake == Coded::shorter_blocks ? 128 : 256);
    for (size_t begin = 0; begin < x.size(); begin += block) {
      double most = 0;
      for (size_t i = begin; i < begin + block; ++i) most = std::max(most, std::abs(x[i]));
      for (size_t i = begin; i < begin + block; ++i) {
        const auto above = std::ranges::lower_bound(map, x[i] / most);
        const bool below =
            above == map.end() || (above != map.begin() && x[i] / most - above[-1] < *above - x[i] / most);
        x[i] = most * (below ? above[-1] : *above);
      }
    }
  };
  std::vector<double> w, m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) w.push_back(float(start(i)));
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = float(gradient(int64_t(i), step));
      m[i] = 0.9 * m[i] + 0.1 * g, v[i] = 0.95 * v[i] + 0.05 * g * g;
    }
    auto kept_m = m, kept_v = v;
    rounded(kept_m, maps[0]), rounded(kept_v, maps[1]);
    if (mistake == Coded::steps_by_codes) m = kept_m, v = kept_v;
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-8);
    m = kept_m, v = kept_v;
  }
  return w;
}

std::vector<float> after_20_steps_of(OptimizerOptions o, const Shape& shape) {
  Trained t({matrix("w", shape)}, o);
  t.set(t.master(), values(start, shape[0], shape[1], false));
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, shape[0], shape[1], false));
    t.step();
  }
  return t.weights();
}

TEST(AdamW8bit, IsThatOfThePaperAndMistakesShow) {
  const Shape shape{64, 68};
  const std::vector<float> got = after_20_steps_of(with(RuleName::adamw_8bit), shape);
  const std::vector<float> exact = after_20_steps_of(with(RuleName::adamw), shape);
  // How many weights differ: where f32 and double lie on two sides of a bound, one code is another.
  const auto differing = [&](Coded mistake) {
    const std::vector<double> want = adamw_8bit_in_double(shape.numel(), mistake);
    int64_t count = 0;
    for (size_t i = 0; i < got.size(); ++i) count += std::abs(double(got[i]) - want[i]) > 1e-5 ? 1 : 0;
    return count;
  };
  EXPECT_LT(differing(Coded::right), shape.numel() / 200);
  for (const Coded mistake : {Coded::other_map, Coded::one_scale, Coded::shorter_blocks, Coded::steps_by_codes})
    EXPECT_GT(differing(mistake), shape.numel() / 10) << int(mistake);
  double off = 0, moved = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(double(got[i]) - double(exact[i]), 2);
    moved += std::pow(double(exact[i]) - start(int64_t(i)), 2);
  }
  EXPECT_LT(std::sqrt(off / moved), 0.05) << "near AdamW";
}

// Codes are kept of matrices that are large enough and whole blocks, and of nothing else; the rest is AdamW to the bit.
TEST(AdamW8bit, OtherWeightsHaveTheMomentsOfAdamW) {
  std::vector<ParamSpec> specs{matrix("large", {64, 64}), matrix("small", {63, 64}), matrix("ragged", {65, 65})};
  ParamSpec parts{
      .name = "parts", .shape = {128, 65}, .role = Role::matrix};  // 65 x 64 elements each end within a block
  parts.slices = {{"first", {64, 65}, 0}, {"second", {64, 65}, 64 * 65}};
  specs.push_back(parts);
  specs.push_back({.name = "table", .shape = {64, 64}, .role = Role::embedding, .slices = {{"table", {64, 64}, 0}}});
  specs.push_back({.name = "norm", .shape = {5}, .role = Role::vector, .slices = {{"norm", {5}, 0}}});
  const auto trained = [&](RuleName rule) {
    auto t = std::make_unique<Trained>(specs, with(rule));
    for (int step = 0; step < 3; ++step) {
      for (size_t p = 0; p < t->params.pieces().size(); ++p) {
        std::vector<float> g(size_t(t->grad(p).numel()));
        for (size_t i = 0; i < g.size(); ++i) g[i] = float(gradient(int64_t(i), step));
        t->set(t->grad(p), g);
      }
      t->step();
    }
    return t;
  };
  const auto coded = trained(RuleName::adamw_8bit), plain = trained(RuleName::adamw);
  const auto& specs_of_states = coded->params.state_specs();
  ASSERT_EQ(specs_of_states.size(), 6U);
  const size_t bytes[] = {4096, 4096, 64, 64};  // codes, and scales of 16 blocks
  for (size_t s = 0, codes = 0; s < 6; ++s) {
    const bool of_codes = specs_of_states[s].name.find('_') != std::string::npos;
    for (size_t p = 0; p < 7; ++p) EXPECT_EQ(coded->params.keeps(s, p), (p == 0) == of_codes) << s << " " << p;
    if (!of_codes) continue;
    EXPECT_EQ(coded->params.units()[0]->states[s].t.bytes(), bytes[codes++]);
  }
  EXPECT_TRUE(describe_groups(with(RuleName::adamw_8bit), coded->params)[0].starts_with(
      "no group: adamw_8bit, learning rate x 1, weight decay 0.3, 24769 parameters (4096 with moments of 8 bits): "
      "large"))
      << describe_groups(with(RuleName::adamw_8bit), coded->params)[0];
  for (size_t p = 1; p < 7; ++p) EXPECT_EQ(coded->weights(p), plain->weights(p)) << p;
  EXPECT_NE(coded->weights(0), plain->weights(0));
}

// A weight decays where the rest of its step does not move it away from zero, to the bit.
TEST(Optimizers, CautiousDecaySparesWeightsThatGrow) {
  for (const RuleName rule :
       {RuleName::adamw, RuleName::lion, RuleName::muon, RuleName::normuon, RuleName::adam_mini}) {
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

TEST(Optimizers, ASkippedStepChangesNothing) {
  for (const RuleName rule : {RuleName::adam, RuleName::sgd, RuleName::lion, RuleName::muon, RuleName::normuon,
                              RuleName::lamb, RuleName::adam_mini}) {
    Trained t({matrix("w", {kRows, kColumns})}, with(rule));
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

// The first group that fits has a weight; what a group does not say is the run's own; frozen weights stay.
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

std::string refusal(const OptimizerOptions& o) {
  try {
    Trained t(three(), o);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Groups, WhatCannotBeIsRefusedByName) {
  OptimizerOptions o = with(RuleName::adamw);
  o.groups = {{.match = "h.*.mpl.weight"}};
  EXPECT_EQ(refusal(o),
            "param_groups[0]: match \"h.*.mpl.weight\" matches no parameter; the nearest is h.0.mlp.weight");
  o.groups = {{.match = "norm*", .rule = RuleName::muon}};
  EXPECT_EQ(refusal(o),
            "param_groups[0]: muon updates matrices of hidden layers; norm.weight is a vector: give it another "
            "optimizer by a group");
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
}  // namespace athanor
