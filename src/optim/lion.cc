// Lion: one op over all weights of the rule.
#include "optim/rule.h"

namespace athanor {
namespace {

class LionRule final : public UpdateRule {
 public:
  explicit LionRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}}; }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    const Lion op{.parts = update_parts(params, placed),
                  .state = step_state,
                  .beta1 = o_.beta1,
                  .beta2 = o_.beta2,
                  .weight_decay = o_.weight_decay,
                  .seed = o_.seed,
                  .rate = o_.lr_factor,
                  .cautious = o_.cautious};
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_lion(const RuleOptions& options) { return std::make_unique<LionRule>(options); }

}  // namespace athanor
