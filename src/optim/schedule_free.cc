// Schedule-free AdamW: gradients are taken at the weights; evaluations read an average, which is stored as its
// difference from the weights and starts at 0.
#include "optim/rule.h"

namespace athanor {
namespace {

class ScheduleFreeRule final : public UpdateRule {
 public:
  explicit ScheduleFreeRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{kAverageMinusWeightState, DType::f32}, {"v", o_.v}}; }
  std::vector<Average> averages() const override { return {{.weighting = Weighting::squared_rate}, {o_.beta2}}; }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    ScheduleFreeAdamW op{.parts = update_parts(params, placed), .rate = o_.lr_factor};
    set_adam(op, o_, placed, step_state);
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_schedule_free_adamw(const RuleOptions& options) {
  return std::make_unique<ScheduleFreeRule>(options);
}

}  // namespace athanor
