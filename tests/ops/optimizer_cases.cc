// Cases of AdamW and StepControl on a backend; the arithmetic of the step itself is in step_control_test.cc.
#include <cmath>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

StepState running_state() {
  StepState s;
  s.updates = 37;
  s.grad_scale = 0.25f;
  s.lr = 0.01f;
  s.bias1 = float(1 - std::pow(0.9, 37));
  s.bias2 = float(1 - std::pow(0.95, 37));
  return s;
}

AdamW adamw(int64_t n, DType master) {
  const Tensor f = tensor(DType::f32, {n});
  return {.master = tensor(master, {n}),
          .m = f,
          .v = f,
          .grad = f,
          .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
          .weight_decay = 0.1,
          .seed = 5,
          .stream = 6,
          .first = 1000003};
}

void adamw_cases(Examiner& examine) {
  for (int64_t n : {1, 3, 17, 257, 5000})
    for (DType master : {DType::f32, DType::bf16})
      for (int skip : {0, 1})
        for (int copy = 0; copy < 4; ++copy) {
          OpCase<AdamW> c{cat(n, " ", master, skip ? " skip" : ""), adamw(n, master)};
          if (copy) c.op.param = tensor(kFloats[copy - 1], {n});
          if (copy) c.name += cat(" copy ", kFloats[copy - 1]);
          StepState s = running_state();
          s.skip = skip;
          if (skip) s.grad_scale = 0;
          c.values = {{"state", bytes_of(s)}, {"v", uniform(0, 1)}, {"m", normal(0, 0.3)}};
          if (skip) c.values["grad"] = constant(INFINITY);  // nothing of it may get through
          examine(c);
        }
  for (int64_t decayed : {0, 9, 3001}) {
    OpCase<AdamW> c{cat("decay of ", decayed), adamw(5000, decayed == 9 ? DType::bf16 : DType::f32)};
    c.op.decayed = decayed;
    c.op.weight_decay = 20;
    c.values = {{"state", bytes_of(running_state())}, {"v", uniform(0, 1)}};
    examine(c);
  }
  for (DType master : {DType::f32, DType::bf16}) {  // work for many threads
    OpCase<AdamW> c{cat("long ", master), adamw(100003, master)};
    c.op.param = tensor(DType::bf16, {100003});
    c.values = {{"state", bytes_of(running_state())}, {"v", uniform(0, 1)}};
    examine(c);
  }
}

void step_control_cases(Examiner& examine) {
  for (double norm_sq : {0.0, 9.0, double(INFINITY), double(NAN)})
    for (bool dynamic : {false, true}) {
      StepState s = running_state();
      s.norm_sq = norm_sq;
      s.loss_sum = 2.5;
      s.loss_scale = dynamic ? 4096 : 1;
      s.hysteresis_left = 2;
      OpCase<StepControl> c{
          cat("norm_sq ", norm_sq, dynamic ? " dynamic" : ""),
          {.state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
           .schedule = {.style = DecayStyle::cosine, .lr = 1e-3, .min_lr = 1e-4, .warmup = 10, .decay = 100},
           .scaling = {.dynamic = dynamic},
           .clip_grad = 1,
           .beta1 = 0.9,
           .beta2 = 0.95},
          {{"state", bytes_of(s)}},
          true};
      examine(c);
    }
}

}  // namespace

void optimizer_cases(Examiner& examine) {
  adamw_cases(examine);
  step_control_cases(examine);
}

}  // namespace athanor
