// Models as GGUF files for llama.cpp: names, order of rows, metadata and tokenizer as its converter writes them.
#pragma once
#include <string>

#include "convert/gguf_file.h"
#include "convert/gguf_mixture.h"
#include "convert/model_folder.h"
#include "model/importance.h"

namespace athanor {

struct GgufOptions {
  GgufMixture mixture;
  Importance importance = {};  // of columns, for quantizing; empty: all alike
  ThreadPool* pool = nullptr;  // quantizes; null: this thread
};

// Matrices get the types of the mixture; vectors and positions stay f32. What llama.cpp cannot compute, or a mixture of
// which no matrix has whole blocks, is an Error(usage) naming the key. Returns the bytes of the file.
int64_t write_gguf(const ModelFolder& model, const std::string& path, const GgufOptions& options);

// The tokenizer's keys (gguf_tokenizer.cc); without a tokenizer beside the model, the file says that there is none.
void add_gguf_tokenizer(GgufFile& file, const ModelFolder& model);

}  // namespace athanor
