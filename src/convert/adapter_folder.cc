#include "convert/adapter_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/printable.h"
#include "convert/floats.h"
#include "model/adapters.h"

namespace athanor {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20, kMaxRank = 65536;
constexpr std::string_view kVariants[] = {"lora", "rslora", "dora"}, kBases[] = {"none", "nf4"};

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

nlohmann::json read_object(const std::string& path) {
  auto json = parse_json_text<nlohmann::json>(read_file(path, kMaxConfigBytes), path);
  if (!json.is_object()) throw Error(cat(path, ": expected a JSON object"), Exit::usage);
  return json;
}

template <class T>
T value_of(const nlohmann::json& json, const char* key, const std::string& where) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat(where, ": ", key, ": ", json_problem(e.what())), Exit::usage);
  }
}

int index_of(std::span<const std::string_view> words, const nlohmann::json& json, const char* key,
             const std::string& where) {
  const auto word = value_of<std::string>(json, key, where);
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return int(found - words.begin());
  std::string all;
  for (const std::string_view known : words) all += cat(all.empty() ? "" : ", ", known);
  throw Error(cat(where, ": ", key, ": expected one of ", all, ", got ", printable(word)), Exit::usage);
}

void require_range(const LoraOptions& lora, const std::string& where) {
  if (lora.rank < 1 || lora.rank > kMaxRank || !(lora.alpha > 0) || lora.alpha > 1e9)
    throw Error(cat(where, ": rank ", lora.rank, " and alpha ", lora.alpha, ", expected 1 ... ", kMaxRank,
                    " and a number above 0"),
                Exit::usage);
}

}  // namespace

std::string adapter_json(const AdapterBase& about) {
  const LoraOptions& lora = about.lora;
  const nlohmann::ordered_json json = {{"base", about.path},
                                       {"fingerprint", about.fingerprint},
                                       {"rank", lora.rank},
                                       {"alpha", lora.alpha},
                                       {"dropout", lora.dropout},
                                       {"targets", lora.targets},
                                       {"variant", kVariants[size_t(lora.variant)]},
                                       {"base_precision", kBases[size_t(lora.base)]},
                                       {"base_double_quant", lora.double_quant}};
  return json_text(json, 2) + "\n";
}

AdapterBase read_adapter_json(const std::string& folder) {
  const std::string path = cat(folder, "/", kAdapterFile);
  const nlohmann::json json = read_object(path);
  AdapterBase about{.path = value_of<std::string>(json, "base", path),
                    .fingerprint = value_of<std::string>(json, "fingerprint", path)};
  about.lora.rank = value_of<int64_t>(json, "rank", path);
  about.lora.alpha = value_of<double>(json, "alpha", path);
  about.lora.dropout = value_of<double>(json, "dropout", path);
  about.lora.targets = value_of<std::vector<std::string>>(json, "targets", path);
  about.lora.variant = LoraVariant(index_of(kVariants, json, "variant", path));
  if (json.contains("base_precision")) {  // absent in checkpoints of older versions
    about.lora.base = BasePrecision(index_of(kBases, json, "base_precision", path));
    about.lora.double_quant = value_of<bool>(json, "base_double_quant", path);
  }
  require_range(about.lora, path);
  return about;
}

bool has_adapter_json(const std::string& folder) { return is_file(cat(folder, "/", kAdapterFile)); }

bool AdapterFolder::is_one(const std::string& folder) {
  return has_adapter_json(folder) || is_file(cat(folder, "/", kPeftFile));
}

AdapterFolder::AdapterFolder(const std::string& folder) : path_(folder) {
  if (has_adapter_json(folder)) {
    about_ = read_adapter_json(folder);
    checkpoint_ = std::make_unique<CheckpointReader>(folder);
  } else {
    read_peft_config();
    files_ = std::make_unique<WeightFiles>(folder, "adapter_model");
  }
  find_modules();
}

