// Softmax cross-entropy: loss and gradient in one pass over the logits, which are overwritten by their gradient. With a
// vocabulary sharded over ranks, RowMax and LogitSums (for distillation also DistillSums) run first, each followed by
// an all-reduce.
#pragma once
#include <string_view>

#include "base/choices.h"
#include "ops/op.h"
#include "ops/vocab_part.h"

namespace athanor {

// losses[i] = logsumexp(logits[i, :vocab]) - logits[i, targets[i]]; 0 where targets[i] < 0 (ignored).
// With `grad`, logits become scale * inv_count * (softmax - onehot), or 0 in columns >= vocab (padding) and ignored
// rows. z_loss adds z_loss * logsumexp^2 to the differentiated loss, but not to `losses` [Chowdhery et al. 2022 (PaLM),
// section 5]: softmax becomes (1 + 2 z_loss logsumexp) softmax. With softcap, the loss and the z-loss are those of
// softcap * tanh(logits / softcap) [Gemma 2, 2024, section 2], and the gradient gets the factor 1 - tanh^2. With
// `part`, the columns are this rank's tokens; max, sums and losses are those of the whole vocabulary.
// With `ahead`, the differentiated loss of row i adds, for every token ahead[i, j] >= 0, ahead_weights[j] times its
// cross-entropy under the same logits (multi-token prediction [Gloeckle et al. 2024, sec. 2] by one head); losses[i]
// stays the loss of targets[i], and the z-loss counts once.
struct CrossEntropy {
  Tensor logits;        // [n, Vp]; inout with grad
  Tensor losses;        // [n] f32
  Tensor targets;       // [n] i32
  Tensor scale;         // [1] f32: the loss scale of fp16; read on the device
  float inv_count = 0;  // 1 / number of targets in the whole global batch
  int64_t vocab = 0;    // valid columns; the rest is padding
  bool grad = true;
  float z_loss = 0;
  float softcap = 0;  // 0 = no cap
  VocabPart part = {};
  Tensor max, sums;             // [n] and [2, n] f32: outputs of RowMax and LogitSums; with `part` only
  Tensor ahead, ahead_weights;  // [n, m] i32, negative = no token; [m] f32. Optional, with `grad` only
  static constexpr const char* kName = "cross_entropy";
  auto fields() {
    return fields_of(Field{"logits", grad ? Io::inout : Io::in, &logits}, Field::out("losses", losses),
                     Field::in("targets", targets), Field::in("scale", scale), Field::in("max", max),
                     Field::in("sums", sums), Field::in("ahead", ahead), Field::in("ahead_weights", ahead_weights));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits).is("losses", losses, DType::f32, {logits.rows()});
    e.is("targets", targets, DType::i32, {logits.rows()})
        .that(vocab > 0 && vocab <= logits.cols(), "0 < vocab <= columns");
    if (grad) e.is("scale", scale, DType::f32, {1});
    e.that(bool(max) == bool(part) && bool(sums) == bool(part), "max and sums exactly with a part of the vocabulary");
    e.that(softcap >= 0, "softcap >= 0");
    e.that(bool(ahead) == bool(ahead_weights) && (grad || !ahead),
           "ahead exactly with ahead_weights, and only with grad");
    if (ahead) {
      e.matrix("ahead", ahead).is("ahead", ahead, DType::i32, {logits.rows(), ahead.cols()});
      e.is("ahead_weights", ahead_weights, DType::f32, {ahead.cols()});
      e.that(ahead.cols() <= kMaxTokensAhead, "at most 8 targets ahead");
    }
    if (!part) return;
    e.is("max", max, DType::f32, {logits.rows()})
        .is("sums", sums, DType::f32, {2, logits.rows()})
        .that(vocab == part.count, "the columns of the part");
  }
  Cost cost() const { return {8.0 * double(logits.numel()), traffic(*this)}; }
};

