// athanor export CHECKPOINT OUT: converts a model to the formats of other programs.
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/format.h"
#include "base/process_mark.h"
#include "base/thread.h"
#include "command/command.h"
#include "command/export_check.h"
#include "command/float_names.h"
#include "config/choices.h"
#include "convert/adapter_folder.h"
#include "convert/gguf_model.h"
#include "convert/hf_folder.h"
#include "convert/new_folder.h"
#include "convert/sparsity.h"

namespace athanor {
namespace fs = std::filesystem;
namespace {

struct ExportArgs {
  std::string from, to, format = "hf", dtype = "same", wanda, sparsegpt;
  bool averages = false, act_order = false;
  int64_t threads = 0, group_size = 128;
  CalibrationArgs calibration;
  CheckArgs check;
  uint64_t max_shard_bytes = 5'000'000'000;
};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names = float_names();
  for (const std::string& name : mixture_names()) names.push_back(name);
  for (const char* name : {"fp8_tensor", "fp8_channel", "fp8_block", "nf4", "nf4_single", "w4a16", "w8a16"})
    names.emplace_back(name);
  return names;
}

std::vector<std::string> format_names() { return {"hf", "gguf", "compressed-tensors", "gptq", "peft"}; }

// "same" takes the dtype of the token embedding.
GgufMixture mixture_of(const ExportArgs& args, const ModelFolder& model) {
  if (const auto mixture = mixture_named(args.dtype)) return *mixture;
  const DType dtype = float_named(args.dtype).value_or(model.weights().front().dtype);
  return mixture_of_floats(dtype == DType::f32 ? GgmlType::f32 : dtype == DType::f16 ? GgmlType::f16 : GgmlType::bf16);
}

// Refuses models that other programs would silently compute differently, such as capped logits in these families.
void require_known_elsewhere(const ModelConfig& m, const ExportArgs& args) {
  if (m.model_type == ModelType::athanor) {
    const std::string option = option_of_athanor(m);
    throw Error(cat("export: model.model_type is athanor, which transformers and llama.cpp do not have",
                    option.empty() ? "" : cat(", nor model.", option),
                    "; sample, eval and logits of this program read the checkpoint. Train a published family, such as "
                    "llama, to export"),
                Exit::usage);
  }
  if (reads_images(m) && args.format != "hf")
    throw Error(cat("export: a model of model_type ", name_of(m.model_type), " can be written with --format hf, not ",
                    args.format),
                Exit::usage);
  if (m.final_logit_softcapping == 0) return;
  throw Error(cat("export: model.final_logit_softcapping is ", m.final_logit_softcapping, "; ", name_of(m.model_type),
                  " has none in transformers and llama.cpp, which would ignore it and compute other logits. Train "
                  "without it to export"),
              Exit::usage);
}

// True if an NF4 --dtype also quantizes its absmax values (double quantization); nullopt for other types.
std::optional<bool> nested_nf4_named(const std::string& dtype) {
  if (dtype == "nf4") return true;
  if (dtype == "nf4_single") return false;
  return std::nullopt;
}

// Dtypes that each format supports; hf and gguf support floats, too.
bool has_type(const std::string& format, const std::string& dtype) {
  const bool plain = dtype == "same" || float_named(dtype), fp8 = fp8_blocks_named(dtype).has_value();
  if (format == "gguf") return plain || mixture_named(dtype);
  if (format == "hf") return plain || fp8 || nested_nf4_named(dtype);
  if (format == "peft") return plain;
  const bool ints = int_bits_named(dtype).has_value();
  return ints || (format == "compressed-tensors" && fp8 && dtype != "fp8_block");
}

bool prunes(const ExportArgs& args) { return !args.wanda.empty() || !args.sparsegpt.empty(); }

void require_pruning(const ExportArgs& args) {
  if (!prunes(args)) return;
  const std::string& text = args.wanda.empty() ? args.sparsegpt : args.wanda;
  const char* flag = args.wanda.empty() ? "--sparsegpt" : "--wanda";
  const auto refuse = [flag](const auto&... why) { throw Error(cat("export: ", flag, " ", why...), Exit::usage); };
  if (!args.wanda.empty() && !args.sparsegpt.empty()) refuse("and --sparsegpt exclude each other");
  if (!sparsity_named(text)) refuse(text, ": expected a share between 0 and 1, or 2:4");
  if (args.calibration.data.empty()) refuse("needs the inputs of each layer: give text with --calibrate");
  if (args.format != "hf" || (args.dtype != "same" && !float_named(args.dtype)))
    refuse("works only with --format hf and --dtype same, f32, bf16 or f16, got --format ", args.format, " --dtype ",
           args.dtype);
}

// Refuses invalid combinations that are known without reading the model.
void require_sense(const ExportArgs& args) {
  const auto refuse = [](const auto&... why) { throw Error(cat("export: ", why...), Exit::usage); };
  if (!has_type(args.format, args.dtype)) {
    std::string have;
    for (const std::string& dtype : dtype_names())
      if (has_type(args.format, dtype)) have += (have.empty() ? "" : ", ") + dtype;
    std::string formats;
    for (const std::string& format : format_names())
      if (has_type(format, args.dtype)) formats += cat(formats.empty() ? "; take --format " : " or ", format);
    refuse("--format ", args.format, " has no --dtype ", args.dtype, "; it has ", have, formats);
  }
  const bool mixture = args.format == "gguf" && mixture_named(args.dtype), gptq = args.format == "gptq";
  const CalibrationArgs& text = args.calibration;
  if (!text.data.empty() && !mixture && !gptq && !prunes(args))
    refuse(
        "--calibrate works only with --wanda, --sparsegpt, --format gptq and quantized types of gguf, such as q4_K_M, "
        "got --format ",
        args.format, " --dtype ", args.dtype);
  require_pruning(args);
  if (text.data.empty() && gptq) refuse("--format gptq needs the inputs of each layer: give text with --calibrate");
  if (!text.imatrix.empty() && (text.data.empty() || !mixture))
    refuse("--imatrix writes the importances that --calibrate measures for a quantized type of gguf; give both");
  if (args.act_order && !gptq) refuse("--act-order works only with --format gptq; leave it out");
  if (!args.check.data.empty() && args.format == "peft")
    refuse("--check compares whole models, and --format peft writes only adapters; leave --check out");
  if (args.group_size != ExportArgs{}.group_size && !int_bits_named(args.dtype))
    refuse("--group-size works only with --dtype w4a16 and w8a16, got ", args.dtype, "; leave it out");
  if (args.max_shard_bytes != ExportArgs{}.max_shard_bytes && (args.format == "gguf" || args.format == "peft"))
    refuse("--max-shard-size works only with --format hf, compressed-tensors and gptq: ", args.format,
           " writes one file of weights; leave it out");
  for (const std::string& path : {args.to, text.imatrix})
    if (!path.empty()) require_new_path(path);
  if (text.imatrix.empty()) return;
  const std::string model = fs::absolute(args.to) / "", matrix = fs::absolute(text.imatrix) / "";
  if (model.starts_with(matrix) || matrix.starts_with(model))
    refuse("--imatrix ", text.imatrix, " and the model ", args.to,
           " are two files: give a path for each that is not, and is not below, the path of the other");
}

PrunedExport pruned_by_wanda(const ExportArgs& args, const Importance& inputs) {
  const Sparsity sparsity = *sparsity_named(args.wanda);
  return {.sparsity = sparsity,
          .flag = "--wanda",
          .prune = [sparsity, &inputs](const std::string& weight, std::span<float> values, int64_t) {
            prune_by_wanda(values, inputs.at(weight).means(), sparsity);
          }};
}

PrunedExport pruned_by_sparsegpt(const ExportArgs& args, HessianSource& hessians, ThreadPool& pool) {
  const Sparsity sparsity = *sparsity_named(args.sparsegpt);
  return {.sparsity = sparsity,
          .flag = "--sparsegpt",
          .prune = [sparsity, &hessians, &pool](const std::string& weight, std::span<float> values, int64_t in) {
            prune_by_sparsegpt({.weight = values, .hessian = hessians(weight), .in = in, .what = weight}, sparsity,
                               pool);
          }};
}

int64_t write(const ModelFolder& model, const ExportArgs& args, const std::string& to) {
  if (args.format == "peft") return write_peft_folder(model, to, float_named(args.dtype));
  ThreadPool pool(int(args.threads));
  if (args.format == "gguf")
    return write_gguf(model, to,
                      {.mixture = mixture_of(args, model),
                       .importance = calibrate(model, args.calibration, args.threads),
                       .pool = &pool});
  HfFolderOptions options{.max_shard_bytes = int64_t(args.max_shard_bytes)};
  options.fp8 = fp8_blocks_named(args.dtype);
  const std::optional<int> bits = int_bits_named(args.dtype);
  options.nested_nf4 = nested_nf4_named(args.dtype);
  options.dtype = options.fp8 || bits || options.nested_nf4 ? DType::bf16 : float_named(args.dtype);
  if (bits && args.format != "gptq") options.ints = {.bits = *bits, .group = args.group_size};
  Importance inputs;
  if (!args.wanda.empty()) {
    inputs = calibrate(model, args.calibration, args.threads);
    options.pruned = pruned_by_wanda(args, inputs);
  }
  std::unique_ptr<HessianSource> hessians;
  if (args.format == "gptq" || !args.sparsegpt.empty())
    hessians = std::make_unique<HessianSource>(model, args.calibration, args.threads);
  if (!args.sparsegpt.empty()) options.pruned = pruned_by_sparsegpt(args, *hessians, pool);
  if (args.format == "gptq") {
    options.dtype = DType::f16;
    options.gptq = {.options = {.bits = *bits, .group = args.group_size, .act_order = args.act_order},
                    .hessian = [&hessians](const std::string& weight) { return (*hessians)(weight); },
                    .pool = &pool};
  }
  return write_hf_folder(model, to, options);
}

// Writes the model under a hidden name, checks it, and renames it to args.to only if it passes.
int64_t write_checked(const ModelFolder& model, const ExportArgs& args) {
  const std::string hidden = cat(parent_dir(args.to), "/.", base_name(args.to), ".", process_mark(), ".checked");
  int64_t bytes = 0;
  try {
    bytes = write(model, args, hidden);
    const ModelFolder written = args.format == "gguf" ? ModelFolder(hidden, model.config()) : ModelFolder(hidden);
    check_export(model, written, bytes, args.check, args.threads);
    rename_path(hidden, args.to);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(hidden, ignored);
    throw;
  }
  return bytes;
}

Exit export_model(ExportArgs args) {
  args.to = without_slash(args.to);
  std::string& imatrix = args.calibration.imatrix;
  if (!imatrix.empty()) imatrix = without_slash(imatrix);
  require_sense(args);
  const ModelFolder model(args.from, args.averages);
  require_known_elsewhere(model.config(), args);
  prepare_new_path(args.to);  // before hours of calibration
  if (!imatrix.empty()) prepare_new_path(imatrix);
  const int64_t bytes = args.check.data.empty() ? write(model, args, args.to) : write_checked(model, args);
  if (args.check.json) return Exit::done;  // the table's JSON must be the only line of output
  print(model.path(), " -> ", args.to, ": ", format_bytes(size_t(bytes)), " of weights\n");
  return Exit::done;
}

void add_text_options(Verb& verb, ExportArgs& args) {
  verb.add_option("--calibrate", args.calibration.data,
                  "calibration token shards for --wanda, --sparsegpt and gptq (layer inputs) and for quantized gguf "
                  "(importance matrix)");
  verb.add_option("--calibrate-samples", args.calibration.samples,
                  "maximum number of windows of 512 tokens, spread over the data; 0: all")
      .show_default()
      .check(non_negative())
      .needs("--calibrate");
  verb.add_option("--imatrix", args.calibration.imatrix,
                  "write the importance matrix to this file, in llama.cpp's format");
  verb.add_option("--check", args.check.data,
                  "held-out token shards: print size, loss, KL and agreement with the original, and write nothing if a "
                  "limit is exceeded");
  verb.add_option("--check-samples", args.check.samples, "maximum number of windows of 512 tokens; 0: all")
      .show_default()
      .check(non_negative())
      .needs("--check");
  verb.add_option("--max-kl", args.check.max_kl, "limit of KL(original || written), nats per token")
      .show_default()
      .needs("--check");
  verb.add_option("--min-same-top", args.check.min_same_top, "minimum fraction of tokens with the same top prediction")
      .show_default()
      .needs("--check");
  verb.add_option("--max-loss-increase", args.check.max_loss_increase, "maximum increase of the loss, nats per token")
      .show_default()
      .needs("--check");
  verb.add_flag("--force", args.check.force, "write the export even if a limit is exceeded").needs("--check");
  verb.add_flag("--json", args.check.json, "print the table of --check as one JSON object").needs("--check");
}

}  // namespace

