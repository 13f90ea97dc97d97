// Stochastic gradient descent: one op for all weights of the rule; stateless without momentum.
#include "optim/rule.h"

namespace athanor {
namespace {

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override {
    return o_.momentum > 0 ? std::vector<KeptState>{{"m", o_.m}} : std::vector<KeptState>{};
  }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    const Sgd op{.parts = update_parts(params, placed),
                 .state = step_state,
                 .momentum = o_.momentum,
                 .weight_decay = o_.weight_decay,
                 .seed = o_.seed,
                 .rate = o_.lr_factor,
                 .nesterov = o_.nesterov};
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const RuleOptions& options) { return std::make_unique<SgdRule>(options); }

}  // namespace athanor
