// Rules that are one elementwise op for all weights of the rule: SGD, Lion and schedule-free AdamW.
#include "optim/rule.h"

namespace athanor {
namespace {

using States = std::vector<KeptState>;

template <class Op>
class ElementwiseRule final : public UpdateRule {
 public:
  // op: without parts and step state.
  ElementwiseRule(Op op, States states, std::vector<Average> averages = {})
      : op_(std::move(op)), states_(std::move(states)), averages_(std::move(averages)) {}
  States states() const override { return states_; }
  std::vector<Average> averages() const override { return averages_; }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    Op op = op_;
    op.parts = update_parts(params, placed), op.state = step_state;
    if constexpr (requires { op.average1; }) op.average1 = placed.averages[0], op.average2 = placed.averages[1];
    if (!op.parts.empty()) c.run(op);
  }

 private:
  Op op_;
  States states_;
  std::vector<Average> averages_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const RuleOptions& o) {
  const Sgd op{.parts = {},
               .momentum = o.momentum,
               .weight_decay = o.weight_decay,
               .seed = o.seed,
               .rate = o.lr_factor,
               .nesterov = o.nesterov};
  return std::make_unique<ElementwiseRule<Sgd>>(op, o.momentum > 0 ? States{{"m", o.m}} : States{});
}

std::unique_ptr<UpdateRule> make_lion(const RuleOptions& o) {
  const Lion op{.parts = {},
                .beta1 = o.beta1,
                .beta2 = o.beta2,
                .weight_decay = o.weight_decay,
                .seed = o.seed,
                .rate = o.lr_factor,
                .cautious = o.cautious};
  return std::make_unique<ElementwiseRule<Lion>>(op, States{{"m", o.m}});
}

// Gradients are taken at the weights; evaluations read an average, which is stored as its difference from the weights
// and starts at 0.
std::unique_ptr<UpdateRule> make_schedule_free_adamw(const RuleOptions& o) {
  const ScheduleFreeAdamW op{.parts = {},
                             .beta1 = o.beta1,
                             .beta2 = o.beta2,
                             .eps = o.eps,
                             .weight_decay = o.weight_decay,
                             .seed = o.seed,
                             .rate = o.lr_factor,
                             .cautious = o.cautious};
  return std::make_unique<ElementwiseRule<ScheduleFreeAdamW>>(
      op, States{{kAverageMinusWeightState, DType::f32}, {"v", o.v}},
      std::vector<Average>{{.weighting = Weighting::squared_rate}, {o.beta2}});
}

}  // namespace athanor
