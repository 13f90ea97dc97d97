// Pipeline parallelism with tied embeddings: the first stage has the table as embedding, the last stage has it as LM
// head.
#include "param/param_store.h"

namespace athanor {

// Both stages compute the same sum of the two gradients, and therefore make the same update of the same weights.
void ParamStore::add_tied_gradients(Ctx& c) {
  const StageUnits& s = sharding_.stages;
  if (s.tied < 0 || s.stages == 1 || !here(size_t(s.tied))) return;
  const Unit& unit = *units_[size_t(s.tied)];
  if (unit.layout.trained == 0) return;
  const CollectiveSubject subject(unit.name);
  const Tensor mine = unit.own(unit.grad);
  const Buffer theirs = c.alloc("gradients of the tied table on another stage", mine.dtype, mine.shape);
  c.exchange(c.mesh.stages(), mine, theirs.t, s.stage == 0 ? s.head : 0);
  c.run(Add{.y = mine, .a = mine, .b = theirs.t});
}

}  // namespace athanor
