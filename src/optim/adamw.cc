// AdamW over flat buffers: one launch for a unit, which knows where the decayed part (matrices, embeddings) ends.
#include "base/rng.h"
#include "optim/optimizer.h"

namespace athanor {
namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamWOptions& options) : options_(options) {}

  std::vector<StateSpec> states() const override { return {{"m", DType::f32}, {"v", DType::f32}}; }

  void step(Ctx& c, ParamStore& params, Tensor step_state) override {
    for (size_t u = 0; u < params.units().size(); ++u) {
      const ParamStore::Unit& unit = *params.units()[u];
      const int64_t trained = unit.layout.trained;
      if (trained == 0) continue;
      c.run(AdamW{.master = unit.master.slice(0, trained),
                  .param = unit.value ? unit.value.slice(0, trained) : Tensor{},
                  .m = unit.states[0].slice(0, trained),
                  .v = unit.states[1].slice(0, trained),
                  .grad = unit.grad.slice(0, trained),
                  .state = step_state,
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = options_.weight_decay,
                  .decayed = unit.layout.decayed,
                  .seed = options_.seed,
                  .stream = stream_of(cat("stochastic rounding of unit ", u))});
    }
  }

 private:
  AdamWOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options) { return std::make_unique<AdamWOptimizer>(options); }

}  // namespace athanor
