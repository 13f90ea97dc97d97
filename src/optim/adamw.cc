// AdamW over the flat buffers of all units in one op. Each knows where its decayed part (matrices, embeddings) ends.
#include <algorithm>

#include "base/rng.h"
#include "optim/optimizer.h"

namespace athanor {
namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamWOptions& options) : options_(options) {}

  std::vector<StateSpec> states() const override { return {{"m", options_.m}, {"v", options_.v}}; }

  void step(Ctx& c, ParamStore& params, Tensor step_state) override {
    AdamW op{.parts = {},
             .state = step_state,
             .beta1 = options_.beta1,
             .beta2 = options_.beta2,
             .eps = options_.eps,
             .weight_decay = options_.weight_decay,
             .seed = options_.seed};
    for (size_t u = 0; u < params.units().size(); ++u) {
      const ParamStore::Unit& unit = *params.units()[u];
      const ParamStore::Range range = unit.owned(0, unit.layout.trained);
      if (range.begin == range.end) continue;
      op.parts.push_back({.master = unit.part(unit.master, range),
                          .param = unit.value ? unit.part(unit.value, range) : Tensor{},
                          .m = unit.part(unit.states[0], range),
                          .v = unit.part(unit.states[1], range),
                          .grad = unit.part(unit.grad, range),
                          .decayed = std::clamp(unit.layout.decayed, range.begin, range.end) - range.begin,
                          .stream = stream_of(cat("stochastic rounding of unit ", u)),
                          .moment_stream = stream_of(cat("stochastic rounding of the moments of unit ", u)),
                          .first = uint64_t(range.begin)});
    }
    if (!op.parts.empty()) c.run(op);
  }

 private:
  AdamWOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options) { return std::make_unique<AdamWOptimizer>(options); }

}  // namespace athanor
