// The options of distillation, pruning and adapters, in the form of config_fields.cc.
#include "config/fields.h"
#include "config/names_field.h"

namespace athanor {
namespace {

using enum OnResume;

}  // namespace

std::vector<Field<Config>> distillation_fields() {
  return {
      option(
          "distillation.teacher", &Config::teacher, notice,
          "folder of a frozen model with the same vocabulary (config.json and safetensors, or a checkpoint or run of "
          "this program) whose distribution over the next token is learned too; empty = none")
          .path(),
      option("distillation.teacher_logits", &Config::teacher_logits, notice,
             "folder of such a model's largest logits on train_data, made by `athanor cache-logits`, which are read in "
             "place of running the teacher; empty = none")
          .path(),
      choice<&Config::distill_loss>(
          "distillation.loss", notice,
          "kl = KL(teacher, student), reverse_kl = KL(student, teacher), uld = sum of the differences of their sorted "
          "probabilities, which works with distillation.teacher_logits of another tokenizer; times the square of the "
          "temperature"),
      number("distillation.temperature", &Config::distill_temperature, above(0), notice, "",
             "both models' logits are divided by this before they are compared"),
      number("distillation.ce_weight", &Config::distill_ce_weight, at_least(0), notice, "",
             "factor of the cross-entropy with the text, which is added to distillation.loss; 0 = the teacher alone"),
  };
}

std::vector<Field<Config>> pruning_fields() {
  return {
      number("pruning.sparsity", &Config::prune_sparsity, below(0, 1), refused, "",
             "share of each pruned matrix that is set to zero in the end, and stays zero; 0 = off"),
      choice<&Config::prune_method>(
          "pruning.method", refused,
          "magnitude = the smallest weights become zero and stay zero; srste = weights stay dense, and each step "
          "computes with the two largest of every four (pruning.pattern 2:4) and gives its gradients to all"),
      number(
          "pruning.srste_decay", &Config::srste_decay, at_least(0), notice, "",
          "pruning.method srste: weights that a step did not compute with get so many times themselves as a gradient"),
      choice<&Config::prune_pattern>("pruning.pattern", notice,
                                     "unstructured = the smallest weights; 2:4 = the two smallest of every four inputs "
                                     "of an output, with pruning.sparsity 0.5"),
      choice<&Config::prune_scope>("pruning.scope", notice,
                                   "smallest among the weights of a layer's matrix, or of all pruned matrices"),
      number("pruning.start", &Config::prune_start, at_least(0), notice, "steps", "pruning begins after this step"),
      number("pruning.end", &Config::prune_end, at_least(0), notice, "steps",
             "after this step pruning.sparsity is reached; before, zeros grow with the cube of the steps that are left "
             "[Zhu & Gupta 2017]")
          .unset_is("pruning.start"),
      number("pruning.interval", &Config::prune_interval, at_least(1), notice, "steps",
             "from pruning.start to pruning.end weights are pruned anew after so many"),
      custom(
          "pruning.exclude", names<&Config::prune_exclude>("list of patterns"), refused,
          "names in files of matrices that are not pruned, with * and ?; embeddings, head, norms and biases never are"),
      option(
          "pruning.mask_from", &Config::prune_mask_from, refused,
          "folder of a model (config.json and safetensors, or a checkpoint or run of this program) whose weights, not "
          "the run's, say which are pruned: once, when the run starts. A run may begin so from a checkpoint of another "
          "one (load, load_step); empty = the run's own weights, by pruning.start")
          .path(),
  };
}

std::vector<Field<Config>> adapter_fields() {
  return {
      number("lora.rank", &Config::lora_rank, between(0, 65536), refused, "",
             "rank of low-rank adapters: the weights of init_from are frozen and stay as they are, and pairs of small "
             "matrices beside them are trained; 0 = none, all weights are trained. See docs/training.md"),
      number("lora.alpha", &Config::lora_alpha, above(0), refused, "",
             "the product of the two matrices counts alpha / rank times, with lora.variant rslora alpha / sqrt(rank) "
             "times"),
      number("lora.dropout", &Config::lora_dropout, below(0, 1), notice, "",
             "probability with which a value that the adapters read is dropped in training; the mask follows from "
             "seed, step and place alone"),
      custom("lora.targets", names<&Config::lora_targets>("list of names"), refused,
             "linear layers that have adapters, by their names in files or ends of these, such as q_proj, as PEFT's "
             "target_modules; all-linear = all but the head"),
      choice<&Config::lora_variant>(
          "lora.variant", refused,
          "how the adapters' part is scaled; dora = as lora, and magnitudes of each output are trained too"),
      choice<&Config::base_precision>("lora.base_precision", refused,
                                      "how the frozen linear layers are stored: none = in the type of precision; nf4 = "
                                      "in 4 bits, which are dequantized for each GEMM (QLoRA)"),
      option("lora.base_double_quant", &Config::base_double_quant, refused,
             "lora.base_precision nf4: store the absmax of each 64 weights in 8 bits instead of f32"),
      option("lora.adapter", &Config::adapter, free,
             "folder of adapters that a new run goes on from, as PEFT writes it, or a checkpoint of a run with "
             "lora.rank; empty = new ones, which change nothing at first")
          .path(),
  };
}

}  // namespace athanor
