#include "convert/hf_folder.h"

#include <algorithm>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "config/config.h"
#include "convert/end_tokens.h"
#include "convert/floats.h"
#include "convert/folder_links.h"
#include "convert/new_folder.h"
#include "model/adapters.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

// Files of tokenizers, and settings for prompting and sampling.
constexpr const char* kCarried[] = {kTokenizerFile,
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "encoder.json",
                                    "vocab.bpe",
                                    "tokenizer.model",
                                    "added_tokens.json",
                                    "chat_template.jinja",
                                    "special_tokens_map.json",
                                    "generation_config.json"};

std::vector<std::string> carried_files(const std::string& folder, Links links) {
  std::vector<std::string> names(std::begin(kCarried), std::end(kCarried));
  std::error_code ignored;
  const fs::path descriptor = fs::path(folder) / kTokenizerFile;
  if (fs::is_regular_file(descriptor, ignored))
    for (const std::string& name :
         parse_descriptor(read_file_in(folder, kTokenizerFile, kMaxTextBytes, links), descriptor.string()).files)
      names.push_back(name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::erase_if(names, [&](const std::string& name) {
    return !is_plain_file_name(name) || !fs::is_regular_file(fs::path(folder) / name, ignored);
  });
  return names;
}

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

TensorData converted(const ModelFolder& model, const ModelFolder::Weight& weight, DType dtype) {
  const auto make = [&model, &weight, dtype](const ByteSink& sink) {
    std::vector<float> values;
    std::vector<std::byte> bytes;
    model.for_each_block(weight, [&](std::span<const std::byte> block) {
      if (weight.dtype == dtype) return sink(block);
      to_floats(block, weight.dtype, values);
      from_floats(values, dtype, weight.name, bytes);
      sink(bytes);
    });
  };
  return {.name = weight.name, .dtype = dtype, .shape = weight.shape, .pieces = {}, .make = make};
}

int64_t inputs_of(const ModelFolder& model, const ModelFolder::Weight& matrix) {
  return matrix.shape[model.in_out() ? 0 : 1];
}

// A matrix that is pruned as a whole when it is written.
TensorData pruned(const ModelFolder& model, const ModelFolder::Weight& weight, DType dtype, const PrunedExport& how) {
  const auto make = [&model, &weight, dtype, &how](const ByteSink& sink) {
    std::vector<float> values;
    std::vector<std::byte> bytes;
    model.read(weight, 0, weight.shape[0], bytes);
    to_floats(bytes, weight.dtype, values);
    if (model.in_out()) values = transposed(values, weight.shape[0]);
    how.prune(weight.name, values, inputs_of(model, weight));
    if (model.in_out()) values = transposed(values, weight.shape[1]);
    from_floats(values, dtype, weight.name, bytes);
    sink(bytes);
  };
  return {.name = weight.name, .dtype = dtype, .shape = weight.shape, .pieces = {}, .make = make};
}

void require_prunable(const ModelFolder& model, const PrunedExport& how) {
  if (how.sparsity.pattern != PrunePattern::two_of_four) return;
  for (const auto& w : model.weights())
    if (w.linear && inputs_of(model, w) % 4 != 0)
      throw Error(cat("export: ", how.flag, " 2:4: ", w.name, " has ", inputs_of(model, w),
                      " inputs, no multiple of 4; give a fraction instead"),
                  Exit::usage);
}

// Refuses models that readers of the quantized format do not support.
void require_quantizable(const ModelFolder& model, const HfFolderOptions& options) {
  const ModelType family = model.config().model_type;
  const char* format = options.fp8          ? "FP8"
                       : options.gptq       ? "GPTQ's format"
                       : options.ints       ? "packed integers"
                       : options.nested_nf4 ? "bitsandbytes' NF4"
                                            : nullptr;
  if (has_biased_experts(family) && options.pruned)
    throw Error(cat("export: ", options.pruned->flag, ": ", name_of(family),
                    " keeps the experts of a layer in one tensor, which is not pruned; leave it out"),
                Exit::usage);
  std::string why;
  if (!format) return;
  if (family == ModelType::gpt2 && !options.nested_nf4)
    why = "its matrices are [in, out], which readers of such weights do not support";
  else if (has_biased_experts(family) || (has_experts(family) && options.nested_nf4))
    why = "transformers keeps the experts of a layer in one tensor, which readers of such weights do not support";
  else if (reads_images(model.config()))
    why = "no reader supports it";
  if (!why.empty())
    throw Error(
        cat("export: ", name_of(family), " cannot be written in ", format, ": ", why, "; take f32, bf16 or f16"),
        Exit::usage);
}

// Modules of matrices that stay in floats although readers take them for linear layers: the head, routers.
std::vector<std::string> float_modules(const ModelFolder& model) {
  std::vector<std::string> modules = {"lm_head"};
  for (const auto& weight : model.weights())
    if (weight.role == Role::matrix && !weight.linear) modules.push_back(module_of(weight.name));
  return modules;
}

// Regular expression, as JSON text, of the linear layers in blocks that GPTQ's readers must not take for quantized
// ones.
std::string float_layers(ModelType family) {
  if (has_shared_expert_gate(family)) return R"(.*\\.(shared_expert_)?gate$)";
  return has_experts(family) ? R"(.*\\.gate$)" : "";
}

// "quantization_config" for config.json; empty for plain weights.
std::string quantization_config(const ModelFolder& model, const HfFolderOptions& options) {
  if (options.nested_nf4) return nf4_config_json(*options.nested_nf4);
  if (options.gptq) return quantization_config_json(options.gptq->options, float_layers(model.config().model_type));
  if (options.ints) return quantization_config_json(*options.ints, float_modules(model));
  return options.fp8 ? quantization_config_json(*options.fp8, float_modules(model)) : "";
}

std::vector<TensorData> tensors_of(const ModelFolder& model, const HfFolderOptions& options) {
  require_quantizable(model, options);
  if (options.pruned) require_prunable(model, *options.pruned);
  std::vector<TensorData> tensors;
  for (const auto& weight : model.weights()) {
    if ((options.ints || options.gptq || options.nested_nf4) && weight.linear) {
      for (TensorData& part : options.nested_nf4 ? nf4_matrix(model, weight.name, *options.nested_nf4)
                              : options.gptq     ? gptq_matrix(model, weight.name, *options.gptq)
                                                 : packed_matrix(model, weight.name, *options.ints))
        tensors.push_back(std::move(part));
      continue;
    }
    if (!options.fp8 || !weight.linear) {
      const DType own = weight.merged.value_or(weight.dtype);
      const DType dtype = weight.buffer ? own : options.dtype.value_or(own);
      const FusedPart part =
          has_biased_experts(model.config().model_type) ? fused_part(weight.name, weight.shape) : FusedPart{};
      if (!part.tensor.empty()) {
        if (part.expert == 0 && part.first == 0) tensors.push_back(fused_tensor(model, weight.name, dtype));
        continue;
      }
      tensors.push_back(options.pruned && weight.linear ? pruned(model, weight, dtype, *options.pruned)
                                                        : converted(model, weight, dtype));
      continue;
    }
    Fp8Matrix matrix = fp8_matrix(model, weight.name, *options.fp8);
    tensors.push_back(std::move(matrix.values));
    tensors.push_back(std::move(matrix.scales));
  }
  return tensors;
}

// Writes the files of a folder and records them for its manifest.
class FolderWriter {
 public:
  FolderWriter(std::string folder, const CheckpointOptions& options) : folder_(std::move(folder)), options_(options) {}

  void text(const std::string& name, std::string_view content) {
    OutputFile out(cat(folder_, "/", name));
    out.write(content);
    out.finish();
    manifest_.files.push_back({.name = name, .bytes = out.written(), .xxh3 = xxh3_hex(content)});
  }
  void weights(const std::string& name, std::span<const CheckpointTensor> tensors) {
    WrittenFile part = write_part(folder_, name, tensors, options_);
    manifest_.files.push_back(std::move(part.file));
    for (ManifestTensor& t : part.tensors) manifest_.tensors.push_back(std::move(t));
  }
  void manifest() {
    manifest_.program_version = options_.program_version;
    manifest_.program_commit = options_.program_commit;
    manifest_.created = utc_now();
    OutputFile out(cat(folder_, "/", kManifestName));
    out.write(manifest_json(manifest_));
    out.finish();
  }

 private:
  std::string folder_;
  const CheckpointOptions& options_;
  Manifest manifest_;
};

}  // namespace