// max[i] = maximum of x[i, :columns], -inf if all are -inf. NaN is skipped.
struct RowMax {
  Tensor max;           // [n] f32
  Tensor x;             // [n, C]
  int64_t columns = 0;  // valid columns; the rest is padding
  static constexpr const char* kName = "row_max";
  auto fields() { return fields_of(Field::out("max", max), Field::in("x", x)); }
  void check() const {
    Expect e{kName};
    e.float_matrix("x", x).is("max", max, DType::f32, {x.rows()});
    e.that(columns > 0 && columns <= x.cols(), "0 < columns <= columns of x");
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// Sums of a softmax row over one shard of the vocabulary, relative to the row's maximum over all shards: sums[0, i] =
// sum over the shard of exp(logits[i, c] - max[i]); sums[1, i] = logits[i, target] - max[i] if the target is in this
// shard, else 0. A max of -inf counts as 0. With softcap, both logits and max are capped first; the cap is monotonic,
// so RowMax need not apply it.
struct LogitSums {
  Tensor sums;     // [2, n] f32
  Tensor logits;   // [n, Vp]
  Tensor max;      // [n] f32
  Tensor targets;  // [n] i32; negative: ignored
  VocabPart part = {};
  float softcap = 0;  // as CrossEntropy::softcap
  static constexpr const char* kName = "logit_sums";
  auto fields() {
    return fields_of(Field::out("sums", sums), Field::in("logits", logits), Field::in("max", max),
                     Field::in("targets", targets));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits)
        .is("sums", sums, DType::f32, {2, logits.rows()})
        .is("max", max, DType::f32, {logits.rows()})
        .is("targets", targets, DType::i32, {logits.rows()})
        .that(part.count > 0 && part.count <= logits.cols() && part.first + part.count <= part.total,
              "0 < part <= columns")
        .that(softcap >= 0, "softcap >= 0");
  }
  Cost cost() const { return {4.0 * double(logits.numel()), traffic(*this)}; }
};

// Sums of a student and its teacher over one shard of the vocabulary, at temperature T. With y_c = (logits_c - max) / T
// and u_c = (teacher_c - teacher_max) / T, after soft-capping, summed over the shard:
//   sums[0, i] = sum exp(y_c)    sums[1, i] = sum exp(u_c)
//   sums[2, i] = sum exp(u_c) (u_c - y_c) for kl, sum exp(y_c) (y_c - u_c) for reverse_kl
// Ignored rows become 0. A max of -inf counts as 0. A term of sums[2] is 0 if its exp() factor is 0.
struct DistillSums {
  Tensor sums;         // [3, n] f32
  Tensor logits;       // [n, Vp]
  Tensor teacher;      // [n, columns >= part.count], same dtype as logits; before its soft-cap
  Tensor max;          // [n] f32: maximum over all shards; see RowMax
  Tensor teacher_max;  // [n] f32
  Tensor targets;      // [n] i32; negative: ignored
  VocabPart part = {};
  DistillLoss kind = DistillLoss::kl;
  float temperature = 1;
  float softcap = 0, teacher_softcap = 0;
  static constexpr const char* kName = "distill_sums";
  auto fields() {
    return fields_of(Field::out("sums", sums), Field::in("logits", logits), Field::in("teacher", teacher),
                     Field::in("max", max), Field::in("teacher_max", teacher_max), Field::in("targets", targets));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits)
        .matrix("teacher", teacher)
        .is("teacher", teacher, logits.dtype, {logits.rows(), teacher.cols()})
        .is("sums", sums, DType::f32, {3, logits.rows()})
        .is("max", max, DType::f32, {logits.rows()})
        .is("teacher_max", teacher_max, DType::f32, {logits.rows()})
        .is("targets", targets, DType::i32, {logits.rows()})
        .that(part.count > 0 && part.count <= logits.cols() && part.count <= teacher.cols() &&
                  part.first + part.count <= part.total,
              "0 < part <= columns")
        .that(kind != DistillLoss::uld, "kl or reverse_kl")
        .that(temperature > 0 && softcap >= 0 && teacher_softcap >= 0, "temperature > 0 and soft-caps >= 0");
  }
  Cost cost() const { return {12.0 * double(logits.numel()), traffic(*this)}; }
};

