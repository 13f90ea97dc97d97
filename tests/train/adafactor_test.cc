// Adafactor: 20 steps match the paper's algorithm in double and torch.optim, planted mistakes are detected, and its
// states have the planned size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/larger_error.h"
#include "tests/ops/optimizer_references.h"
#include "tests/train/optimizer_rig.h"

namespace athanor::optimizers {
namespace {

struct Sides {
  size_t rows, columns;
  size_t n() const { return rows * columns; }
};

// Gradients that grow, so that updates are clipped.
double rising(size_t i, int step) { return gradient(int64_t(i), step) * (1 + 0.5 * step) / (1 + double(i % 3)); }

// [Shazeer & Stern 2018, alg. 4] in double, with a constant learning rate and decoupled decay, for tensors of these
// sizes; and mistakes that a test must detect.
enum class Factored { right, cautious, unclipped, clipped_together, constant_beta2, unfactored, rows_only, undecayed };
std::vector<std::vector<double>> adafactor_in_double(const std::vector<Sides>& sides, Factored how) {
  std::vector<std::vector<double>> w, r, c, v;
  for (const Sides& s : sides) {
    r.emplace_back(s.rows), c.emplace_back(s.columns), v.emplace_back(s.n()), w.emplace_back(s.n());
    for (size_t i = 0; i < s.n(); ++i) w.back()[i] = float(double(w.size()) * start(int64_t(i)));
  }
  for (int step = 0; step < 20; ++step) {
    const double beta2 = how == Factored::constant_beta2 ? 0.95 : 1 - std::pow(step + 1, -0.8);
    std::vector<std::vector<double>> updates;
    std::vector<double> squares;
    double all = 0, count = 0;
    for (size_t t = 0; t < w.size(); ++t) {
      const auto [rows, columns] = sides[t];
      std::vector<double> row_means(rows), column_means(columns), u(sides[t].n());
      for (size_t i = 0; i < u.size(); ++i) {
        const double g = float(rising(i, step)), square = g * g + 1e-30;
        u[i] = g;
        row_means[i / columns] += square / double(columns), column_means[i % columns] += square / double(rows);
        v[t][i] = beta2 * v[t][i] + (1 - beta2) * square;
      }
      double mean = 0, sum = 0;
      for (size_t i = 0; i < rows; ++i) {
        r[t][i] = beta2 * r[t][i] + (1 - beta2) * row_means[i];
        mean += r[t][i] / double(rows);
      }
      for (size_t i = 0; i < columns; ++i) c[t][i] = beta2 * c[t][i] + (1 - beta2) * column_means[i];
      for (size_t i = 0; i < u.size(); ++i) {
        const double row = r[t][i / columns];
        u[i] /= std::sqrt(how == Factored::unfactored  ? v[t][i]
                          : how == Factored::rows_only ? row
                                                       : row * c[t][i % columns] / mean);
        sum += u[i] * u[i];
      }
      updates.push_back(u), squares.push_back(sum), all += sum, count += double(u.size());
    }
    for (size_t t = 0; t < w.size(); ++t) {
      const double rms = std::sqrt(how == Factored::clipped_together ? all / count : squares[t] / double(sides[t].n()));
      const double by = how == Factored::unclipped ? 1 : std::max(1.0, rms);
      const double decay = t + 1 == w.size() || how == Factored::undecayed ? 0 : kDecay;  // the last tensor is a vector
      for (size_t i = 0; i < w[t].size(); ++i) {
        const double u = updates[t][i] / by;
        if (how != Factored::cautious || w[t][i] * u >= 0) w[t][i] *= 1 - kRate * decay;
        w[t][i] -= kRate * u;
      }
    }
  }
  return w;
}

// Two tensors of one parameter, like Q and K, whose boundary is not aligned in memory; another one, in GPT-2's order;
// and a vector.
TEST(Adafactor, KeepsMomentsAndClippingPerTensorAndDetectsMistakes) {
  const std::vector<Sides> sides{{9, 5}, {5, 5}, {7, 11}, {13, 1}};
  const auto numbers = [](size_t n, const auto& of) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = float(of(i));
    return x;
  };
  const auto trained = [&](bool cautious) {
    ParamSpec two{.name = "two", .shape = {14, 5}, .role = Role::matrix};
    two.slices = {{"first", {9, 5}, 0}, {"second", {5, 5}, 45}};
    const ParamSpec vector{.name = "norm", .shape = {13}, .role = Role::vector, .slices = {{"norm", {13}, 0}}};
    OptimizerOptions o = with(RuleName::adafactor);
    o.cautious_weight_decay = cautious;
    Trained t({two, matrix("third", {7, 11}, true), vector}, o);
    const auto& states = t.params.units()[0]->states;
    for (const auto& state : states)
      EXPECT_EQ(state.t.numel(), 4 * 64) << "of each tensor, on cache lines of their own";
    for (size_t p = 0; p < sides.size(); ++p)
      t.set(t.master(p), numbers(sides[p].n(), [&](size_t i) { return double(p + 1) * start(int64_t(i)); }));
    for (int step = 0; step < 20; ++step) {
      for (size_t p = 0; p < sides.size(); ++p)
        t.set(t.grad(p), numbers(sides[p].n(), [&](size_t i) { return rising(i, step); }));
      t.step();
    }
    std::vector<std::vector<float>> w;
    for (size_t p = 0; p < sides.size(); ++p) w.push_back(t.weights(p));
    return w;
  };
  const auto most_off = [&](const std::vector<std::vector<float>>& got, Factored how) {
    const auto want = adafactor_in_double(sides, how);
    double most = 0;
    for (size_t p = 0; p < got.size(); ++p)
      for (size_t i = 0; i < got[p].size(); ++i)
        most = testing::larger_error(most, std::abs(double(got[p][i]) - want[p][i]));
    return most;
  };
  const auto got = trained(false);
  EXPECT_LT(most_off(got, Factored::right), 5e-6);
  EXPECT_LT(most_off(trained(true), Factored::cautious), 5e-6);
  for (const Factored mistake :
       {Factored::cautious, Factored::unclipped, Factored::clipped_together, Factored::constant_beta2,
        Factored::unfactored, Factored::rows_only, Factored::undecayed})
    EXPECT_GT(most_off(got, mistake), 1e-3) << int(mistake);
}

TEST(Adafactor, MatchesAnIndependentImplementation) {
  expect_near(after_20_steps(with(RuleName::adafactor)), references::kAdafactor, 1e-6, "adafactor");
  expect_near(after_20_steps(with(RuleName::adafactor), true), references::kAdafactor, 1e-6,
              "adafactor of inputs in rows");
  OptimizerOptions o = with(RuleName::adafactor);
  o.groups.clear();  // so that the vector decays
  constexpr int64_t n = kRows * kColumns;
  Trained t({{.name = "v", .shape = {n}, .role = Role::vector, .slices = {{"v", {n}, 0}}}}, o);
  t.set(t.master(), values(start, n, 1, false));
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, n, 1, false));
    t.step();
  }
  expect_near(t.weights(), references::kAdafactorVector, 1e-6, "of a vector");
}

