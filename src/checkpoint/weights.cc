// Reads and plans the two folder layouts of the Hugging Face hub.
#include "checkpoint/weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/manifest.h"
#include "checkpoint/printable.h"
#include "checkpoint/strict_json.h"

namespace athanor {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;
constexpr const char* kIndex = ".index.json";

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Whether the weights of a folder are those of its index, not of a single file. A folder with a manifest may hold other
// files besides those that it lists, which no verification has read.
bool is_indexed(const std::string& folder, const std::string& single) {
  if (exists(cat(folder, "/", kManifestName))) return read_manifest(folder).find_file(single + kIndex) != nullptr;
  if (!exists(cat(folder, "/", single, kIndex))) return false;
  if (!exists(cat(folder, "/", single))) return true;
  log::info(folder, ": holds ", single, " and ", single, kIndex, "; the single file is read, as by transformers");
  return false;
}

int64_t data_bytes(const TensorData& t) { return t.shape.numel() * int64_t(size_of(t.dtype)); }

}  // namespace

std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& where) {
  require_strict_json(text, where);
  const auto json = nlohmann::json::parse(text);
  const auto map = json.find("weight_map");
  if (!json.is_object() || map == json.end() || !map->is_object())
    throw Error(cat(where, ": expected an object with an object \"weight_map\""));
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw Error(cat(where, ": weight_map: ", printable(tensor), ": expected a file name"));
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_file_name(name))
      throw Error(cat(where, ": weight_map: ", printable(tensor), ": the file name ", printable(name),
                      " is refused: files must be in the folder itself"));
    files.emplace(tensor, name);
  }
  return files;
}

WeightFiles::WeightFiles(const std::string& path, const std::string& stem) : path_(path) {
  const std::string single = stem + ".safetensors";
  if (!is_folder(path)) {
    add_file(path);
  } else if (is_indexed(path, single)) {
    add_indexed(cat(path, "/", single, kIndex));
  } else {
    add_file(cat(path, "/", single));
  }
  leave_out_buffers();
  add_prefix();
}

std::vector<std::string> WeightFiles::paths() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  return paths;
}

void WeightFiles::add_indexed(const std::string& index) {
  const auto map = parse_weight_index(read_file(index, kMaxIndexBytes), index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  for (const std::string& name : names) add_file(cat(path_, "/", name));
  for (const auto& [tensor, file] : map) {
    const auto it = tensors_.find(tensor);
    if (it == tensors_.end() || it->second.file->path() != cat(path_, "/", file))
      throw Error(cat(index, ": places the tensor ", printable(tensor), " in ", file, ", which does not contain it"));
  }
}

void WeightFiles::add_file(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const TensorEntry& t : file.tensors()) {
    const auto [it, added] = tensors_.emplace(t.name, Place{&file, &t});
    if (!added)
      throw Error(cat(path_, ": the tensor ", printable(t.name), " is in ", it->second.file->path(), " and in ", path));
  }
}

// Causal masks and rotary frequencies stored by older versions of transformers: constants that are computed instead.
void WeightFiles::leave_out_buffers() {
  std::erase_if(tensors_, [](const auto& tensor) {
    const std::string& name = tensor.first;
    return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".attn.bias");
  });
}

void WeightFiles::add_prefix() {
  const char* prefix = tensors_.contains("wte.weight") ? "transformer." : "model.";
  if (!tensors_.contains("wte.weight") && !tensors_.contains("embed_tokens.weight")) return;
  decltype(tensors_) named;
  for (const auto& [name, place] : tensors_) named.emplace(name == "lm_head.weight" ? name : prefix + name, place);
  if (named.size() != tensors_.size())
    throw Error(cat(path_, ": holds tensors with and without the prefix \"", prefix, "\""));
  tensors_ = std::move(named);
}

WeightFiles::Place WeightFiles::at(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end())
    throw Error(cat(path_, ": has no tensor ", printable(name), "; it holds ", tensors_.size(), " others"));
  return it->second;
}

void name_weight_shards(std::span<WeightShard> shards, const std::string& stem) {
  for (size_t k = 0; k < shards.size(); ++k) {
    char place[64] = "";
    if (shards.size() > 1) std::snprintf(place, sizeof place, "-%05zu-of-%05zu", k + 1, shards.size());
    shards[k].file = cat(stem, place, ".safetensors");
  }
}

std::vector<WeightShard> plan_weight_shards(std::span<const TensorData> tensors, int64_t max_bytes) {
  CHECK(max_bytes > 0, "a file of at most ", max_bytes, " bytes");
  std::vector<WeightShard> shards(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = data_bytes(tensors[i]);
    if (!shards.back().tensors.empty() && bytes + more > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().tensors.push_back(i);
    bytes += more;
  }
  name_weight_shards(shards);
  return shards;
}

std::string weight_index_json(std::span<const WeightShard> shards, std::span<const TensorData> tensors) {
  nlohmann::ordered_json json;
  int64_t total = 0;
  std::map<std::string, std::string> map;
  for (const WeightShard& shard : shards)
    for (size_t i : shard.tensors) {
      map[tensors[i].name] = shard.file;
      total += data_bytes(tensors[i]);
    }
  json["metadata"]["total_size"] = total;
  json["weight_map"] = map;
  return json.dump(2) + "\n";
}

}  // namespace athanor
