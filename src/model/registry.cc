// Maps model types to the files that implement their families.
#include "model/families.h"

namespace athanor {

std::unique_ptr<Model> make_model(const ModelConfig& config) {
  std::unique_ptr<Model> model;
  switch (config.model_type) {
    case ModelType::gpt2:
      model = make_gpt2(config);
      break;
    case ModelType::llama:
    case ModelType::qwen2:
    case ModelType::qwen3:
    case ModelType::mistral:
    case ModelType::mixtral:
    case ModelType::qwen2_moe:
    case ModelType::qwen3_moe:
    case ModelType::olmoe:
    case ModelType::dots1:
    case ModelType::deepseek_v2:
    case ModelType::deepseek_v3:
    case ModelType::gpt_oss:
    case ModelType::athanor:
      model = make_llama(config);
      break;
    case ModelType::vit:
      model = make_vit(config);
      break;
  }
  model->declare();
  model->require_patterns_used();
  return model;
}

}  // namespace athanor
