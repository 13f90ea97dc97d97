// AdamW with 8-bit moments: indices into the dynamic map and one scale per block. Blocks start with the tensor and are
// never split between ranks, so that quantized values do not depend on the number of ranks.
#include "optim/rule.h"

namespace athanor {
namespace {

class AdamW8bitRule final : public UpdateRule {
 public:
  explicit AdamW8bitRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override {
    return {{"m_8bit", DType::u8},
            {"v_8bit", DType::u8},
            {"m_absmax", DType::f32, nullptr, kMomentBlock},
            {"v_absmax", DType::f32, nullptr, kMomentBlock}};
  }
  std::vector<Average> averages() const override { return {{o_.beta1, true}, {o_.beta2}}; }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    AdamW8bit op{.parts = {}, .rate = o_.lr_factor};
    set_adam(op, o_, placed, step_state);
    const std::vector<OwnedRun> runs = owned_runs(params, placed);
    const std::vector<UpdatePart> parts = update_parts(params, placed);  // m and v are quantized
    for (size_t i = 0; i < parts.size(); ++i) {
      const UpdatePart& p = parts[i];
      const auto scale = [&](size_t state) {
        return runs[i].unit.states[placed.states[state]].on_device(runs[i].range);
      };
      op.parts.push_back({.master = p.master,
                          .param = p.param,
                          .grad = p.grad,
                          .m = p.m,
                          .v = p.v,
                          .m_scale = scale(2),
                          .v_scale = scale(3),
                          .decayed = p.decayed,
                          .stream = p.stream,
                          .first = p.first});
    }
    if (!op.parts.empty()) c.run(op);
  }

 private:
  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw_8bit(const RuleOptions& options) {
  return std::make_unique<AdamW8bitRule>(options);
}

}  // namespace athanor
