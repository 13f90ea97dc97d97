// AdamW against the formula in double and against torch's order of f32 operations; skipped steps; rounding of copies.
#include <limits>

#include "cpu/chunks.h"
#include "ops/step_control.h"
#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

struct Adam {
  HostTensor master, param, m, v, grad, state;
  Adam(DType master_type, DType param_type, int64_t n, DType m_type = DType::f32, DType v_type = DType::f32)
      : master(HostTensor::normal(master_type, {n}, 1)),
        param(param_type, {n}),
        m(HostTensor::normal(m_type, {n}, 2, 0, 0.1)),
        v(HostTensor::normal(v_type, {n}, 3, 0, 0.1)),
        grad(HostTensor::normal(DType::f32, {n}, 4)),
        state(DType::u8, {int64_t(sizeof(StepState))}) {
    for (int64_t i = 0; i < n; ++i) v.set(i, v[i] * v[i]);
    set_state({.updates = 3, .grad_scale = 0.5f, .lr = 0.01f, .corrections = {float(1 - 0.729), float(1 - 0.857375)}});
  }
  void set_state(const StepState& s) { std::memcpy(state.t.data, &s, sizeof s); }
  AdamW op(bool with_param) const {
    return {.parts = {{.master = master.t,
                       .param = with_param ? param.t : Tensor{},
                       .m = m.t,
                       .v = v.t,
                       .grad = grad.t,
                       .stream = 6,
                       .moment_stream = 8,
                       .first = 7}},
            .state = state.t,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .seed = 5};
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
  for (DType param_type : {DType::bf16, DType::f16})
    for (int64_t n : {int64_t(1), int64_t(100), kChunkElements + 3}) {
      const Adam before(DType::f32, param_type, n);
      const Adam after = before, alone = before;
      run_op(after.op(true));
      run_op(alone.op(false));
      if (param_type == DType::f16) {
        EXPECT_EQ(after.master.bytes(), alone.master.bytes());
      }
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

// One step in plain f32, operation by operation like torch.optim.AdamW's scalar code.
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
  run_op(after.op(false));
  double bias = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double w = in_double(before, i).w;
    const double ulp = std::exp2(std::floor(std::log2(std::abs(w))) - 7);
    ASSERT_LT(std::abs(after.master[i] - w), ulp * 1.001) << i;
    bias += (after.master[i] - w) / ulp;
  }
  EXPECT_LT(std::abs(bias / double(n)), 4 * 0.41 / std::sqrt(double(n)));  // variance of the error is <= 1/6 ulp^2
}

// Master weight, m and v after AdamW on all elements, or on each range of `cuts` separately.
std::vector<HostTensor> stepped(const Adam& start, std::initializer_list<std::pair<int64_t, int64_t>> cuts = {}) {
  const Adam a = start;
  if (cuts.size() == 0) run_op(a.op(false));
  for (auto [lo, hi] : cuts) {
    AdamW op = a.op(false);
    AdamW::Part& p = op.parts[0];
    for (Tensor* t : {&p.master, &p.m, &p.v, &p.grad}) *t = t->slice(lo, hi);
    p.first += uint64_t(lo);
    run_op(op);
  }
  return {a.master, a.m, a.v};
}

// The random bits depend on the element's index, not on how the tensor is split: the whole tensor equals its parts.
TEST(AdamW, StochasticRoundingDependsOnlyOnTheIndex) {
  const DType b = DType::bf16;
  const Adam start(b, DType::f32, 1000, b, b);
  const auto whole = stepped(start), parts = stepped(start, {{0, 13}, {13, 14}, {14, 1000}});
  for (size_t t = 0; t < 3; ++t) EXPECT_EQ(whole[t].bytes(), parts[t].bytes()) << t;
  Adam f32(DType::f32, DType::f32, 1000);
  for (int64_t i = 0; i < 1000; ++i) {
    f32.master.set(i, start.master[i]);
    f32.m.set(i, start.m[i]);
    f32.v.set(i, start.v[i]);
  }
  const auto exact = stepped(f32);
  for (int64_t at = 0; at < 1000; ++at) {
    const auto random = [&](uint64_t stream) { return random_bits(5, stream, (uint64_t(3) << 40) + 7 + uint64_t(at)); };
    const auto rounded = [&](size_t t, uint32_t bits) { return round_stochastic(float(exact[t][at]), bits).bits; };
    ASSERT_EQ(whole[0].t.as<bf16>()[at].bits, rounded(0, random(6))) << at;
    ASSERT_EQ(whole[1].t.as<bf16>()[at].bits, rounded(1, random(8))) << at;
    ASSERT_EQ(whole[2].t.as<bf16>()[at].bits, rounded(2, random(8) << 16)) << at;
  }
}

// Many steps with one gradient: bf16 moments follow f32 ones, although a step changes v by less than half the spacing
// of bf16 values, and m and v are rounded with different random bits.
TEST(AdamW, Bf16MomentsAreUnbiased) {
  const int64_t n = 20000;
  const double beta2 = 0.999, start = 1, goal = 0.25;
  Adam a(DType::f32, DType::f32, n, DType::bf16, DType::bf16);
  double m = 1, v = start, product = 0, mean_m = 0, mean_v = 0;
  for (int64_t i = 0; i < n; ++i) a.m.set(i, 1), a.v.set(i, start);
  for (int step = 0; step < 300; ++step) {
    a.set_state({.updates = step, .grad_scale = 1, .lr = 0, .corrections = {1, 1}});
    for (int64_t i = 0; i < n; ++i) a.grad.set(i, 0.5);
    AdamW op = a.op(false);
    op.beta1 = 0.999, op.beta2 = beta2;
    run_op(op);
    m = 0.999 * m + 0.001 * 0.5, v = beta2 * v + (1 - beta2) * goal;
  }
  for (int64_t i = 0; i < n; ++i) mean_m += a.m[i] / double(n), mean_v += a.v[i] / double(n);
  double spread = 0;
  for (int64_t i = 0; i < n; ++i) {
    spread += std::pow(a.v[i] - mean_v, 2) / double(n);
    product += (a.m[i] - mean_m) * (a.v[i] - mean_v) / double(n);
  }
  EXPECT_LT(v, 0.85);  // far from the start, where rounding to nearest would have kept it
  EXPECT_NEAR(mean_m, m, 5 * std::sqrt(spread / double(n)));
  EXPECT_NEAR(mean_v, v, 5 * std::sqrt(spread / double(n)));
  EXPECT_LT(std::sqrt(spread), 0.05 * v);
  EXPECT_LT(std::abs(product), 5 * spread / std::sqrt(double(n)));
}

// f32 masters and their halves are the same numbers, step after step, and so are the weights.
TEST(AdamW, SplitMastersMatchF32Masters) {
  const int64_t n = kChunkElements + 77;
  const Adam whole(DType::f32, DType::bf16, n);
  Adam halves = whole;
  HostTensor rest(DType::i16, {n}), joined_again(DType::f32, {n});
  run_op(SplitMaster{.param = whole.param.t, .master = whole.master.t});
  run_op(SplitMaster{.param = halves.param.t, .rest = rest.t, .master = halves.master.t});
  for (int step = 0; step < 5; ++step) {
    for (int64_t i = 0; i < n; ++i)
      whole.grad.t.as<float>()[i] = halves.grad.t.as<float>()[i] = 0.1f * float(i % 37) - step;
    run_op(whole.op(true));
    AdamW op = halves.op(true);
    op.parts[0].master = rest.t;
    run_op(op);
    run_op(JoinMaster{.master = joined_again.t, .param = halves.param.t, .rest = rest.t});
    ASSERT_EQ(joined_again.bytes(), whole.master.bytes()) << step;
    ASSERT_EQ(halves.param.bytes(), whole.param.bytes()) << step;
    ASSERT_EQ(halves.v.bytes(), whole.v.bytes()) << step;
  }
}

TEST(AdamW, MultiTensorMatchesPerTensor) {
  const DType b = DType::bf16;
  const Adam one(b, DType::f32, 100, b), two(b, DType::f32, kChunkElements + 5, b);
  const Adam one_alone = one, two_alone = two;
  AdamW all = one.op(false);
  all.parts.push_back(two.op(false).parts[0]);
  all.parts[1].decayed = 50;
  AdamW second = two_alone.op(false);
  second.parts[0].decayed = 50;
  run_op(all);
  run_op(one_alone.op(false));
  run_op(second);
  EXPECT_EQ(one.master.bytes(), one_alone.master.bytes());
  EXPECT_EQ(two.master.bytes(), two_alone.master.bytes());
  EXPECT_EQ(two.m.bytes(), two_alone.m.bytes());
  EXPECT_NE(one.m.bytes(), two.m.bytes());
}

TEST(AdamW, SkippedStepOnlyClearsTheGradient) {
  for (DType type : {DType::f32, DType::bf16}) {
    const bool copied = type == DType::f32;
    const Adam before(type, DType::bf16, 5000, type, type);
    Adam after = before;
    after.set_state({.skip = 1, .grad_scale = 0});
    after.grad.set(3, std::nan(""));
    after.grad.set(4, std::numeric_limits<double>::infinity());
    run_op(after.op(copied));
    EXPECT_EQ(after.master.bytes(), before.master.bytes());
    EXPECT_EQ(after.m.bytes(), before.m.bytes());
    EXPECT_EQ(after.v.bytes(), before.v.bytes());
    for (int64_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(after.grad[i], 0);
      if (!copied) continue;
      ASSERT_EQ(after.param[i], double(to_float(from_float<bf16>(float(before.master[i])))));
    }
  }
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Adam start(type, DType::bf16, 5 * kChunkElements + 31, DType::bf16, type);
    expect_same_bits([&](int threads) {
      const Adam a = start;
      run_op(a.op(type == DType::f32), threads);
      return std::vector<HostTensor>{a.master, a.param, a.m, a.v, a.grad};
    });
  }
}

TEST(StepControl, UpdatesTheStepStateInPlace) {
  HostTensor state(DType::u8, {int64_t(sizeof(StepState))});
  StepState s{.loss_sum = 7, .norm_sq = 16};
  std::memcpy(state.t.data, &s, sizeof s);
  const StepControl op{.state = state.t, .schedule = {.lr = 0.5}, .clip_grad = 1, .averages = {{0.9, true}, {0.99}}};
  run_op(op);
  close_step(s, op);
  EXPECT_EQ(std::memcmp(state.t.data, &s, sizeof s), 0);
  EXPECT_EQ(s.updates, 1);
  EXPECT_EQ(s.loss, 7);
  EXPECT_NEAR(s.grad_scale, 0.25, 1e-6);
}

}  // namespace
}  // namespace athanor
