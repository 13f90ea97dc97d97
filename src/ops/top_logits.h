// A teacher's distribution as its k largest logits and the total mass of the rest: computing it, and a student's loss
// against it. If k is the whole vocabulary, the loss equals DistilledCrossEntropy (ops/loss.h).
#pragma once
#include <bit>
#include <string_view>

#include "base/choices.h"
#include "base/host_device.h"
#include "ops/loss.h"
#include "ops/op.h"
#include "ops/vocab_part.h"

namespace athanor {

// Returns the sort key of a logit: a larger key is a larger logit, or the earlier column among equal logits. NaN sorts
// last.
ATHANOR_HOST_DEVICE inline uint64_t top_key(uint32_t float_bits, bool is_nan, uint32_t column) {
  const uint32_t ordered = float_bits >> 31 ? ~float_bits : float_bits | 0x80000000u;
  return uint64_t{is_nan ? 0 : ordered} << 32 | (0xffffffffu - column);
}

// The k largest logits of a row after soft-capping, in descending order (among equal logits the earlier column first):
//   values[i, j] = z[ids[i, j]] - z[ids[i, 0]]
//   rest[i]      = log sum over all other columns c < vocab of exp((z_c - z[ids[i, 0]]) / temperature); -inf if none
// NaN is chosen last and stays NaN in values or rest.
struct TopLogits {
  Tensor ids;         // [n, k] i32
  Tensor values;      // [n, k] f32
  Tensor rest;        // [n] f32
  Tensor logits;      // [n, Vp]
  int64_t vocab = 0;  // valid columns; the rest is padding
  float temperature = 1;
  float softcap = 0;  // as CrossEntropy::softcap
  static constexpr const char* kName = "top_logits";
  auto fields() {
    return fields_of(Field::out("ids", ids), Field::out("values", values), Field::out("rest", rest),
                     Field::in("logits", logits));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits).matrix("ids", ids);
    const int64_t k = ids.cols();
    e.is("ids", ids, DType::i32, {logits.rows(), k})
        .is("values", values, DType::f32, {logits.rows(), k})
        .is("rest", rest, DType::f32, {logits.rows()})
        .that(vocab > 0 && vocab <= logits.cols(), "0 < vocab <= columns")
        .that(k > 0 && k <= vocab, "0 < k <= vocab")
        .that(temperature > 0 && softcap >= 0, "temperature > 0 and softcap >= 0");
  }
  Cost cost() const { return {4.0 * double(logits.numel()), traffic(*this)}; }
};

// The student's logits at a teacher's top tokens, in one shard of the vocabulary:
//   picked[i, j]   = logits[i, ids[i, j]], before any soft-cap; 0 if another shard has that token
//   picked_rest[i] = sum over the shard's other columns of exp((z_c - max[i]) / temperature), both soft-capped
// Ignored rows become 0. The ids of a row are distinct. Logits are unchanged.
struct PickLogits {
  Tensor picked;       // [n, k] f32
  Tensor picked_rest;  // [n] f32
  Tensor logits;       // [n, Vp]
  Tensor ids;          // [n, k] i32
  Tensor max;          // [n] f32: maximum over all shards; see RowMax
  Tensor targets;      // [n] i32; negative: ignored
  VocabPart part = {};
  float temperature = 1, softcap = 0;
  static constexpr const char* kName = "pick_logits";
  auto fields() {
    return fields_of(Field::out("picked", picked), Field::out("picked_rest", picked_rest),
                     Field::inout("logits", logits), Field::in("ids", ids), Field::in("max", max),
                     Field::in("targets", targets));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits).matrix("ids", ids);
    const int64_t n = logits.rows(), k = ids.cols();
    e.is("ids", ids, DType::i32, {n, k})
        .is("picked", picked, DType::f32, {n, k})
        .is("picked_rest", picked_rest, DType::f32, {n})
        .is("max", max, DType::f32, {n})
        .is("targets", targets, DType::i32, {n})
        .that(part.count > 0 && part.count <= logits.cols() && part.first + part.count <= part.total,
              "0 < part <= columns")
        .that(k > 0 && k <= part.total, "0 < k <= vocabulary")
        .that(temperature > 0 && softcap >= 0, "temperature > 0 and softcap >= 0");
  }
  Cost cost() const { return {4.0 * double(logits.numel()), traffic(*this)}; }
};

