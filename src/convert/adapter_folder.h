// A folder of low-rank adapters without their base weights: a checkpoint of this program (adapter.json and the
// adapters' matrices) or PEFT's format (adapter_config.json, adapter_model.safetensors). Names are those of
// model/adapters.h, without PEFT's prefix.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lora.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"

namespace athanor {

class ModelFolder;

inline constexpr const char* kAdapterFile = "adapter.json";
inline constexpr const char* kPeftFile = "adapter_config.json";
inline constexpr const char* kPeftPrefix = "base_model.model.";

// Contents of adapter.json: the base model that a checkpoint's adapters belong to.
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
  std::vector<std::string> tensor_names(const std::string& module) const;  // names of the module's adapter tensors
  Shape shape_of(const std::string& name) const { return stored(name).shape; }
  void require_shape(const std::string& name, const Shape& shape) const;    // throws Error naming both if different
  std::vector<float> read(const std::string& name) const;                   // throws Error for NaN and infinite values
  const CheckpointReader* checkpoint() const { return checkpoint_.get(); }  // null for PEFT's format
  void use_averages() { averages_ = true; }  // reads a checkpoint's averages of the adapters instead of the adapters

 private:
  struct Stored {
    DType dtype;
    Shape shape;
  };
  void read_peft_config();
  void find_modules();
  std::string stored_name(const std::string& name) const;
  Stored stored(const std::string& name) const;

  std::string path_;
  AdapterBase about_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // set for a checkpoint; files_ for PEFT's format
  std::unique_ptr<WeightFiles> files_;
  std::vector<std::string> modules_;
  bool averages_ = false;
};

// model: a folder of adapters (ModelFolder::adapter()), otherwise Error(usage). `out` must not exist; it is created
// atomically. dtype: dtype of the matrices in the file; f32 if absent. Returns the size of the matrices in bytes.
int64_t write_peft_folder(const ModelFolder& model, const std::string& out, std::optional<DType> dtype);

}  // namespace athanor
