// A folder of low-rank adapters without the weights that they are for: a checkpoint of ours (adapter.json beside the
// adapters' matrices), or what PEFT writes (adapter_config.json, adapter_model.safetensors). Names are those of
// model/adapters.h; PEFT's prefix is left out.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/lora.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"

namespace athanor {

inline constexpr const char* kAdapterFile = "adapter.json";
inline constexpr const char* kPeftFile = "adapter_config.json";
inline constexpr const char* kPeftPrefix = "base_model.model.";

// Which model a checkpoint's adapters are for: its adapter.json.
struct AdapterBase {
  std::string path;         // folder or file of the frozen weights
  std::string fingerprint;  // weights_fingerprint(); empty: unknown
  LoraOptions lora = {};
};
std::string adapter_json(const AdapterBase&);
AdapterBase read_adapter_json(const std::string& folder);
bool has_adapter_json(const std::string& folder);

class AdapterFolder {
 public:
  static bool is_one(const std::string& folder);
  explicit AdapterFolder(const std::string& folder);

  const std::string& path() const { return path_; }
  const std::string& base() const { return about_.path; }
  const std::string& fingerprint() const { return about_.fingerprint; }
  const LoraOptions& options() const { return about_.lora; }
  const std::vector<std::string>& modules() const { return modules_; }  // sorted
  bool adapts(const std::string& module) const;
  std::vector<std::string> tensor_names(const std::string& module) const;  // of the tensors that a module has
  Shape shape_of(const std::string& name) const { return stored(name).shape; }
  void require_shape(const std::string& name, const Shape& shape) const;  // else an Error that names both
  std::vector<float> read(const std::string& name) const;                 // NaN or infinite values are an Error

 private:
  struct Stored {
    DType dtype;
    Shape shape;
  };
  void read_peft_config();
  void find_modules();
  Stored stored(const std::string& name) const;

  std::string path_;
  AdapterBase about_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // or
  std::unique_ptr<WeightFiles> files_;
  std::vector<std::string> modules_;
};

}  // namespace athanor
