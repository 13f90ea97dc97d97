// AdamW against the formula in double and against torch's order of f32 operations; skipped steps; rounding of copies.
#include <limits>

#include "cpu/chunks.h"
#include "ops/step_control.h"
#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

struct Adam {
  HostTensor master, param, m, v, grad, state;
  Adam(DType master_type, DType param_type, int64_t n)
      : master(HostTensor::normal(master_type, {n}, 1)),
        param(param_type, {n}),
        m(HostTensor::normal(DType::f32, {n}, 2, 0, 0.1)),
        v(HostTensor::normal(DType::f32, {n}, 3, 0, 0.1)),
        grad(HostTensor::normal(DType::f32, {n}, 4)),
        state(DType::u8, {int64_t(sizeof(StepState))}) {
    for (int64_t i = 0; i < n; ++i) v.set(i, v[i] * v[i]);
    set_state({.updates = 3, .grad_scale = 0.5f, .lr = 0.01f, .bias1 = float(1 - 0.729), .bias2 = float(1 - 0.857375)});
  }
  void set_state(const StepState& s) { std::memcpy(state.t.data, &s, sizeof s); }
  AdamW op(bool with_param) const {
    return {.master = master.t,
            .param = with_param ? param.t : Tensor{},
            .m = m.t,
            .v = v.t,
            .grad = grad.t,
            .state = state.t,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .seed = 5,
            .stream = 6,
            .first = 7};
  }
};

struct Updated {
  double w, m, v;
};

Updated in_double(const Adam& a, int64_t i) {
  const double g = a.grad[i] * 0.5, lr = double(0.01f), bias1 = double(float(1 - 0.729)),
               bias2 = double(float(1 - 0.857375));
  const double m = 0.9 * a.m[i] + 0.1 * g, v = 0.95 * a.v[i] + 0.05 * g * g, w = a.master[i] * (1 - lr * 0.1);
  return {w - lr * (m / bias1) / (std::sqrt(v / bias2) + 1e-8), m, v};
}

TEST(AdamW, MatchesTheFormula) {
  for (DType param_type : kFloats)
    for (int64_t n : {int64_t(1), int64_t(100), kChunkElements + 3}) {
      const Adam before(DType::f32, param_type, n);
      const Adam after = before, alone = before;
      run_op(after.op(true));
      run_op(alone.op(false));
      EXPECT_EQ(after.master.bytes(), alone.master.bytes());
      for (int64_t i = 0; i < n; ++i) {
        const Updated u = in_double(before, i);
        ASSERT_NEAR(after.master[i], u.w, 4e-7 * (std::abs(before.master[i]) + std::abs(u.w))) << i;
        ASSERT_NEAR(after.m[i], u.m, 2e-7 * (std::abs(u.m) + 0.1)) << i;
        ASSERT_NEAR(after.v[i], u.v, 2e-7 * u.v) << i;
        ASSERT_EQ(after.grad[i], 0);
        by_float(param_type, [&]<class T>() {
          ASSERT_EQ(after.param[i], double(to_float(from_float<T>(float(after.master[i])))));
        });
      }
    }
}

// One step in plain f32, operation by operation as torch.optim.AdamW's scalar code.
TEST(AdamW, RoundsLikePlainF32Arithmetic) {
  const Adam before(DType::f32, DType::f32, 333);
  const Adam after = before;
  run_op(after.op(false));
  for (int64_t i = 0; i < 333; ++i) {
    const float g = float(before.grad[i]) * 0.5f;
    const float decay = float(1 - double(0.01f) * 0.1), step = float(double(0.01f) / double(float(1 - 0.729)));
    const float m = 0.9f * float(before.m[i]) + float(1 - 0.9) * g;
    const float v = 0.95f * float(before.v[i]) + float(1 - 0.95) * g * g;
    const float denominator = std::sqrt(v) / float(std::sqrt(double(float(1 - 0.857375)))) + 1e-8f;
    ASSERT_EQ(after.m.t.as<float>()[i], m);
    ASSERT_EQ(after.v.t.as<float>()[i], v);
    ASSERT_EQ(after.master.t.as<float>()[i], float(before.master[i]) * decay - step * m / denominator) << i;
  }
}

