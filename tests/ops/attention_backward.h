// The backward op of a forward one, for tests: tensors like those of the forward op, each gradient like what it is of;
// and the case of one: y and lse are the reference's.
#pragma once
#include "ops/attention.h"
#include "tests/ops/cases.h"

namespace athanor {

inline AttentionBwd backward_of(const AttentionFwd& f) {
  return {.dq = f.q,
          .dk = f.k,
          .dv = f.v,
          .dy = f.y,
          .y = f.y,
          .lse = f.lse,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .spans = f.spans,
          .shape = f.shape};
}

inline OpCase<AttentionBwd> backward_of(Examiner& examine, const OpCase<AttentionFwd>& fwd) {
  const AttentionFwd& f = fwd.op;
  OpCase<AttentionBwd> bwd{fwd.name, backward_of(f), fwd.values};
  const auto results = examine.reference_results(fwd);
  for (const char* name : {"y", "lse"}) {
    const Result& r = result(results, name);
    bwd.values[name] = listed(decoded(r.like.dtype, r.after));
  }
  // With one key per query the scores have no gradient, and every rounding error would be infinitely large: another y
  // gives them one.
  if (f.shape.window == 1 || f.k.rows() == 1) bwd.values["y"] = normal();
  return bwd;
}

}  // namespace athanor
