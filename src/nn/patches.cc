// Patches of images as tokens. Patch i of an image is its row 1 + i; row 0 is the class token.
#include <utility>

#include "nn/linear_gemms.h"

namespace athanor {
namespace {

Buffer cut(Ctx& c, const Patchify& op) {
  Buffer x = c.alloc("patches", {op.pixels.rows() * (1 + op.shape.patches()), op.shape.columns()});
  Patchify now = op;
  now.y = x.t;
  c.run(now);
  return x;
}

}  // namespace

Var patch_embedding(Net n, const Batch& batch, const ImagePatches& images, const Linear& projection, Param kinds,
                    Param positions) {
  Ctx& c = n.c;
  CHECK(batch.pixels, "a batch without images");
  const Patchify op{
      .y = {}, .pixels = batch.pixels, .shape = images.shape, .scale = images.scale, .shift = images.shift};
  Var rows = embedding(n, batch, kinds, positions);
  Buffer y = c.alloc("patches.y", rows.t().shape);
  run_with_residual(n, projection, y.t, {.data = cut(c, op), .scales = {}}, rows.t());
  Var out = c.var(std::move(y));
  c.record("patches", [&params = n.params, projection, op, sr = rows.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s);
    (void)run_weight_gradient({cc, params}, projection, dy, {.data = cut(cc, op), .scales = {}});
    cc.put(sr, std::move(dy));
  });
  return out;
}

}  // namespace athanor