// DistilledCrossEntropy against a teacher's TopLogits. All other tokens are one event, for teacher and student. Let q =
// softmax(z / T), p_j = exp(values[j] / T) / Z, p_r = exp(rest) / Z, Z the sum of these numerators over j and r, and
// q_r the student's probability of all tokens except ids:
//   kl:          divergences[i] = T^2 (sum_j p_j log(p_j / q_j) + p_r log(p_r / q_r)), whose gradient is
//                T (q_j - p_j), and T q_c (1 - p_r / q_r) for a token c not in ids
//   reverse_kl:  divergences[i] = T^2 D, D = sum_j q_j log(q_j / p_j) + q_r log(q_r / p_r), whose gradient is
//                T q_j (log(q_j / p_j) - D), and T q_c (log(q_r / p_r) - D)
//   uld:         divergences[i] = T^2 (sum_j |q_j - p_j| + |q_r - p_r|), whose gradient is T q_j (s_j - S) and
//                T q_c (s_r - S), s the signs of the differences, S = sum_j s_j q_j + s_r q_r. Here ids are the
//                student's own top tokens: its j-th largest probability is compared with the teacher's, whatever their
//                tokens [Boizard et al. 2024, "Towards Cross-Tokenizer Distillation", section 3]. A row whose values
//                are -inf has no teacher: its divergence is 0.
// kl and reverse_kl are at most the divergence from the full distribution [data processing inequality, Cover & Thomas
// 2006, section 2.8]; for k = V they equal it. log(q_r) is clamped to at least -87 relative to the largest logit.
// Inputs over the whole vocabulary, each reduced over ranks: max (RowMax), sums (LogitSums), picked and picked_rest
// (PickLogits). losses, ce_weight, z_loss and ignored rows: as in DistilledCrossEntropy.
struct CachedDistilledCrossEntropy {
  Tensor logits;       // [n, Vp]; becomes the gradient
  Tensor losses;       // [n] f32
  Tensor divergences;  // [n] f32
  Tensor targets;      // [n] i32; negative: ignored
  Tensor scale;        // [1] f32: the loss scale of fp16; read on the device
  Tensor ids;          // [n, k] i32
  Tensor values;       // [n, k] f32
  Tensor rest;         // [n] f32
  Tensor max;          // [n] f32
  Tensor sums;         // [2, n] f32
  Tensor picked;       // [n, k] f32
  Tensor picked_rest;  // [n] f32
  float inv_count = 0;
  VocabPart part = {};  // vocabulary shard of the columns
  DistillLoss kind = DistillLoss::kl;
  float temperature = 1, ce_weight = 1;
  float z_loss = 0, softcap = 0;
  static constexpr const char* kName = "cached_distilled_cross_entropy";
  auto fields() {
    return fields_of(Field::inout("logits", logits), Field::out("losses", losses),
                     Field::out("divergences", divergences), Field::in("targets", targets), Field::in("scale", scale),
                     Field::in("ids", ids), Field::in("values", values), Field::in("rest", rest), Field::in("max", max),
                     Field::in("sums", sums), Field::in("picked", picked), Field::in("picked_rest", picked_rest));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits).matrix("ids", ids);
    const int64_t n = logits.rows(), k = ids.cols();
    for (const auto& [name, t] : {std::pair{"losses", &losses},
                                  {"divergences", &divergences},
                                  {"rest", &rest},
                                  {"max", &max},
                                  {"picked_rest", &picked_rest}})
      e.is(name, *t, DType::f32, {n});
    e.is("targets", targets, DType::i32, {n})
        .is("scale", scale, DType::f32, {1})
        .is("ids", ids, DType::i32, {n, k})
        .is("values", values, DType::f32, {n, k})
        .is("picked", picked, DType::f32, {n, k})
        .is("sums", sums, DType::f32, {2, n})
        .that(part.count > 0 && part.count <= logits.cols() && part.first + part.count <= part.total,
              "0 < part <= columns")
        .that(k > 0 && k <= part.total, "0 < k <= vocabulary")
        .that(temperature > 0 && ce_weight >= 0, "temperature > 0 and ce_weight >= 0")
        .that(softcap >= 0, "softcap >= 0");
  }
  double scale_of(std::string_view output) const { return scale_of_divergences(output, temperature); }
  Cost cost() const { return {12.0 * double(logits.numel()), traffic(*this)}; }
};

}  // namespace athanor
