// A rig with a few matrices of given weights and gradients, for 20 steps of an optimizer.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "tests/train/harness.h"

namespace athanor::optimizers {

using testing::Rig;

inline constexpr double kRate = 0.01, kDecay = 0.3;
inline constexpr int64_t kRows = 9, kColumns = 5;

inline double start(int64_t i) { return std::cos(1.7 * double(i) + 0.3); }
inline double gradient(int64_t i, int step) {
  return std::sin(0.9 * double(i) + 1.3 * step) + 0.2 * std::sin(0.31 * double(i) * step);
}

inline ParamSpec matrix(const std::string& name, Shape shape, bool in_out = false) {
  return {
      .name = name, .shape = shape, .role = Role::matrix, .slices = {{name + ".weight", shape, 0}}, .in_out = in_out};
}

inline OptimizerOptions with(RuleName rule) {
  OptimizerOptions o;
  o.rule = rule;
  o.weight_decay = kDecay;
  o.groups = default_groups(rule);
  return o;
}

// The parameters of one unit, and their optimizer.
struct Trained {
  Rig rig;
  ParamStore params;
  std::unique_ptr<Optimizer> optimizer;
  Arena arena;
  Recipe recipe;
  Tensor state, max_attention_logits;  // max_attention_logits: with QK-clip, [64], of layer 0
  MemoryPlan plan;
  Schedule schedule{.lr = kRate, .min_lr = kRate};
  double clip_grad = 0;  // clip_grad of the next step; loss_scale: factor of its gradients
  float loss_scale = 1;

  Trained(std::vector<ParamSpec> specs, const OptimizerOptions& options, const char* precision = "fp32",
          DType master = DType::f32, std::unique_ptr<Ops> ops = nullptr)  // ops: used instead of the rig's
      : recipe(make_recipe(precision, master)) {
    if (ops) rig.ops = std::move(ops);
    for (ParamSpec& spec : specs) params.declare(std::move(spec));
    optimizer = std::make_unique<Optimizer>(options, params);
    params.plan(plan, recipe, true, optimizer->states());
    plan.add(MemoryKind::inputs, "state", DType::u8, {int64_t(sizeof(StepState))}, &state);
    if (options.qk_clip_threshold > 0) plan.add(MemoryKind::inputs, "scores", DType::f32, {64}, &max_attention_logits);
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
    return {.ops = ops,
            .device = *rig.device,
            .arena = arena,
            .mesh = *rig.mesh,
            .recipe = recipe,
            .max_attention_logits = max_attention_logits};
  }
  void write(const StepState& s) {
    rig.device->copy(state.data, &s, sizeof s, Stream::compute);
    rig.device->sync();
  }
  Tensor flat(Tensor t, size_t piece) const {
    const auto p = params.pieces()[piece];
    return t.slice(p.offset, p.offset + p.slice->shape.numel());
  }
  void set(const Tensor& t, const std::vector<float>& values) {
    rig.device->copy(t.data, values.data(), t.bytes(), Stream::compute);
    rig.device->sync();
  }
  Tensor master(size_t piece = 0) { return flat(params.units()[0]->master, piece); }
  Tensor grad(size_t piece = 0) { return flat(params.units()[0]->grad, piece); }
  std::vector<float> weights(size_t piece = 0) { return rig.read<float>(master(piece)); }
  void step(double norm_sq = 0) {
    StepState s;
    rig.device->copy(&s, state.data, sizeof s, Stream::compute);
    rig.device->sync();
    s.norm_sq = norm_sq;
    s.loss_scale = loss_scale;
    write(s);
    arena.begin("step");
    Ctx c = context(*rig.ops);
    StepControl control{.state = state, .schedule = schedule, .clip_grad = clip_grad};
    std::ranges::copy(optimizer->averages(), control.averages);
    c.run(control);
    optimizer->step(c, params, state);
    arena.end();
  }
};

// Values of a rows x cols matrix, or of its transpose.
inline std::vector<float> values(const std::function<double(int64_t)>& at, int64_t rows, int64_t cols,
                                 bool transposed) {
  std::vector<float> x(size_t(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) x[size_t(transposed ? c * rows + r : r * cols + c)] = float(at(r * cols + c));
  return x;
}

// Weights after 20 steps on a [kRows, kColumns] matrix; in_out: the same matrix is stored in GPT-2's order, and the
// result is transposed back.
inline std::vector<float> after_20_steps(const OptimizerOptions& o, bool in_out = false) {
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

inline void expect_near(const std::vector<float>& got, std::span<const double> want, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(double(got[i]), want[i], tolerance) << what << " element " << i;
}

}  // namespace athanor::optimizers