// Rejects PEFT options that change a model's output and are not supported here.
void AdapterFolder::read_peft_config() {
  const std::string path = cat(path_, "/", kPeftFile);
  const nlohmann::json json = read_object(path);
  const auto refuse = [&](const auto&... why) { throw Error(cat(path, ": ", why...), Exit::usage); };
  if (json.value("peft_type", nlohmann::json()) != "LORA")
    refuse("peft_type: expected LORA, got ", json_text(json.value("peft_type", nlohmann::json())));
  const auto is_off = [&](const char* key) {
    const nlohmann::json value = json.value(key, nlohmann::json());
    return value.is_null() || value == false || value.empty() || value == "none" || value == 0;
  };
  for (const char* key : {"bias", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
                          "megatron_config", "trainable_token_indices", "target_parameters", "alora_invocation_tokens",
                          "arrow_config", "use_qalora", "use_bdlora"})
    if (!is_off(key)) refuse(key, ": ", json_text(json.at(key)), " is not supported");
  // Other initializations, such as pissa and olora, change the base weights, also when PEFT loads the adapters.
  const nlohmann::json init = json.value("init_lora_weights", nlohmann::json(true));
  constexpr std::string_view kOfAdaptersAlone[] = {"gaussian", "eva", "orthogonal"};
  if (init.is_string() && std::ranges::find(kOfAdaptersAlone, init.get<std::string>()) == std::end(kOfAdaptersAlone))
    refuse("init_lora_weights: ", json_text(init), " changes the base weights, which is not supported; save the ",
           "adapters as ordinary ones, by path_initial_model_for_weight_conversion of PEFT's save_pretrained");
  about_.lora.rank = value_of<int64_t>(json, "r", path);
  about_.lora.alpha = value_of<double>(json, "lora_alpha", path);
  const auto says = [&](const char* key) { return json.value(key, nlohmann::json()) == true; };
  if (says("use_rslora") && says("use_dora")) refuse("use_rslora and use_dora: true at once is not supported");
  if (says("use_rslora")) about_.lora.variant = LoraVariant::rslora;
  if (says("use_dora")) about_.lora.variant = LoraVariant::dora;
  require_range(about_.lora, path);
  const nlohmann::json base = json.value("base_model_name_or_path", nlohmann::json());
  if (base.is_string()) about_.path = base_of_peft(path_, base.get<std::string>());
}

void AdapterFolder::find_modules() {
  std::set<std::string> found;
  const auto add = [&](std::string name) {
    if (files_ && name.starts_with(kPeftPrefix)) name = name.substr(std::string_view(kPeftPrefix).size());
    for (const std::string& end : tensor_names(""))
      if (name.ends_with(end)) return void(found.insert(name.substr(0, name.size() - end.size())));
    if (files_)
      throw Error(cat(path_, ": the tensor ", printable(name), " is no part of an adapter (lora_A, lora_B",
                      options().variant == LoraVariant::dora ? ", lora_magnitude_vector)" : ")"));
  };
  if (files_)
    for (const auto& [name, place] : files_->tensors()) add(name);
  else
    for (const auto& [name, info] : checkpoint_->tensors())  // names of optimizer tensors have prefixes
      if (name.starts_with("model.") || name.starts_with("transformer.") || name.starts_with("vit.")) add(name);
  modules_.assign(found.begin(), found.end());
  if (modules_.empty()) throw Error(cat(path_, ": holds no adapters"));
}

std::vector<std::string> AdapterFolder::tensor_names(const std::string& module) const {
  std::vector<std::string> names = {lora_a_name(module), lora_b_name(module)};
  if (options().variant == LoraVariant::dora) names.push_back(lora_magnitude_name(module));
  return names;
}

bool AdapterFolder::adapts(const std::string& module) const { return std::ranges::binary_search(modules_, module); }

std::string AdapterFolder::stored_name(const std::string& name) const {
  const std::string average = cat(kEmaState, ".", name);
  return averages_ && checkpoint_->tensors().contains(average) ? average : name;  // frozen adapters have none
}

AdapterFolder::Stored AdapterFolder::stored(const std::string& name) const {
  if (checkpoint_) {
    const CheckpointReader::Info& info = checkpoint_->at(stored_name(name));
    return {info.dtype, info.shape};
  }
  const TensorEntry& entry = *files_->at(kPeftPrefix + name).entry;
  return {entry.checked_dtype(), entry.checked_shape()};
}

void AdapterFolder::require_shape(const std::string& name, const Shape& shape) const {
  const Stored has = stored(name);
  if (has.shape != shape)
    throw Error(
        cat(path_, ": ", name, " has shape ", has.shape, ", the model and rank ", options().rank, " need ", shape),
        Exit::usage);
  if (has.dtype != DType::f32 && has.dtype != DType::bf16 && has.dtype != DType::f16)
    throw Error(cat(path_, ": ", name, " is ", has.dtype, "; adapters are expected in f32, bf16 or f16"), Exit::usage);
}

std::vector<float> AdapterFolder::read(const std::string& name) const {
  const Stored has = stored(name);
  std::vector<std::byte> bytes(size_t(has.shape.numel()) * size_of(has.dtype));
  if (checkpoint_) {
    checkpoint_->read(stored_name(name), bytes);
  } else {
    const auto [file, entry] = files_->at(kPeftPrefix + name);
    file->read(*entry, bytes);
  }
  if (const int64_t bad = count_non_finite(bytes, has.dtype); bad > 0)
    throw Error(cat(path_, ": ", bad, " values of ", name, " are NaN or infinite; take another copy or checkpoint"));
  std::vector<float> values;
  to_floats(bytes, has.dtype, values);
  return values;
}

}  // namespace athanor
