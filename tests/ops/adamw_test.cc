// Laws of AdamW over several steps, on every backend: the paper's recursion, skipped steps, loss scale, stochastic
// rounding of bf16 masters.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/step_control.h"
#include "tests/ops/backends.h"

namespace athanor {
namespace {

std::vector<float> noise(size_t n, uint64_t stream, float scale = 1) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = scale * random_normal(11, stream, i);
  return x;
}

std::vector<uint8_t> bytes(const StepState& s) {
  const auto* p = reinterpret_cast<const uint8_t*>(&s);
  return {p, p + sizeof s};
}

// n parameters with their optimizer state on a device.
template <class Master>
struct Parameters {
  OnDevice<Master> master;
  OnDevice<float> m, v, grad;
  OnDevice<uint8_t> state;

  Parameters(Device& d, const std::vector<Master>& w, const StepState& s)
      : master(d, w),
        m(d, std::vector<float>(w.size())),
        v(d, std::vector<float>(w.size())),
        grad(d, std::vector<float>(w.size())),
        state(d, bytes(s)) {}
  AdamW op() const {
    return {.parts = {{.master = master.t(), .m = m.t(), .v = v.t(), .grad = grad.t()}},
            .state = state.t(),
            .weight_decay = 0.1};
  }
};

class AdamWLaws : public testing::TestWithParam<NamedBackend> {
 protected:
  TestBackend b = GetParam().make(2);
};
INSTANTIATE_TEST_SUITE_P(On, AdamWLaws, testing::ValuesIn(kBackends),
                         [](const auto& backend) { return std::string(backend.param.name); });

// [Loshchilov & Hutter 2019, alg. 2, with eta_t alpha = lr and decoupled decay lr lambda w]
TEST_P(AdamWLaws, TenStepsMatchThePaper) {
  constexpr size_t n = 40;
  const auto w0 = noise(n, 1);
  Parameters<float> p(*b.device, w0, {});
  const StepControl control{
      .state = p.state.t(),
      .schedule = {.style = DecayStyle::linear, .lr = 0.1, .min_lr = 0.01, .warmup = 3, .decay = 12},
      .averages = {{0.9, true}, {0.95}}};
  std::vector<double> w(w0.begin(), w0.end()), m(n), v(n);
  for (int t = 1; t <= 10; ++t) {
    const auto g = noise(n, 100 + uint64_t(t), 0.3f);
    p.grad.write(g);
    b.ops->run(control, nullptr);
    b.ops->run(p.op(), nullptr);
    const double lr = learning_rate(control.schedule, t - 1);
    for (size_t i = 0; i < n; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * double(g[i]);
      v[i] = 0.95 * v[i] + 0.05 * double(g[i]) * double(g[i]);
      const double m_hat = m[i] / (1 - std::pow(0.9, t)), v_hat = v[i] / (1 - std::pow(0.95, t));
      w[i] -= lr * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * w[i]);
    }
    const auto got = p.master.read();
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], w[i], 2e-6) << "step " << t << " element " << i;
    EXPECT_EQ(p.grad.read(), std::vector<float>(n)) << "gradients start the next step at zero";
  }
}

TEST_P(AdamWLaws, FirstStepMovesByTheLearningRateForAnyGradient) {
  Parameters<float> p(*b.device, {1, 1, 1, 1}, {});
  const StepControl control{.state = p.state.t(), .schedule = {.lr = 0.01}, .averages = {{0.9, true}, {0.95}}};
  p.grad.write({1e-3f, -1e-3f, 50, -2e4f});
  AdamW op = p.op();
  op.weight_decay = 0;
  b.ops->run(control, nullptr);
  b.ops->run(op, nullptr);
  const float want[] = {0.99f, 1.01f, 0.99f, 1.01f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(p.master.read()[i], want[i], 1e-6);
}

TEST_P(AdamWLaws, SkippedStepOnlyClearsTheGradient) {
  Parameters<float> p(*b.device, noise(300, 1), {});
  p.m.write(noise(300, 2));
  p.v.write(std::vector<float>(300, 0.5f));
  p.grad.write(std::vector<float>(300, NAN));
  StepState s;
  s.norm_sq = NAN;
  p.state.write(bytes(s));
  b.ops->run(StepControl{.state = p.state.t(), .schedule = {.lr = 0.1}, .averages = {{0.9, true}, {0.95}}}, nullptr);
  b.ops->run(p.op(), nullptr);
  EXPECT_EQ(p.master.read(), noise(300, 1));
  EXPECT_EQ(p.m.read(), noise(300, 2));
  EXPECT_EQ(p.v.read(), std::vector<float>(300, 0.5f));
  EXPECT_EQ(p.grad.read(), std::vector<float>(300));
}

// A power of two passes through the arithmetic without rounding.
TEST_P(AdamWLaws, LossScaleDoesNotChangeTheStep) {
  std::vector<std::vector<float>> results;
  for (float scale : {1.0f, 4096.0f}) {
    StepState s;
    s.loss_scale = scale;
    s.norm_sq = 9.0 * double(scale) * double(scale);
    Parameters<float> p(*b.device, noise(100, 1), s);
    p.grad.write(noise(100, 2, scale));
    b.ops->run(
        StepControl{.state = p.state.t(), .schedule = {.lr = 0.1}, .clip_grad = 1, .averages = {{0.9, true}, {0.95}}},
        nullptr);
    b.ops->run(p.op(), nullptr);
    results.push_back(p.master.read());
  }
  EXPECT_EQ(results[0], results[1]);
}

// Masters at 1, one step of 0.001: a quarter of the distance to the next bf16 below, 1 - 2^-8.
std::vector<uint16_t> one_small_step(TestBackend& b, size_t n, uint64_t seed, uint64_t first) {
  Parameters<bf16> p(*b.device, std::vector<bf16>(n, from_float<bf16>(1)), {});
  p.grad.write(std::vector<float>(n, 0.5f));
  b.ops->run(StepControl{.state = p.state.t(), .schedule = {.lr = 0.001}, .averages = {{0.9, true}, {0.95}}}, nullptr);
  AdamW op = p.op();
  op.weight_decay = 0;
  op.seed = seed;
  op.parts[0].first = first;
  b.ops->run(op, nullptr);
  std::vector<uint16_t> bits;
  for (bf16 w : p.master.read()) bits.push_back(w.bits);
  return bits;
}

TEST_P(AdamWLaws, Bf16MastersAreRoundedWithoutBias) {
  constexpr size_t n = 40000;
  double sum = 0;
  for (uint16_t bits : one_small_step(b, n, 1, 0)) {
    const float w = to_float(bf16{bits});
    ASSERT_TRUE(w == 1 || w == 1 - 0x1p-8f) << w;
    sum += w;
  }
  const double p = 0.001 * 0x1p8, deviation = 0x1p-8 * std::sqrt(p * (1 - p) / double(n));
  EXPECT_NEAR(sum / double(n), 0.999, 4 * deviation);
}

TEST_P(AdamWLaws, StochasticRoundingDependsOnlyOnSeedAndIndex) {
  const auto whole = one_small_step(b, 1000, 1, 0);
  EXPECT_EQ(one_small_step(b, 1000, 1, 0), whole);
  EXPECT_NE(one_small_step(b, 1000, 2, 0), whole);
  auto pieces = one_small_step(b, 333, 1, 0);
  const auto rest = one_small_step(b, 667, 1, 333);
  pieces.insert(pieces.end(), rest.begin(), rest.end());
  EXPECT_EQ(pieces, whole);
}

}  // namespace
}  // namespace athanor
