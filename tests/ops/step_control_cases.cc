// Cases of StepControl on a backend; the arithmetic of the step itself is in step_control_test.cc.
#include <cmath>

#include "tests/ops/cases.h"

namespace athanor {

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
           .averages = {{0.9, true}, {0.95}}},
          {{"state", bytes_of(s)}},
          true};
      examine(c);
    }
  for (double loss : {2.9, 9.0})
    for (DecayStyle style : {DecayStyle::wsd, DecayStyle::inverse_sqrt, DecayStyle::one_cycle}) {
      StepState s = running_state();
      s.norm_sq = 4;
      s.targets = 5;
      s.loss_sum = 5 * loss;
      SpikeWindow window;
      window.count = SpikeWindow::kSteps + 3;
      for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) {
        window.loss[i] = float(2 + normal(0, 1)(1, i));
        window.norm[i] = float(2 + normal(0, 1)(2, i));
      }
      examine(OpCase<StepControl>{cat("spikes, loss ", loss, " schedule ", int(style)),
                                  {.state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                                   .window = tensor(DType::u8, {int64_t(sizeof(SpikeWindow))}),
                                   .scores = tensor(DType::f32, {3, 4}),
                                   .schedule = {.style = style,
                                                .wsd = WsdDecay::exponential,
                                                .lr = 1e-3,
                                                .min_lr = 1e-4,
                                                .warmup = 10,
                                                .decay = 60,
                                                .wsd_decay = 30,
                                                .start = 1e-5,
                                                .momentum_warmup = 50,
                                                .low_momentum = 0.85,
                                                .weight_decay = WeightDecayStyle::cosine,
                                                .end_weight_decay = 2},
                                   .clip_grad = 1,
                                   .averages = {{0.9, true}, {0.95}},
                                   .spikes = {.deviations = 5, .most_in_row = 3}},
                                  {{"state", bytes_of(s)}, {"window", bytes_of(window)}},
                                  true});
    }
}

}  // namespace athanor
