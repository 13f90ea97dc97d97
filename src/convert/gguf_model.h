// Writes models as GGUF files for llama.cpp, with the names, row order, metadata and tokenizer of its converter.
#pragma once
#include <string>

#include "convert/gguf_file.h"
#include "convert/gguf_mixture.h"
#include "convert/model_folder.h"
#include "model/importance.h"

namespace athanor {

struct GgufOptions {
  GgufMixture mixture;
  Importance importance = {};  // weights of columns for quantization; empty: all equal
  ThreadPool* pool = nullptr;  // pool for quantization; null: this thread
};

// Matrices get the types of the mixture; vectors and positions stay f32. Throws Error(usage) naming the key if
// llama.cpp cannot compute the model, or if no matrix consists of whole blocks of the mixture. Returns the size of the
// file in bytes.
int64_t write_gguf(const ModelFolder& model, const std::string& path, const GgufOptions& options);

// Adds the tokenizer's keys (gguf_tokenizer.cc); if the model's folder has no tokenizer, adds a key that says so.
void add_gguf_tokenizer(GgufFile& file, const ModelFolder& model);

}  // namespace athanor
