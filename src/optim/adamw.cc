// AdamW, and Adam with coupled weight decay: one op for all its weights.
#include "optim/rule.h"

namespace athanor {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}, {"v", o_.v}}; }
  std::vector<Average> averages() const override { return {{o_.beta1, true}, {o_.beta2}}; }
  void step(Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    AdamW op{.parts = update_parts(params, placed), .rate = o_.lr_factor, .coupled = o_.rule == RuleName::adam};
    set_adam(op, o_, placed, step_state);
    op.cautious = o_.cautious && !op.coupled;
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions& options) { return std::make_unique<AdamWRule>(options); }

}  // namespace athanor