TEST(AdamW, Bf16MasterRoundsStochastically) {
  const int64_t n = kChunkElements + 77;
  const Adam before(DType::bf16, DType::f16, n);
  const Adam after = before;
  run_op(after.op(true));
  double bias = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double w = in_double(before, i).w;
    const double ulp = std::exp2(std::floor(std::log2(std::abs(w))) - 7);
    ASSERT_LT(std::abs(after.master[i] - w), ulp * 1.001) << i;
    bias += (after.master[i] - w) / ulp;
    by_float(DType::f16,
             [&]<class T>() { ASSERT_EQ(after.param[i], double(to_float(from_float<T>(float(after.master[i]))))); });
  }
  EXPECT_LT(std::abs(bias / double(n)), 4 * 0.41 / std::sqrt(double(n)));  // variance of the error is <= 1/6 ulp^2
}

// The random bits belong to the element, not to the tensor's cut: whole = parts.
TEST(AdamW, StochasticRoundingIsAFunctionOfTheIndex) {
  const Adam whole(DType::bf16, DType::f32, 1000);
  const Adam parts = whole;
  run_op(whole.op(false));
  for (auto [lo, hi] : {std::pair{0, 13}, {13, 14}, {14, 1000}}) {
    AdamW op = parts.op(false);
    for (Tensor* t : {&op.master, &op.m, &op.v, &op.grad}) *t = t->slice(lo, hi);
    op.first += uint64_t(lo);
    run_op(op);
  }
  EXPECT_EQ(whole.master.bytes(), parts.master.bytes());
  const int64_t at = 500;
  const uint32_t bits = random_bits(5, 6, (uint64_t(3) << 40) + 7 + uint64_t(at));
  const Adam f32 = [] {
    Adam a(DType::f32, DType::f32, 1000);
    const Adam b(DType::bf16, DType::f32, 1000);
    for (int64_t i = 0; i < 1000; ++i) a.master.set(i, b.master[i]);
    return a;
  }();
  run_op(f32.op(false));
  EXPECT_EQ(whole.master.t.as<bf16>()[at].bits, round_stochastic(float(f32.master[at]), bits).bits);
}

TEST(AdamW, SkippedStepOnlyClearsTheGradient) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Adam before(type, DType::bf16, 5000);
    Adam after = before;
    after.set_state({.skip = 1, .grad_scale = 0});
    after.grad.set(3, std::nan(""));
    after.grad.set(4, std::numeric_limits<double>::infinity());
    run_op(after.op(true));
    EXPECT_EQ(after.master.bytes(), before.master.bytes());
    EXPECT_EQ(after.m.bytes(), before.m.bytes());
    EXPECT_EQ(after.v.bytes(), before.v.bytes());
    for (int64_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(after.grad[i], 0);
      ASSERT_EQ(after.param[i], double(to_float(from_float<bf16>(float(before.master[i])))));
    }
  }
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Adam start(type, DType::bf16, 5 * kChunkElements + 31);
    expect_same_bits([&](int threads) {
      const Adam a = start;
      run_op(a.op(true), threads);
      return std::vector<HostTensor>{a.master, a.param, a.m, a.v, a.grad};
    });
  }
}

TEST(StepControl, ClosesTheStepInPlace) {
  HostTensor state(DType::u8, {int64_t(sizeof(StepState))});
  StepState s{.loss_sum = 7, .norm_sq = 16};
  std::memcpy(state.t.data, &s, sizeof s);
  const StepControl op{.state = state.t, .schedule = {.lr = 0.5}, .clip_grad = 1, .beta1 = 0.9, .beta2 = 0.99};
  run_op(op);
  close_step(s, op);
  EXPECT_EQ(std::memcmp(state.t.data, &s, sizeof s), 0);
  EXPECT_EQ(s.updates, 1);
  EXPECT_EQ(s.loss, 7);
  EXPECT_NEAR(s.grad_scale, 0.25, 1e-6);
}

}  // namespace
}  // namespace athanor
