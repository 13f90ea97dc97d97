// Rows of tokens sorted by expert. With expert parallelism the rows come from the tokens of all ranks of the group that
// chose this rank's experts. Layers gather rows and sum over a token's rows without knowing on which rank an expert is.
#pragma once
#include "nn/layers.h"

namespace athanor {

// Assignment of rows to experts. Small compared with the rows, so it is kept from forward to backward.
struct ExpertRows {
  Buffer weights;                // [N, k] f32
  Buffer offsets, slots;         // this rank's experts and rows, from SortByExpert or ReceiveSlots
  Buffer tokens, rows;           // outputs of SortByExpert: the token of each row, the row of each choice
  Buffer sent, choices, places;  // from SendSlots: tokens, choices, slots; empty if this rank has all experts
  Buffer row_of_slot;            // from ReceiveSlots: rows
  Buffer received;               // [R, 1] f32: router weights of the received rows, by slot

  // Router weights by slot.
  const Tensor& slot_weights() const { return received ? received.t : weights.t; }
  int64_t count() const { return slots.t.numel(); }  // R
};

// Sorts the router's choices by expert; experts [N, k]: E for a dropped choice. number: index of the layer. per_expert:
// max number of rows of an expert, 0 if no choice is dropped. All ranks of ProcessMesh::experts() must call this and
// the functions below together.
ExpertRows expert_rows(Ctx&, const Moe&, int number, int64_t own_experts, Buffer weights, const Tensor& experts,
                       int64_t per_expert);
// [N, C] -> [R, C], sorted by expert. Rows beyond those of the experts are undefined.
Buffer to_experts(Ctx&, const ExpertRows&, const Tensor& x, std::string_view name);
// out [N, C] = sum of the rows of each token's kept choices, plus `add` if given.
void sum_of_experts(Ctx&, const ExpertRows&, Tensor out, Buffer rows, const Tensor& add);

// Rows in transit to the ranks of experts or back: to_experts() and sum_of_experts(), each split into a send and a
// receive half between which other work runs. `overlaps`: the exchange overlaps the work launched before the second
// half.
struct RowsSent {
  Buffer sent, received;  // sent: empty unless an exchange overlaps other work
  TensorPass pass = {};
};
RowsSent send_to_experts(Ctx&, const ExpertRows&, const Tensor& x, bool overlaps);
Buffer at_experts(Ctx&, const ExpertRows&, RowsSent, std::string_view name);
RowsSent send_back(Ctx&, const ExpertRows&, Buffer rows, bool overlaps);
void sum_of_experts(Ctx&, const ExpertRows&, Tensor out, RowsSent, const Tensor& add);
// Returns gradients by token [N, k], undefined for dropped choices; by_slot: ordered as slot_weights().
Buffer weight_gradients(Ctx&, const ExpertRows&, Buffer by_slot);

}  // namespace athanor