// A skipped step changes nothing, and rows and columns without gradients have zero updates.
TEST(Adafactor, SkippedStepsAndZeroGradientsChangeNothing) {
  Trained t({matrix("w", {kRows, kColumns})}, with(RuleName::adafactor));
  t.set(t.master(), values(start, kRows, kColumns, false));
  std::vector<float> g = values([](int64_t i) { return gradient(i, 0); }, kRows, kColumns, false);
  for (size_t i = 0; i < g.size(); ++i)
    if (i < size_t(kColumns) || i % size_t(kColumns) == 2) g[i] = 0;
  const auto states = [&] {
    auto r = t.rig.read<float>(t.params.units()[0]->states[0].t);
    const auto c = t.rig.read<float>(t.params.units()[0]->states[1].t);
    r.insert(r.end(), c.begin(), c.end());
    return r;
  };
  t.set(t.grad(), g);
  t.step();
  const std::vector<float> before = t.weights(), kept = states();
  for (size_t i = 0; i < g.size(); ++i) {
    const float decayed = float(start(int64_t(i))) * float(1 - kRate * kDecay);
    if (g[i] == 0)
      EXPECT_EQ(before[i], decayed) << i;
    else
      EXPECT_GT(std::abs(before[i] - decayed), 1e-4) << i;
  }
  t.set(t.grad(), std::vector<float>(g.size(), NAN));
  t.step(NAN);
  EXPECT_EQ(t.weights(), before);
  EXPECT_EQ(states(), kept);
  EXPECT_EQ(t.rig.read<float>(t.grad()), std::vector<float>(g.size()));
}

}  // namespace
}  // namespace athanor::optimizers
