#include "convert/adapter_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/safetensors_writer.h"
#include "convert/floats.h"
#include "convert/model_folder.h"
#include "convert/new_folder.h"
#include "model/adapters.h"

namespace athanor {
namespace {

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// Writes whole numbers as integers, as most readers expect.
nlohmann::ordered_json number(double x) {
  const auto whole = int64_t(x);
  if (double(whole) == x) return whole;
  return x;
}

// Suffixes of module names if all layers with those suffixes have adapters, as PEFT writes them, otherwise full names.
std::vector<std::string> target_modules(const ModelFolder& model) {
  const AdapterFolder& adapter = *model.adapter();
  std::set<std::string> ends, whole;
  for (const std::string& module : adapter.modules()) ends.insert(last_name(module)), whole.insert(module);
  const bool all = std::ranges::all_of(model.weights(), [&](const ModelFolder::Weight& w) {
    const std::string module = module_of(w.name);
    return w.role != Role::matrix || w.adapted || !ends.contains(last_name(module));
  });
  const std::set<std::string>& names = all ? ends : whole;
  return {names.begin(), names.end()};
}

// Only keys of PEFT's first versions: readers reject unknown keys, and these have kept their meaning.
std::string config_json(const ModelFolder& model) {
  const AdapterFolder& adapter = *model.adapter();
  const LoraOptions& lora = adapter.options();
  const nlohmann::ordered_json none = nullptr;
  const nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                       {"task_type", "CAUSAL_LM"},
                                       {"base_model_name_or_path", adapter.base()},
                                       {"auto_mapping", none},
                                       {"revision", none},
                                       {"inference_mode", true},
                                       {"r", lora.rank},
                                       {"lora_alpha", number(lora.alpha)},
                                       {"lora_dropout", lora.dropout},
                                       {"target_modules", target_modules(model)},
                                       {"bias", "none"},
                                       {"fan_in_fan_out", model.config().model_type == ModelType::gpt2},
                                       {"init_lora_weights", true},
                                       {"modules_to_save", none},
                                       {"use_rslora", lora.variant == LoraVariant::rslora},
                                       {"use_dora", lora.variant == LoraVariant::dora},
                                       {"rank_pattern", nlohmann::ordered_json::object()},
                                       {"alpha_pattern", nlohmann::ordered_json::object()},
                                       {"layers_to_transform", none},
                                       {"layers_pattern", none}};
  return json_text(json, 2) + "\n";
}

}  // namespace

int64_t write_peft_folder(const ModelFolder& model, const std::string& out, std::optional<DType> dtype) {
  const AdapterFolder* adapter = model.adapter();
  if (!adapter)
    throw Error(cat("export: ", model.path(),
                    " has no adapters for --format peft; expected a checkpoint of a run with lora.rank"),
                Exit::usage);
  if (!model.base()->stores_what_it_reads())
    log::warn("peft: the adapters were trained on the weights that `athanor export ", adapter->base(),
              " FOLDER` writes, and that folder's own files hold others: name FOLDER as base_model_name_or_path in ",
              kPeftFile);
  const DType type = dtype.value_or(DType::f32);
  std::vector<TensorData> tensors;
  int64_t bytes = 0;
  for (const std::string& module : adapter->modules())
    for (const std::string& name : adapter->tensor_names(module)) {
      const Shape shape = adapter->shape_of(name);
      bytes += shape.numel() * int64_t(size_of(type));
      tensors.push_back({.name = kPeftPrefix + name,
                         .dtype = type,
                         .shape = shape,
                         .pieces = {},
                         .make = [adapter, name, type](const ByteSink& sink) {
                           std::vector<std::byte> rounded;
                           from_floats(adapter->read(name), type, name, rounded);
                           sink(rounded);
                         }});
    }
  NewFolder folder(out);
  save_safetensors(cat(folder.path(), "/adapter_model.safetensors"), tensors);
  write_file(cat(folder.path(), "/", kPeftFile), config_json(model));
  folder.commit();
  return bytes;
}

}  // namespace athanor
