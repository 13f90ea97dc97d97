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
    const AdamW op{.parts = update_parts(params, placed),
                   .state = step_state,
                   .beta1 = o_.beta1,
                   .beta2 = o_.beta2,
                   .eps = o_.eps,
                   .weight_decay = o_.weight_decay,
                   .seed = o_.seed,
                   .rate = o_.lr_factor,
                   .average1 = placed.averages[0],
                   .average2 = placed.averages[1],
                   .coupled = o_.rule == RuleName::adam,
                   .cautious = o_.cautious && o_.rule != RuleName::adam};
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions& options) { return std::make_unique<AdamWRule>(options); }

}  // namespace athanor
