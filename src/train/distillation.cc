#include "train/distillation.h"

#include "checkpoint/store.h"
#include "convert/gguf_reader.h"
#include "train/find_together.h"

namespace athanor {

TeacherOptions teacher_options(const Config& c) {
  return with_context("teacher", [&] {
    if (!is_gguf_file(c.teacher)) require_folder(c.teacher);
    const auto newest = newest_valid(c.teacher, nullptr, verify_sizes);  // of a run's folder
    const ModelFolder folder(VerifiedModel{.folder = newest ? newest->path : c.teacher, .elsewhere = true});
    const ModelConfig& model = folder.config();
    if (model.vocab_size != c.model.vocab_size)
      throw Error(cat(folder.path(), " has vocab_size ", model.vocab_size, ", the run's model has ", c.model.vocab_size,
                      ": their distributions are not of the same tokens; take a teacher with the run's tokenizer"),
                  Exit::usage);
    if (model.max_position_embeddings < c.seq_length)
      throw Error(cat(folder.path(), " has max_position_embeddings ", model.max_position_embeddings,
                      ", which is less than seq_length ", c.seq_length, "; shorten the run's sequences"),
                  Exit::usage);
    return TeacherOptions{
        .model = model, .loss = c.distill_loss, .temperature = c.distill_temperature, .ce_weight = c.distill_ce_weight};
  });
}

VerifiedModel find_teacher(const Config& c, const Backend& backend) {
  const auto find = [&](const Verify& verify) { return verified_model(c.teacher, verify).folder; };
  return {.folder = find_together(backend.control, find), .elsewhere = backend.mesh.world().rank() > 0};
}

}  // namespace athanor
