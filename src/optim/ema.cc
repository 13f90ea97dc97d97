// Moving average of the trained weights (EMA), for evaluation and export; training never reads it.
#include "optim/rule.h"

namespace athanor {
namespace {

class EmaRule final : public UpdateRule {
 public:
  explicit EmaRule(double decay) : decay_(decay) {}
  std::vector<KeptState> states() const override { return {{kEmaState, DType::f32}}; }
  std::vector<Average> averages() const override { return {{decay_}}; }
  void step(Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    Ema op{.parts = {}, .state = step_state, .decay = decay_, .average = placed.averages[0]};
    for (const UpdatePart& p : update_parts(params, placed))
      op.parts.push_back(
          {.average = p.m, .master = p.master, .param = p.master.dtype == DType::i16 ? p.param : Tensor{}});
    if (!op.parts.empty()) c.run(op);
  }

 private:
  double decay_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_ema(double decay) { return std::make_unique<EmaRule>(decay); }

}  // namespace athanor