void add_export(Cli& cli) {
  auto args = std::make_shared<ExportArgs>();
  Verb verb = cli.app.add_verb("export", "write a model for other programs");
  verb.add_option("checkpoint", args->from, "checkpoint, run folder (newest checkpoint) or imported model").required();
  verb.add_option("out", args->to, "new folder (hf) or file (gguf)").required();
  verb.add_option(
          "--format", args->format,
          "hf: a folder that transformers opens; gguf: a file for llama.cpp; compressed-tensors, gptq: folders with "
          "quantized linear layers for vLLM and transformers (not gpt2); peft: a folder with the adapters of a run "
          "with lora.rank, which all others merge into the weights")
      .show_default()
      .check(one_of(format_names()));
  verb.add_flag("--average,--ema", args->averages,
                "use the averaged weights (averaging.ema_decay, averaging.tail_start)");
  verb.add_option("--dtype", args->dtype,
                  "same = as stored; f32, bf16, f16; gguf: also llama.cpp's quantized types and mixtures, such as q8_0 "
                  "or q4_K_M; hf: also FP8 with a scale per tensor, channel or 128 x 128 block (fp8_tensor, "
                  "fp8_channel, fp8_block) and bitsandbytes NF4 with or without double quantization (nf4, nf4_single), "
                  "the rest in bf16; compressed-tensors: fp8_tensor, fp8_channel, and like gptq 4- or 8-bit integers "
                  "with a scale per group of a row (w4a16, w8a16)")
      .show_default()
      .check(one_of(dtype_names()));
  verb.add_option("--max-shard-size", args->max_shard_bytes,
                  "hf, compressed-tensors, gptq: maximum size of a weight file, in bytes or with a unit (5GB, 500MiB)")
      .show_default()
      .size_in_bytes()
      .check(in_range(int64_t{1}, int64_t{1} << 60));
  verb.add_option("--threads", args->threads, "CPU threads for quantization; 0: all cores available")
      .show_default()
      .check(in_range(0, kMostThreads));
  verb.add_option("--group-size", args->group_size,
                  "w4a16, w8a16: group size, values of a row per scale; 0: the whole row")
      .show_default()
      .check(non_negative());
  verb.add_option("--wanda", args->wanda,
                  "hf, float types: prune this fraction of each row of the linear layers, or 2:4, by Wanda (magnitude "
                  "times input norm on --calibrate)");
  verb.add_option("--sparsegpt", args->sparsegpt,
                  "hf, float types: prune this fraction of each linear layer, or 2:4, by SparseGPT (remaining weights "
                  "compensate the layer's outputs on --calibrate)");
  verb.add_flag("--act-order", args->act_order, "gptq: round the columns with the largest inputs first");
  add_text_options(verb, *args);
  verb.on_chosen([&cli, args] { cli.action = [args] { return export_model(*args); }; });
}

}  // namespace athanor
