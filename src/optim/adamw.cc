// AdamW, and Adam with coupled weight decay: one op for all weights of the rule. With update clipping, AdamW first
// computes and clips the directions, then moves the weights.
#include "ops/lamb.h"
#include "optim/rule.h"

namespace athanor {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}, {"v", o_.v}}; }
  std::vector<Average> averages() const override { return {{o_.beta1, true}, {o_.beta2}}; }
  std::vector<UpdatePass> passes() const override {
    using Of = UpdatePass::Of;
    using Use = UpdatePass::Use;
    if (o_.update_clip_threshold == 0) return {{}};
    return {{.masters = Use::no}, {Of::everything, Use::no, Use::no}, {.states = Use::no}};
  }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (o_.update_clip_threshold > 0) return run_clipped(pass, c, params, placed, step_state);
    AdamW op{.parts = update_parts(params, placed), .rate = o_.lr_factor, .coupled = o_.rule == RuleName::adam};
    set_adam(op, o_, placed, step_state);
    op.cautious = o_.cautious && !op.coupled;
    if (!op.parts.empty()) c.run(op);
  }

 private:
  // Weight decay is not clipped, so it is applied in the last pass.
  void run_clipped(size_t pass, Ctx& c, const ParamStore& params, const Placed& placed, Tensor step_state) const {
    if (pass == 1) return clip_updates(c, params, placed, o_.update_clip_threshold);
    if (pass == 2) return move_along(c, o_, params, placed, step_state);
    AdamDirection steps{.parts = {}};
    set_adam(steps, o_, placed, step_state);
    steps.weight_decay = 0, steps.cautious = false;
    for (const UpdatePart& p : update_parts(params, placed, PartsOf::states))
      steps.parts.push_back(
          {.w = {}, .m = p.m, .v = p.v, .grad = p.grad, .moment_stream = p.moment_stream, .first = p.first});
    if (!steps.parts.empty()) c.run(steps);
  }

  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions& options) { return std::make_unique<AdamWRule>(options); }

}  // namespace athanor
