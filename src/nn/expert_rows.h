// Rows of tokens in the order of the experts that compute them: on this rank, or where ranks have other experts, of all
// tokens of these ranks that chose one of this rank's. Layers ask for rows and for sums over a token's rows, and do not
// know where the experts are.
#pragma once
#include "nn/layers.h"

namespace athanor {

// Which rows belong to which expert. Small beside the rows: kept from forward to backward.
struct ExpertRows {
  Buffer weights;                // [N, k] f32
  Buffer offsets, slots;         // of this rank's experts and rows: SortByExpert, or ReceiveSlots
  Buffer tokens, rows;           // of SortByExpert: the token of each row, the row of each choice
  Buffer sent, choices, places;  // SendSlots: tokens, choices, slots; none where this rank has all experts
  Buffer row_of_slot;            // ReceiveSlots: rows
  Buffer received;               // [R, 1] f32: weights of the rows that were received, by slot

  // By slot.
  const Tensor& slot_weights() const { return received ? received.t : weights.t; }
  int64_t count() const { return slots.t.numel(); }  // R
};

// Sorts what the router chose. All ranks of ProcessMesh::experts() call it together, and all below.
ExpertRows expert_rows(Ctx&, const Moe&, int64_t own_experts, Buffer weights, const Tensor& experts);
// [N, C] -> [R, C], in the order of experts. What rows behind those of the experts hold is nothing.
Buffer to_experts(Ctx&, const ExpertRows&, const Tensor& x, std::string_view name);
// out [N, C] = the sum over each token's rows, plus `add`, optional.
void sum_of_experts(Ctx&, const ExpertRows&, Tensor out, Buffer rows, const Tensor& add);
// by_slot: like slot_weights() -> [N, k]
Buffer weight_gradients(Ctx&, const ExpertRows&, Buffer by_slot);

}  // namespace athanor
