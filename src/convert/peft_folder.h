// Writes adapters in PEFT's format: adapter_model.safetensors and adapter_config.json.
#pragma once
#include <string>

#include "convert/model_folder.h"

namespace athanor {

// model: a folder of adapters (ModelFolder::adapter()), otherwise Error(usage). `out` must not exist; it is created
// atomically. dtype: dtype of the matrices in the file; f32 if absent. Returns the size of the matrices in bytes.
int64_t write_peft_folder(const ModelFolder& model, const std::string& out, std::optional<DType> dtype);

}  // namespace athanor
