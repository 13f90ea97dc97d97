// The model families and their shared functions. A new family is one file and one line of the table in registry.cc.
#pragma once
#include "model/model.h"

namespace athanor {

std::unique_ptr<Model> make_gpt2(const ModelConfig&);
std::unique_ptr<Model> make_llama(const ModelConfig&);
std::unique_ptr<Model> make_vit(const ModelConfig&);

}  // namespace athanor
