#include "nn/expert_rows.h"

#include <utility>

namespace athanor {
namespace {

Tensor as_column(const Tensor& t) { return t.view({t.numel(), 1}); }

// All-to-all of equal parts of `out` between the expert-parallel ranks.
Buffer exchanged(Ctx& c, std::string_view name, const Buffer& out) {
  Buffer in = c.alloc(name, out.t.dtype, out.t.shape);
  c.expert_exchange(in.t, out.t);
  return in;
}

RowsSent send(Ctx& c, std::string_view name, Buffer out, bool overlaps) {
  if (!overlaps) return {.sent = {}, .received = exchanged(c, name, out)};
  Buffer in = c.alloc(name, out.t.dtype, out.t.shape);
  TensorPass pass = c.begin_expert_exchange(in.t, out.t);
  return {.sent = std::move(out), .received = std::move(in), .pass = std::move(pass)};
}

void arrive(Ctx& c, RowsSent& rows) {
  if (rows.sent) c.end_expert_exchange(std::move(rows.pass));
  rows.sent = {};
}

Buffer gathered(Ctx& c, std::string_view name, const Tensor& x, const Tensor& rows) {
  Buffer y = c.alloc(name, x.dtype, {rows.numel(), x.cols()});
  c.run(GatherRows{.y = y.t, .x = x, .rows = rows});
  return y;
}

// Computes where the rows of this rank's tokens are sent, and which rows are received.
void find_exchange(Ctx& c, const Moe& layer, int number, int64_t own_experts, int64_t per_expert, ExpertRows& r) {
  const int64_t ranks = c.mesh.experts().size(), tokens = r.rows.t.rows(), k = r.rows.t.cols();
  CHECK(own_experts * ranks == layer.experts, "a rank has ", own_experts, " of ", layer.experts, " experts, and ",
        ranks, " ranks share them");
  const int64_t most = SendSlots::most_rows(tokens, k, layer.experts, ranks, per_expert);
  const Routing& step = c.routing;
  const bool limited = step.buffer_factor > 0;
  const int64_t slots =
      ranks * (limited ? SendSlots::slots_per_rank(step.buffer_factor, tokens * k, ranks, most) : most);
  r.sent = c.alloc("moe.sent", DType::i32, {slots});
  r.choices = c.alloc("moe.sent choices", DType::i32, {slots});
  r.places = c.alloc("moe.places", DType::i32, {tokens, k});
  const Buffer all_counts = c.alloc("moe.counts of all ranks", DType::i32, {ranks, layer.experts});
  {
    const Buffer counts = c.alloc("moe.counts", DType::i32, {layer.experts});
    c.run(SendSlots{.tokens = r.sent.t,
                    .choices = r.choices.t,
                    .slots = r.places.t,
                    .counts = counts.t,
                    .offsets = r.offsets.t,
                    .sorted = r.slots.t,
                    .least = limited ? step.least_factors.slice(number, number + 1) : Tensor{},
                    .loss = limited ? step.loss_sum : Tensor{},
                    .ranks = ranks,
                    .per_expert = per_expert});
    c.expert_gather(all_counts.t.view({ranks * layer.experts}), counts.t);
  }
  r.offsets = c.alloc("moe.own offsets", DType::i32, {own_experts + 1});
  r.slots = c.alloc("moe.own slots", DType::i32, {slots});
  r.row_of_slot = c.alloc("moe.row of slot", DType::i32, {slots});
  c.run(ReceiveSlots{.offsets = r.offsets.t,
                     .slots = r.slots.t,
                     .rows = r.row_of_slot.t,
                     .counts = all_counts.t,
                     .rank = c.mesh.experts().rank()});
  const Buffer weights = gathered(c, "moe.sent weights", as_column(r.weights.t), r.choices.t);
  r.received = exchanged(c, "moe.received weights", weights);
}

}  // namespace

ExpertRows expert_rows(Ctx& c, const Moe& layer, int number, int64_t own_experts, Buffer weights, const Tensor& experts,
                       int64_t per_expert) {
  const int64_t rows = experts.numel();
  ExpertRows r{.weights = std::move(weights),
               .offsets = c.alloc("moe.offsets", DType::i32, {layer.experts + 1}),
               .slots = {},
               .tokens = c.alloc("moe.tokens", DType::i32, {rows}),
               .rows = {},
               .sent = {},
               .choices = {},
               .places = {},
               .row_of_slot = {},
               .received = {}};
  r.slots = c.alloc("moe.slots", DType::i32, {rows});
  r.rows = c.alloc("moe.rows", DType::i32, experts.shape);
  c.run(SortByExpert{
      .offsets = r.offsets.t, .tokens = r.tokens.t, .slots = r.slots.t, .rows = r.rows.t, .experts = experts});
  if (own_experts < layer.experts) find_exchange(c, layer, number, own_experts, per_expert, r);
  return r;
}

RowsSent send_to_experts(Ctx& c, const ExpertRows& r, const Tensor& x, bool overlaps) {
  if (!r.sent) return {.sent = {}, .received = gathered(c, "moe.rows of experts", x, r.tokens.t)};
  return send(c, "moe.received rows", gathered(c, "moe.sent rows", x, r.sent.t), overlaps);
}

Buffer at_experts(Ctx& c, const ExpertRows& r, RowsSent rows, std::string_view name) {
  arrive(c, rows);
  if (!r.sent) return std::move(rows.received);
  return gathered(c, name, rows.received.t, r.slots.t);
}

Buffer to_experts(Ctx& c, const ExpertRows& r, const Tensor& x, std::string_view name) {
  return at_experts(c, r, send_to_experts(c, r, x, false), name);
}

RowsSent send_back(Ctx& c, const ExpertRows& r, Buffer rows, bool overlaps) {
  if (!r.sent) return {.sent = {}, .received = std::move(rows)};
  Buffer by_slot = gathered(c, "moe.rows to send back", rows.t, r.row_of_slot.t);
  rows = {};
  return send(c, "moe.rows sent back", std::move(by_slot), overlaps);
}

void sum_of_experts(Ctx& c, const ExpertRows& r, Tensor out, RowsSent rows, const Tensor& add) {
  arrive(c, rows);
  c.run(SumRows{.y = out, .x = rows.received.t, .rows = r.sent ? r.places.t : r.rows.t, .add = add});
}

void sum_of_experts(Ctx& c, const ExpertRows& r, Tensor out, Buffer rows, const Tensor& add) {
  sum_of_experts(c, r, out, send_back(c, r, std::move(rows), false), add);
}

Buffer weight_gradients(Ctx& c, const ExpertRows& r, Buffer by_slot) {
  if (!r.sent) return by_slot;
  const Buffer back = exchanged(c, "moe.dweights sent back", by_slot);
  Buffer own = c.alloc("moe.own dweights", DType::f32, r.weights.t.shape);
  c.run(SumRows{.y = as_column(own.t), .x = back.t, .rows = as_column(r.places.t)});
  return own;
}

}  // namespace athanor
