// ReferenceOps: the specification of every op as a backend. Plain single-threaded loops in double that read like the
// formulas in ops/; results are rounded once, where the op's header says so. Needs no scratch memory and is not
// optimized for speed.
#pragma once
#include <memory>

#include "ops/ops.h"

namespace athanor {

class ReferenceOps final : public Ops {
 public:
#define ATHANOR_OP(Op) void run(const Op&, void* scratch) override;
  ATHANOR_EACH_OP(ATHANOR_OP)
#undef ATHANOR_OP
  size_t scratch(const Orthogonalize&) const override;
};

std::unique_ptr<Ops> make_reference();

}  // namespace athanor
