// Sections of the configuration: the objects that hold the options of one feature.
#include "config/fields.h"

namespace athanor {

std::span<const Section> config_sections() {
  static constexpr Section kSections[] = {
      {"curriculum", "Sequence-length warm-up",
       "Sequences begin as short chunks and grow to seq_length (DeepSpeed's curriculum learning)."},
      {"fp8", "FP8 and FP4", "Options of the 8- and 4-bit values of `precision`."},
      {"fp16", "FP16", "Loss scaling of precision fp16."},
      {"offload", "Offloading", "State that is kept in host memory instead of on the GPU."},
      {"pipeline", "Pipeline", "How pipeline_parallel_size ranks divide the blocks and order their work."},
      {"timeouts", "Timeouts", "Time after which a rank that others wait for counts as lost."},
      {"logging", "Logs", "What a run logs besides its log lines."},
      {"checkpoint", "Checkpoints", "How checkpoints are written and which are kept."},
      {"adam", "Adam and its variants",
       "Options of adamw, adam, lamb, adamw_8bit, schedule_free_adamw, onebit_adam and onebit_lamb, and of the weights "
       "that muon leaves to adamw."},
      {"sgd", "SGD", "Options of optimizer sgd."},
      {"lion", "Lion", "Options of optimizer lion."},
      {"muon", "Muon and NorMuon", "Options of optimizers muon and normuon."},
      {"averaging", "Averages of the weights", "Averages of the weights, for evaluations and exports."},
      {"schedule", "Schedules of learning rate, momentum and weight decay",
       "How the learning rate, the decay of the first moment and the weight decay change over the run."},
      {"dropout", "Dropout", "Random parts of the model are left out in training."},
      {"loss_spikes", "Loss spikes",
       "What a run does about steps whose loss or gradient norm is an outlier or not finite."},
      {"moe", "Mixture of experts",
       "How tokens are divided among experts in training; the shape of the layers is in `model`."},
      {"local_updates", "Local updates (DiLoCo, MuLoCo)",
       "Copies of the model train apart and are averaged after a number of steps."},
      {"documents", "Documents", "How documents fill sequences, and what their tokens see."},
      {"fim", "Fill-in-the-middle", "Documents are reordered so that their middle is predicted last."},
      {"images", "Images", "Random changes of the images that a model of model_type vit trains on."},
      {"distillation", "Distillation", "A run also learns the distribution of a teacher over the next token."},
      {"pruning", "Pruning", "Weights are set to zero in training."},
      {"lora", "Low-rank adapters", "LoRA, rsLoRA, DoRA and QLoRA: small trained matrices next to frozen weights."},
  };
  return kSections;
}

}  // namespace athanor