std::string tokenizer_folder(const ModelFolder& model) {
  const ModelFolder* at = &model;
  while (at->base() && !has_tokenizer(at->path())) at = at->base();
  return at->path();
}

namespace {

void carry_tokenizer(const ModelFolder& model, FolderWriter& writer) {
  const std::string from = tokenizer_folder(model);
  const std::vector<std::string> carried = carried_files(from, model.links());
  for (const std::string& name : carried) writer.text(name, read_file_in(from, name, kMaxTextBytes, model.links()));
  if (carried.empty()) log::info(model.path(), ": no tokenizer next to the weights, none is written");
}

}  // namespace

int64_t write_hf_folder(const ModelFolder& model, const std::string& out, const HfFolderOptions& options) {
  NewFolder folder(out);
  FolderWriter writer(folder.path(), options.checkpoint);
  const std::vector<TensorData> tensors = tensors_of(model, options);
  int64_t bytes = 0;
  for (const TensorData& t : tensors) bytes += t.shape.numel() * int64_t(size_of(t.dtype));
  const std::vector<WeightShard> shards = plan_weight_shards(tensors, options.max_shard_bytes);
  for (const WeightShard& shard : shards) {
    std::vector<CheckpointTensor> held;
    for (const size_t i : shard.tensors) held.push_back({tensors[i], std::nullopt});
    writer.weights(shard.file, held);
  }
  if (shards.size() > 1) writer.text("model.safetensors.index.json", weight_index_json(shards, tensors));
  // config.json has only one dtype: that of the token embedding.
  writer.text("config.json", hf_config_json(model.config(), torch_name(tensors.front().dtype),
                                            quantization_config(model, options), config_end_tokens(model)));
  if (reads_images(model.config()))
    writer.text("preprocessor_config.json", image_processor_json(model.config()));
  else
    carry_tokenizer(model, writer);
  if (options.manifest) writer.manifest();
  folder.commit();
  return bytes;
}

}  // namespace athanor
