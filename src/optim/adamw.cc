// AdamW over flat buffers: one launch for the decayed part of a unit (matrices, embeddings), one for its vectors.
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
      launch(c, unit, int64_t(u), step_state, 0, unit.layout.decayed, options_.weight_decay);
      launch(c, unit, int64_t(u), step_state, unit.layout.decayed, unit.layout.trained, 0);
    }
  }

 private:
  void launch(Ctx& c, const ParamStore::Unit& unit, int64_t u, Tensor step_state, int64_t lo, int64_t hi,
              double decay) {
    if (lo == hi) return;
    c.run(AdamW{.master = unit.master.slice(lo, hi),
                .param = unit.value ? unit.value.slice(lo, hi) : Tensor{},
                .m = unit.states[0].slice(lo, hi),
                .v = unit.states[1].slice(lo, hi),
                .grad = unit.grad.slice(lo, hi),
                .state = step_state,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.eps,
                .weight_decay = decay,
                .seed = options_.seed,
                .stream = stream_of(cat("stochastic rounding of unit ", u)),
                .first = uint64_t(lo)});
  }
  AdamWOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options) { return std::make_unique<AdamWOptimizer>(options); }

}  // namespace athanor