// scale_of() (ops/compare.h) of a distillation loss: a divergence is a difference of logarithms, which is near 0 where
// student and teacher agree.
inline double scale_of_divergences(std::string_view output, float temperature) {
  return output == "divergences" ? double(temperature) * double(temperature) : 0;
}

// Cross-entropy plus a distillation loss, with their gradient [Hinton et al. 2015, section 2]. With z = logits,
// v = teacher, T = temperature, q = softmax(z / T), p = softmax(v / T), each over the columns of the vocabulary:
//   kl:          divergences[i] = T^2 sum_c p_c (log p_c - log q_c), whose gradient is T (q - p)
//   reverse_kl:  divergences[i] = T^2 sum_c q_c (log q_c - log p_c), whose gradient is
//                T q_c (log q_c - log p_c - sum_d q_d (log q_d - log p_d))
// losses[i] is the cross-entropy as in CrossEntropy. Logits become scale * inv_count times the gradient of
// divergences[i] + ce_weight losses[i], plus that of z_loss; they become 0 in ignored rows and padding. Losses and
// divergences of ignored rows are 0. A column where the teacher's logit is -inf does not count in kl. With `part`, the
// columns are this rank's tokens; losses and divergences are those of the whole vocabulary.
struct DistilledCrossEntropy {
  Tensor logits;       // [n, Vp]
  Tensor teacher;      // [n, columns >= vocab], same dtype as logits; before its soft-cap
  Tensor losses;       // [n] f32
  Tensor divergences;  // [n] f32
  Tensor targets;      // [n] i32; negative: ignored
  Tensor scale;        // [1] f32: the loss scale of fp16; read on the device
  float inv_count = 0;
  int64_t vocab = 0;  // valid columns; the rest is padding
  DistillLoss kind = DistillLoss::kl;
  float temperature = 1, ce_weight = 1;
  float z_loss = 0;
  float softcap = 0, teacher_softcap = 0;  // soft-caps of the student and of the teacher, as CrossEntropy::softcap
  VocabPart part = {};
  Tensor max, sums, teacher_max, distill_sums;  // outputs of RowMax (both), LogitSums and DistillSums; with `part` only
  static constexpr const char* kName = "distilled_cross_entropy";
  auto fields() {
    return fields_of(Field::inout("logits", logits), Field::in("teacher", teacher), Field::out("losses", losses),
                     Field::out("divergences", divergences), Field::in("targets", targets), Field::in("scale", scale),
                     Field::in("max", max), Field::in("sums", sums), Field::in("teacher_max", teacher_max),
                     Field::in("distill_sums", distill_sums));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("logits", logits)
        .matrix("teacher", teacher)
        .is("teacher", teacher, logits.dtype, {logits.rows(), teacher.cols()})
        .is("losses", losses, DType::f32, {logits.rows()})
        .is("divergences", divergences, DType::f32, {logits.rows()})
        .is("targets", targets, DType::i32, {logits.rows()})
        .is("scale", scale, DType::f32, {1})
        .that(vocab > 0 && vocab <= logits.cols() && vocab <= teacher.cols(), "0 < vocab <= columns")
        .that(kind != DistillLoss::uld, "kl or reverse_kl")
        .that(temperature > 0 && ce_weight >= 0, "temperature > 0 and ce_weight >= 0")
        .that(softcap >= 0 && teacher_softcap >= 0, "soft-caps >= 0");
    for (const Tensor* t : {&max, &sums, &teacher_max, &distill_sums})
      e.that(bool(*t) == bool(part), "max and sums exactly with a part of the vocabulary");
    if (!part) return;
    e.is("max", max, DType::f32, {logits.rows()})
        .is("teacher_max", teacher_max, DType::f32, {logits.rows()})
        .is("sums", sums, DType::f32, {2, logits.rows()})
        .is("distill_sums", distill_sums, DType::f32, {3, logits.rows()})
        .that(vocab == part.count, "the columns of the part");
  }
  double scale_of(std::string_view output) const { return scale_of_divergences(output, temperature); }
  Cost cost() const { return {24.0 * double(logits.numel()), traffic(*this)}; }
};

}  // namespace athanor
