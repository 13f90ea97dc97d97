#include <memory>
#include <utility>

#include "nn/context.h"
#include "nn/expert_rows.h"
#include "nn/rows.h"

namespace athanor {
namespace {

struct Routes {
  Buffer logits;   // [N, E] f32
  Buffer experts;  // [N, k] i32
  Buffer kept;     // output of DropChoices for whole sequences; empty if no choice is dropped
  ExpertRows rows;
  RowsSent gradients;  // backward: gradients of the output, in transit to the experts
};

// Number of experts on this rank.
int64_t own_experts(Net n, const Moe& layer) {
  return n.params.placement(layer.down).shape[0] * layer.experts / n.params.spec(layer.down).shape[0];
}

// Gathers the rows of whole sequences: from the tensor-parallel ranks, which split them with sequence parallelism, and
// from the context-parallel ranks if choices of whole sequences are counted, for a balance loss or a capacity.
Buffer rows_of_sequences(Ctx& c, const Buffer& own) {
  Buffer rows = all_rows(c, own);
  const Tensor& order = c.routing.context_rows;
  if (!order) return rows;
  const Shape shape{order.numel(), own.t.cols()};
  const Buffer by_rank = c.alloc("moe.rows by rank", own.t.dtype, shape);
  c.context_gather(by_rank.t, rows.t);
  rows = c.alloc("moe.rows of sequences", own.t.dtype, shape);
  c.run(ScatterRows{.y = rows.t, .x = by_rank.t, .rows = order});
  return rows;
}

// Returns this rank's rows of a tensor that rows_of_sequences() gathered.
Buffer rows_of_rank(Ctx& c, const Buffer& all) {
  const Tensor& order = c.routing.context_rows;
  if (!order) return own_rows(c, all);
  const int64_t rows = order.numel() / c.mesh.context().size(), rank = c.mesh.context().rank();
  const Buffer own = c.alloc("moe.rows of this rank", all.t.dtype, {rows, all.t.cols()});
  c.run(GatherRows{.y = own.t, .x = all.t, .rows = order.slice(rank * rows, (rank + 1) * rows)});
  return own_rows(c, own);
}

// Number of tokens in each of the sequences of rows_of_sequences().
int64_t sequence_length(const Ctx& c) {
  return c.routing.context_rows ? c.routing.sequence * c.mesh.context().size() : c.routing.sequence;
}

// Drops choices beyond the experts' capacity. Returns the max number of rows that an expert keeps.
int64_t drop_choices(Ctx& c, const Moe& layer, Routes& r, const Buffer& weights) {
  const Buffer all = rows_of_sequences(c, r.experts), all_weights = rows_of_sequences(c, weights);
  r.kept = c.alloc("moe.kept", DType::i32, all.t.shape);
  const int64_t length = sequence_length(c);
  const DropChoices drop{.kept = r.kept.t,
                         .experts = all.t,
                         .weights = all_weights.t,
                         .expert_count = layer.experts,
                         .sequence = length,
                         .capacity = expert_capacity(c.routing.capacity_factor, length, layer.chosen, layer.experts)};
  c.run(drop);
  return drop.sequences() * drop.capacity;
}

// The bias in the dtype of logits, which GEMMs on GPUs need.
Buffer f32_bias(Net n, Param bias) {
  if (!bias) return {};
  const Tensor value = n.params.value(bias);
  Buffer wide = n.c.alloc("moe.router bias", DType::f32, value.shape);
  n.c.run(Cast{.y = wide.t, .x = value});
  return wide;
}

Routes route(Net n, const Tensor& x, const Moe& layer, int number) {
  Ctx& c = n.c;
  const int64_t tokens = x.rows(), k = layer.chosen;
  Routes r{.logits = c.alloc("moe.logits", DType::f32, {tokens, layer.experts}),
           .experts = c.alloc("moe.experts", DType::i32, {tokens, k}),
           .kept = {},
           .rows = {},
           .gradients = {}};
  Buffer weights = c.alloc("moe.weights", DType::f32, {tokens, k});
  const Buffer router_bias = f32_bias(n, layer.router_b);
  c.run(Gemm{.d = r.logits.t,
             .a = x,
             .b = n.params.value(layer.router),
             .bias = router_bias ? router_bias.t : Tensor{},
             .tb = true,
             .tf32 = c.recipe.tf32});
  Tensor bias;
  if (layer.bias) bias = n.params.value(layer.bias).slice(layer.row, layer.row + 1).view({layer.experts});
  c.run(RouteFwd{.weights = weights.t, .experts = r.experts.t, .logits = r.logits.t, .bias = bias, .rule = layer.rule});
  if (c.routing.capacity_factor == 0) {
    r.rows = expert_rows(c, layer, number, own_experts(n, layer), std::move(weights), r.experts.t, 0);
  } else {
    const int64_t most = drop_choices(c, layer, r, weights);
    const Buffer kept = rows_of_rank(c, r.kept);
    r.rows = expert_rows(c, layer, number, own_experts(n, layer), std::move(weights), kept.t, most);
  }
  return r;
}

GroupedGemm grouped_gemm(Net n, const Routes& r, Grouped kind, Tensor d, Tensor a, Tensor b) {
  return {.d = d, .a = a, .b = b, .offsets = r.rows.offsets.t, .role = kind, .tf32 = n.c.recipe.tf32};
}
// d = a W^T or, for the gradient of the input, d = a W, with the experts' weights W.
void run_experts(Net n, const Routes& r, Grouped kind, Tensor d, Tensor a, Param w) {
  const Buffer weights = n.params.gemm_value(n.c, w);
  n.c.run(grouped_gemm(n, r, kind, d, a, weights.t));
}
void run_weight_gradient(Net n, const Routes& r, Param w, Tensor dy, Tensor x) {
  n.c.run(grouped_gemm(n, r, Grouped::weight_gradient, n.params.grad(w), dy, x));
}
bool is_frozen(Net n, Param p) { return n.params.spec(p).frozen; }

// Adds the experts' biases, if there are any, to their rows; weighted: times the router's weights.
void add_biases(Net n, const Routes& r, Tensor rows, Param bias, bool weighted) {
  if (!bias) return;
  const ExpertRows& e = r.rows;
  n.c.run(AddExpertBias{.x = rows,
                        .bias = n.params.value(bias).view({e.offsets.t.numel() - 1, rows.cols()}),
                        .offsets = e.offsets.t,
                        .weights = weighted ? e.slot_weights() : Tensor{},
                        .slots = weighted ? e.slots.t : Tensor{}});
}
// Adds to the gradients of the biases unless they are frozen, and of the router's weights if dweights is given.
void run_bias_gradients(Net n, const Routes& r, Tensor dy, Param bias, Tensor dweights) {
  if (!bias || (is_frozen(n, bias) && !dweights)) return;
  const ExpertRows& e = r.rows;
  const Shape shape{e.offsets.t.numel() - 1, dy.cols()};
  n.c.run(AddExpertBiasBwd{.dbias = is_frozen(n, bias) ? Tensor{} : n.params.grad(bias).view(shape),
                           .dweights = dweights,
                           .dx = dy,
                           .bias = n.params.value(bias).view(shape),
                           .offsets = e.offsets.t,
                           .weights = dweights ? e.slot_weights() : Tensor{},
                           .slots = dweights ? e.slots.t : Tensor{}});
}

void run_activation(Net n, const Moe& layer, const Routes& r, Tensor y, Tensor gu) {
  const Tensor weights = r.rows.slot_weights(), slots = r.rows.slots.t;
  if (layer.limit > 0)
    n.c.run(ClampedGluFwd{.y = y, .gu = gu, .weights = weights, .slots = slots, .limit = layer.limit});
  else
    n.c.run(WeightedSwigluFwd{.y = y, .gu = gu, .weights = weights, .slots = slots});
}
// In place: replaces gu by its gradient, and dy by the recomputed y.
void run_activation_gradient(Net n, const Moe& layer, const Routes& r, Tensor gu, Tensor dy, Tensor dweights) {
  const Tensor weights = r.rows.slot_weights(), slots = r.rows.slots.t;
  if (layer.limit > 0)
    n.c.run(ClampedGluBwd{.dgu = gu,
                          .dweights = dweights,
                          .y = dy,
                          .dy = dy,
                          .gu = gu,
                          .weights = weights,
                          .slots = slots,
                          .limit = layer.limit});
  else
    n.c.run(WeightedSwigluBwd{
        .dgu = gu, .dweights = dweights, .y = dy, .dy = dy, .gu = gu, .weights = weights, .slots = slots});
}

// Loads of experts over the micro-batches of this step whose backward has begun, on all ranks; empty unless these are
// balanced together.
Buffer loads_of_step(Ctx& c, const Moe& layer, int number, const Routes& r) {
  if (!c.routing.running_counts) return {};
  const Buffer counts = c.alloc("moe.counts of micro-batch", DType::f64, {layer.experts});
  c.run(CountExperts{.counts = counts.t, .experts = r.experts.t});
  if (c.mesh.weights().size() > 1) c.all_reduce(c.mesh.weights(), counts.t);  // each rank has tokens of its own
  Buffer loads = c.alloc("moe.loads", DType::f32, {layer.experts});
  c.run(ExpertLoads{.loads = loads.t,
                    .running = c.routing.running_counts.slice(number, number + 1).view({layer.experts}),
                    .counts = counts.t});
  return loads;
}

// Gradient of the router's logits. The router's losses are sums over whole sequences, so ranks that split sequences
// gather the logits, compute the gradient of all rows, and keep their own rows. The first of these ranks adds to the
// statistics.
Buffer logit_gradients(Ctx& c, const Moe& layer, int number, const Routes& r, const Buffer& of_weights) {
  const Routing& step = c.routing;
  const Buffer logits = rows_of_sequences(c, r.logits), experts = rows_of_sequences(c, r.experts),
               dweights = rows_of_sequences(c, of_weights);
  const RouterStatistics counted{layer.experts};
  const bool counts_rows = !step.context_rows || c.mesh.context().rank() == 0;
  Tensor statistics, counts;
  if (counts_rows && c.mesh.tensor().rank() == 0)
    statistics = step.statistics.slice(number, number + 1).view({counted.size()});
  if (counts_rows && step.counts) counts = step.counts.slice(number, number + 1).view({layer.experts});
  const Buffer loads = loads_of_step(c, layer, number, r);
  Buffer dlogits = c.alloc("moe.dlogits", {logits.t.rows(), layer.experts});
  c.run(RouteBwd{.dlogits = dlogits.t,
                 .statistics = statistics,
                 .counts = counts,
                 .dweights = dweights.t,
                 .logits = logits.t,
                 .experts = experts.t,
                 .kept = r.kept ? r.kept.t : Tensor{},
                 .loads = loads ? loads.t : Tensor{},
                 .scale = step.loss_scale,
                 .sequence = step.aux_loss_scope == AuxLossScope::micro_batch ? logits.t.rows() : sequence_length(c),
                 .inv_count = step.inv_count,
                 .balance = layer.balance,
                 .z = layer.z,
                 .rule = layer.rule});
  return rows_of_rank(c, dlogits);
}

// Adds to the gradient of the router's weights unless they are frozen, and adds the gradient of the router's input to
// dx.
void run_router_gradients(Net n, const Moe& layer, int number, const Routes& r, Tensor dx, Tensor x,
                          const Buffer& dweights) {
  Ctx& c = n.c;
  const Buffer dlogits = logit_gradients(c, layer, number, r, dweights);
  const bool tf32 = c.recipe.tf32;
  if (!is_frozen(n, layer.router))
    c.run(Gemm{.d = n.params.grad(layer.router), .a = dlogits.t, .b = x, .ta = true, .accumulate = true, .tf32 = tf32});
  if (layer.router_b && !is_frozen(n, layer.router_b))
    c.run(ColumnSum{.out = n.params.grad(layer.router_b), .x = dlogits.t});
  c.run(Gemm{.d = dx, .a = dlogits.t, .b = n.params.value(layer.router), .accumulate = true, .tf32 = tf32});
}

// Adds to the gradients of the experts' weights unless they are frozen, and returns dx, given r.gradients. Overwrites
// gate_up.
Buffer run_moe_gradients(Net n, const Moe& layer, int number, Routes& r, Buffer gate_up, const Buffer& x) {
  Ctx& c = n.c;
  Buffer dweights = c.alloc("moe.dweights", DType::f32, r.rows.slot_weights().shape);
  {
    const Buffer dy = at_experts(c, r.rows, std::move(r.gradients), "moe.dy");
    Buffer hidden = c.alloc("moe.dh", {gate_up.t.rows(), gate_up.t.cols() / 2});
    run_experts(n, r, Grouped::input_gradient, hidden.t, dy.t, layer.down);
    run_activation_gradient(n, layer, r, gate_up.t, hidden.t, dweights.t);
    run_bias_gradients(n, r, dy.t, layer.down_b, dweights.t);
    if (!is_frozen(n, layer.down)) run_weight_gradient(n, r, layer.down, dy.t, hidden.t);
  }
  run_bias_gradients(n, r, gate_up.t, layer.gate_up_b, {});
  if (!is_frozen(n, layer.gate_up)) {
    const Buffer rows = to_experts(c, r.rows, x.t, "moe.x again");
    run_weight_gradient(n, r, layer.gate_up, gate_up.t, rows.t);
  }
  Buffer dx = c.alloc("moe.dx", x.t.shape);
  {
    Buffer rows = c.alloc("moe.dx of rows", {gate_up.t.rows(), x.t.cols()});
    run_experts(n, r, Grouped::input_gradient, rows.t, gate_up.t, layer.gate_up);
    gate_up = {};
    sum_of_experts(c, r.rows, dx.t, std::move(rows), {});
  }
  dweights = weight_gradients(c, r.rows, std::move(dweights));
  run_router_gradients(n, layer, number, r, dx.t, x.t, dweights);
  return dx;
}

}  // namespace

// For a token with experts e_j and weights p_j: out = residual + sum_j W_down,e_j (p_j silu(gate) up), [gate | up] =
// W_gate_up,e_j x. In training with a capacity the sum is over the kept choices, without renormalizing their weights.
// The weight multiplies the activation, not the expert's output, so that backward need not keep the output. Backward
// keeps x, [gate | up] and the routes, and recomputes the rest. Shared experts compute while the rows of the output are
// sent back, and in backward while the rows of its gradient are sent: their functions on the tape are between those of
// the experts and those of the sum.
Var moe(Net n, Var x, const Moe& layer, int number, Var residual, UniqueFn<Var(Var)> shared) {
  Ctx& c = n.c;
  const bool overlaps = shared && c.overlaps_sums && c.mesh.experts().size() > 1;
  if (shared && !overlaps) residual = shared(std::move(residual));
  const std::string block = block_subject(n, number);
  const CollectiveSubject subject(block);
  const auto r = std::make_shared<Routes>(route(n, x.t(), layer, number));
  const int64_t rows = r->rows.count(), f = n.params.placement(layer.down).shape[1];
  Buffer gate_up = c.alloc("moe.gate_up", {rows, 2 * f}), hidden;
  {
    const Buffer sorted = to_experts(c, r->rows, x.t(), "moe.x");
    const Buffer weights = n.params.gemm_value(c, layer.gate_up);
    GroupedGemm up = grouped_gemm(n, *r, Grouped::forward, gate_up.t, sorted.t, weights.t);
    up.h = {nullptr, x.t().dtype, {rows, f}}, up.weights = r->rows.slot_weights(), up.slots = r->rows.slots.t;
    if (layer.limit == 0 && c.ops.fuses(up)) {
      hidden = c.alloc("moe.h", up.h.shape);
      up.h = hidden.t;
    } else {
      up.h = up.weights = up.slots = {};
    }
    c.run(up);
    add_biases(n, *r, gate_up.t, layer.gate_up_b, false);
  }
  Buffer y = c.alloc("moe.y", {rows, x.t().cols()});
  if (!hidden) {
    hidden = c.alloc("moe.h", {rows, f});
    run_activation(n, layer, *r, hidden.t, gate_up.t);
  }
  run_experts(n, *r, Grouped::forward, y.t, hidden.t, layer.down);
  add_biases(n, *r, y.t, layer.down_b, true);
  hidden = {};
  c.record("moe", [&params = n.params, layer, number, block, r, gate_up = std::move(gate_up), saved = c.save(x),
                   sx = x.slot()](Ctx& cc) mutable {
    const CollectiveSubject backward(block);
    cc.put(sx, run_moe_gradients({cc, params}, layer, number, *r, std::move(gate_up), saved.get(cc)));
  });
  RowsSent sent = send_back(c, r->rows, std::exchange(y, {}), overlaps);
  if (overlaps) residual = shared(std::move(residual));
  Buffer out = c.alloc("moe.out", residual.t().shape);
  sum_of_experts(c, r->rows, out.t, std::move(sent), residual.t());
  Var result = c.var(std::move(out));
  c.record("moe sum", [block, r, overlaps, sr = residual.slot(), s = result.slot()](Ctx& cc) {
    const CollectiveSubject backward(block);
    Buffer d = cc.take(s);
    r->gradients = send_to_experts(cc, r->rows, d.t, overlaps);
    cc.put(sr, std::move(d));  // d(residual) = d(out)
  });
  return result;
}

}  // namespace athanor
