// Average of the trained weights, exponential (EMA) or arithmetic, for evaluation and export; training never reads it.
#include "optim/rule.h"

namespace athanor {
namespace {

class AverageRule final : public UpdateRule {
 public:
  explicit AverageRule(const Average& average) : average_(average) {}
  std::vector<KeptState> states() const override {
    return {{.name = kEmaState, .dtype = DType::f32, .of_all_workers = true}};
  }
  std::vector<Average> averages() const override { return {average_}; }
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    Ema op{.parts = {}, .state = step_state, .decay = average_.decay, .average = placed.averages[0]};
    for (const UpdatePart& p : update_parts(params, placed))
      op.parts.push_back(
          {.average = p.m, .master = p.master, .param = p.master.dtype == DType::i16 ? p.param : Tensor{}});
    if (!op.parts.empty()) c.run(op);
  }

 private:
  Average average_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_average(const Average& average) { return std::make_unique<AverageRule>(average); }

}  // namespace athanor
