#include <algorithm>

#include "nn/layers.h"

namespace athanor {

void classifier(Net n, Var x, const Batch& batch, const Classifier& head, Tensor losses) {
  Ctx& c = n.c;
  const Tensor w = n.params.value(head.w);
  const int64_t rows = x.t().rows();
  const bool grad = c.recording(), tf32 = c.recipe.tf32;
  Buffer dx = grad ? c.alloc("classifier.dx", x.t().shape) : Buffer{};
  for (int64_t lo = 0; lo < rows; lo += head.chunk_rows) {
    const int64_t hi = std::min(rows, lo + head.chunk_rows);
    const Tensor part = x.t().slice(lo, hi);
    Buffer z = c.alloc("classifier.logits", {hi - lo, w.rows()});
    c.run(Gemm{.d = z.t, .a = part, .b = w, .tb = true, .tf32 = tf32});
    c.run(CrossEntropy{.logits = z.t,
                       .losses = losses.slice(lo, hi),
                       .targets = batch.targets.slice(lo, hi),
                       .scale = head.loss_scale,
                       .inv_count = head.inv_count,
                       .vocab = head.vocab,
                       .grad = grad,
                       .z_loss = head.z_loss});
    if (!grad) continue;
    c.run(Gemm{.d = dx.t.slice(lo, hi), .a = z.t, .b = w, .tf32 = tf32});
    c.run(Gemm{.d = n.params.grad(head.w), .a = z.t, .b = part, .ta = true, .accumulate = true, .tf32 = tf32});
  }
  if (grad) c.put(x.slot(), std::move(dx));
}

Buffer logits(Net n, Var x, Tensor rows, Param w) {
  Ctx& c = n.c;
  const Tensor weight = n.params.value(w);
  Buffer last = c.alloc("logits.x", {rows.shape[0], x.t().cols()});
  c.run(GatherRows{.y = last.t, .x = x.t(), .rows = rows});
  Buffer z = c.alloc("logits", DType::f32, {rows.shape[0], weight.rows()});
  c.run(Gemm{.d = z.t, .a = last.t, .b = weight, .tb = true, .tf32 = c.recipe.tf32});
  return z;
}

}  // namespace athanor
