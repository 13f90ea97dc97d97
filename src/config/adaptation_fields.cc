// The options of distillation, pruning and adapters, in the form of config_fields.cc.
#include "config/fields.h"
#include "config/names_field.h"

namespace athanor {
namespace {

using enum OnResume;

}  // namespace

std::vector<Field<Config>> distillation_fields() {
  return {
      option("distillation.teacher", &Config::teacher, notice,
             "folder of a frozen teacher model (config.json and safetensors, or a checkpoint or run of this program) "
             "with the same vocabulary; empty = none")
          .path(),
      option("distillation.teacher_logits", &Config::teacher_logits, notice,
             "folder of a teacher's top logits on train_data, cached by `athanor cache-logits`, used instead of "
             "running the teacher; empty = none")
          .path(),
      choice<&Config::distill_loss>(
          "distillation.loss", notice,
          "distillation loss, times temperature^2: kl = KL(teacher, student); reverse_kl = KL(student, teacher); uld = "
          "L1 distance of the sorted probabilities, which works with distillation.teacher_logits of another tokenizer"),
      number("distillation.temperature", &Config::distill_temperature, above(0), notice, "",
             "temperature: both models' logits are divided by this"),
      number("distillation.ce_weight", &Config::distill_ce_weight, at_least(0), notice, "",
             "weight of the cross-entropy with the data, added to distillation.loss; 0 = learn from the teacher only"),
  };
}

std::vector<Field<Config>> pruning_fields() {
  return {
      number("pruning.sparsity", &Config::prune_sparsity, below(0, 1), refused, "",
             "fraction of each pruned matrix that ends up zero and stays zero; 0 = off"),
      choice<&Config::prune_method>("pruning.method", refused,
                                    "magnitude = weights with the smallest magnitude become zero permanently; srste = "
                                    "weights stay dense, each step computes with the two largest of every four "
                                    "(pruning.pattern 2:4) and all weights receive gradients (SR-STE)"),
      number("pruning.srste_decay", &Config::srste_decay, at_least(0), notice, "",
             "pruning.method srste: extra decay of the weights masked in a step: this times the weight is added to "
             "their gradient"),
      choice<&Config::prune_pattern>("pruning.pattern", notice,
                                     "unstructured = the smallest weights; 2:4 = the two smallest of every four inputs "
                                     "of an output, pruning.sparsity must be 0.5"),
      choice<&Config::prune_scope>(
          "pruning.scope", notice,
          "compare magnitudes within each matrix (layer) or across all pruned matrices (global)"),
      number("pruning.start", &Config::prune_start, at_least(0), notice, "steps", "step after which pruning begins"),
      number("pruning.end", &Config::prune_end, at_least(0), notice, "steps",
             "step at which pruning.sparsity is reached; before, sparsity follows the cubic schedule of [Zhu & Gupta "
             "2017]")
          .unset_is("pruning.start"),
      number("pruning.interval", &Config::prune_interval, at_least(1), notice, "steps",
             "steps between prunings from pruning.start to pruning.end"),
      custom("pruning.exclude", names<&Config::prune_exclude>("list of patterns"), refused,
             "parameter names of matrices that are not pruned, with * and ?; embeddings, head, norms and biases never "
             "are"),
      option("pruning.mask_from", &Config::prune_mask_from, refused,
             "model folder (config.json and safetensors, or a checkpoint or run of this program) whose magnitudes "
             "choose the pruned weights, once at the start of the run, which may load a checkpoint of another run "
             "(load, load_step); empty = the run's own weights at pruning.start")
          .path(),
  };
}

std::vector<Field<Config>> adapter_fields() {
  return {
      number("lora.rank", &Config::lora_rank, between(0, 65536), refused, "",
             "rank of LoRA adapters: the weights of init_from are frozen and only the adapters are trained "
             "(docs/training.md); 0 = full training"),
      number("lora.alpha", &Config::lora_alpha, above(0), refused, "",
             "adapter scale numerator: the adapter output is scaled by alpha / rank, with lora.variant rslora by alpha "
             "/ sqrt(rank)"),
      number("lora.dropout", &Config::lora_dropout, below(0, 1), notice, "",
             "dropout probability of the adapters' inputs; the mask depends only on seed, step and position"),
      custom("lora.targets", names<&Config::lora_targets>("list of names"), refused,
             "linear layers with adapters, by full parameter name or suffix such as q_proj, like PEFT's "
             "target_modules; all-linear = all except the head, routers and routed experts"),
      choice<&Config::lora_variant>(
          "lora.variant", refused,
          "adapter variant: lora; rslora = scaled by alpha / sqrt(rank); dora = also trains a magnitude per output"),
      choice<&Config::base_precision>(
          "lora.base_precision", refused,
          "storage of the frozen linear layers and experts: none = in the type of precision; nf4 = "
          "4-bit, dequantized for each GEMM (QLoRA)"),
      option(
          "lora.base_double_quant", &Config::base_double_quant, refused,
          "lora.base_precision nf4: quantize the absmax of each block of 64 weights to 8 bits (double quantization)"),
      option("lora.adapter", &Config::adapter, free,
             "adapter folder (PEFT format, or a checkpoint of a run with lora.rank) to continue training from; empty = "
             "new adapters, whose output is initially zero")
          .path(),
  };
}

}  // namespace athanor
