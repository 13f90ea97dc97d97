#include "nn/adapters.h"

#include "base/rng.h"
#include "nn/linear_gemms.h"

namespace athanor {
namespace {

void scale(Ctx& c, const Tensor& x, float by) { c.run(Combine{.y = x, .a = x, .alpha = by}); }

// Calls fn(columns of y, columns of h, rows of B) for each part.
template <class Fn>
void for_each_part(const Adapters& all, Fn&& fn) {
  int64_t row = 0;
  for (size_t i = 0; i < all.parts.size(); ++i) {
    const Adapters::Part& part = all.parts[i];
    const int64_t column = int64_t(i) * all.rank;
    fn([&](const Tensor& y) { return y.columns(part.first, part.first + part.outputs); },
       [&](const Tensor& h) { return h.columns(column, column + all.rank); },
       [&](const Tensor& b) { return b.slice(row, row + part.outputs); });
    row += part.outputs;
  }
}

// Applies the adapters' dropout to the layer's input, or in place to its gradient.
void drop(Net n, const Linear& layer, const Tensor& y, const Tensor& x) {
  const Adapters& adapters = *n.params.adapters(layer.w);
  const ParamSpec& a = n.params.spec(adapters.a);
  run_drop_path(n.c,
                {.y = y,
                 .x = x,
                 .stream = stream_of(a.name),
                 .p = adapters.dropout,
                 .elements = true,
                 .first_column = n.params.placement(adapters.a).slices[0].strips[0].at,
                 .all_columns = a.shape[1]},
                shared(n, layer) == Shared::no);
}

}  // namespace

bool drops_inputs(Net n, const Linear& layer) {
  return n.c.dropping.first.shape.rank > 0 && n.params.adapters(layer.w)->dropout > 0;
}

Buffer dropped_input(Net n, const Linear& layer, const Tensor& x) {
  Buffer y;
  y.t = x;
  if (!drops_inputs(n, layer)) return y;
  y = n.c.alloc("adapters.x", x.shape);
  drop(n, layer, y.t, x);
  return y;
}

void drop_gradient(Net n, const Linear& layer, const Tensor& dx) { drop(n, layer, dx, dx); }

Buffer run_adapters(Net n, const Linear& layer, const Tensor& y, const Tensor& input) {
  Ctx& c = n.c;
  const Buffer kept = dropped_input(n, layer, input);
  const Tensor& x = kept.t;
  const Adapters& adapters = *n.params.adapters(layer.w);
  const Tensor a = n.params.value(adapters.a), b = n.params.value(adapters.b);
  Buffer h = c.alloc("adapters.h", {x.rows(), a.rows()});
  c.run(Gemm{.d = h.t, .a = x, .b = a, .tb = true, .tf32 = c.recipe.tf32});
  scale(c, h.t, adapters.scale);
  for_each_part(adapters, [&](auto&& of_y, auto&& of_h, auto&& of_b) {
    c.run(Gemm{.d = of_y(y), .a = of_h(h.t), .b = of_b(b), .tb = true, .accumulate = true, .tf32 = c.recipe.tf32});
  });
  return h;
}

// With g = scale dy B: dA += g^T x, dB += dy^T h, dx += g A; x and the addend to dx have the same dropout mask.
void run_adapter_gradients(Net n, const Linear& layer, const Tensor& dx, const Tensor& dy, const Tensor& input,
                           const Tensor& h) {
  Ctx& c = n.c;
  const Adapters& adapters = *n.params.adapters(layer.w);
  const Tensor a = n.params.value(adapters.a), b = n.params.value(adapters.b), db = n.params.grad(adapters.b);
  const bool tf32 = c.recipe.tf32;
  const Buffer g = c.alloc("adapters.dh", h.shape);
  for_each_part(adapters, [&](auto&& of_y, auto&& of_h, auto&& of_b) {
    c.run(Gemm{.d = of_h(g.t), .a = of_y(dy), .b = of_b(b), .tf32 = tf32});
    c.run(Gemm{.d = of_b(db), .a = of_y(dy), .b = of_h(h), .ta = true, .accumulate = true, .tf32 = tf32});
  });
  scale(c, g.t, adapters.scale);
  {
    const Buffer x = dropped_input(n, layer, input);
    c.run(Gemm{.d = n.params.grad(adapters.a), .a = g.t, .b = x.t, .ta = true, .accumulate = true, .tf32 = tf32});
  }
  if (!drops_inputs(n, layer)) return c.run(Gemm{.d = dx, .a = g.t, .b = a, .accumulate = true, .tf32 = tf32});
  const Buffer part = c.alloc("adapters.dx", dx.shape);
  c.run(Gemm{.d = part.t, .a = g.t, .b = a, .tf32 = tf32});
  drop_gradient(n, layer, part.t);
  c.run(Add{.y = dx, .a = dx, .b = part.t});
}

Buffer gradient_of(Net n, Param p) {
  Buffer gradient;
  if (!n.params.spec(p).frozen) {
    gradient.t = n.params.grad(p);
    return gradient;
  }
  gradient = n.c.alloc("gradient that is not read", DType::f32, n.params.placement(p).shape);
  n.c.run(Fill{.x = gradient.t});
  return gradient;
}

}  // namespace athanor
