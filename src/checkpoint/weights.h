// Tensors in one or more safetensors files, in the layouts of the Hugging Face hub: model.safetensors, or
// model-00001-of-0000N.safetensors with model.safetensors.index.json. If both exist, the one that the folder's manifest
// lists is used; without a manifest the single file, as in transformers. Names of bare models ("wte.weight",
// "layers.0...") get the prefix of the model with a head; buffers that are not weights are skipped.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace athanor {

// Parses index.json: tensor name to file name. A file name outside the folder is an Error.
std::map<std::string, std::string> parse_weight_index(std::string_view json, const std::string& where);

class WeightFiles {
 public:
  // Opens a .safetensors file, or a folder in one of the two layouts; stem is the common prefix of the file names.
  explicit WeightFiles(const std::string& path, const std::string& stem = "model");

  struct Place {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };
  const std::string& path() const { return path_; }
  const std::map<std::string, Place, std::less<>>& tensors() const { return tensors_; }
  std::vector<std::string> paths() const;  // paths of the files
  Place at(std::string_view name) const;   // Error if there is no such tensor

 private:
  void add_indexed(const std::string& index);
  void add_file(const std::string& path);
  void leave_out_buffers();
  void add_prefix();

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // pointers stay valid when the vector grows
  std::map<std::string, Place, std::less<>> tensors_;
};

// One file to write: its name and the tensors (positions in the input) that it holds.
struct WeightShard {
  std::string file;
  std::vector<size_t> tensors;
};
void name_weight_shards(std::span<WeightShard>, const std::string& stem = "model");
// Fills files in input order up to max_bytes each (a larger tensor gets its own file); a single file needs no index.
std::vector<WeightShard> plan_weight_shards(std::span<const TensorData> tensors, int64_t max_bytes);
std::string weight_index_json(std::span<const WeightShard> shards, std::span<const TensorData> tensors);

}  // namespace athanor
