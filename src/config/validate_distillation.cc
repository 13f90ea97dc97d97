// Combinations of distillation keys that cannot work.
#include "config/config.h"
#include "config/require.h"

namespace athanor {

bool distills(const Config& c) { return !c.teacher.empty() || !c.teacher_logits.empty(); }

void validate_distillation(const Config& c) {
  require(c.teacher.empty() || c.teacher_logits.empty(), "distillation.teacher_logits: ", c.teacher_logits,
          " is read in place of running the teacher ", c.teacher, "; leave one of the two out");
  const bool sorts = c.distill_loss == DistillLoss::uld;
  require(!sorts || c.teacher.empty(),
          "distillation.loss: uld compares sorted probabilities with cached ones; cache those of ", c.teacher,
          " with `athanor cache-logits` and set distillation.teacher_logits in place of distillation.teacher");
  require(!sorts || c.tensor_parallel_size == 1,
          "distillation.loss: uld sorts the probabilities of a position, and with tensor_parallel_size ",
          c.tensor_parallel_size,
          " a rank has those of a part of the vocabulary; set tensor_parallel_size to 1, or distillation.loss to kl");
  if (c.teacher_logits.empty()) return;
  require(c.packing != Packing::best_fit,
          "documents.packing: best_fit packs every epoch differently, and distillation.teacher_logits are cached by "
          "the window of train_data; run the teacher itself (key teacher), or take another documents.packing");
  require(c.fim_rate == 0, "fim.rate: ", c.fim_rate,
          " reorders documents differently in every epoch, and distillation.teacher_logits are cached of windows as "
          "they are; run the teacher itself (key teacher), or set it to 0");
  require(c.total_curriculum_step == 0, "curriculum.total_curriculum_step: ", c.total_curriculum_step,
          " cuts windows into chunks, and distillation.teacher_logits are cached of whole windows; run the teacher "
          "itself (key teacher), or set it to 0");
}

}  // namespace athanor
