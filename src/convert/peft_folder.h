// Writes adapters as PEFT has them: adapter_model.safetensors and adapter_config.json.
#pragma once
#include <string>

#include "convert/model_folder.h"

namespace athanor {

// model: a folder of adapters (ModelFolder::adapter()), else an Error(usage). `out` must not exist; it is there as a
// whole or not at all. dtype: of the matrices; absent: f32. Returns their bytes.
int64_t write_peft_folder(const ModelFolder& model, const std::string& out, std::optional<DType> dtype);

}  // namespace athanor
