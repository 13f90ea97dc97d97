// Models as GGUF files for llama.cpp: names, order of rows, metadata and tokenizer as its converter writes them.
#pragma once
#include <string>

#include "convert/gguf_file.h"
#include "convert/model_folder.h"

namespace athanor {

// Matrices get `type`; vectors and positions stay f32, and matrices whose rows are no whole q8_0 blocks become f16.
// What llama.cpp cannot compute is an Error(usage) naming the key. Returns the bytes of the file.
int64_t write_gguf(const ModelFolder& model, const std::string& path, GgmlType type);

// The tokenizer's keys (gguf_tokenizer.cc); without a tokenizer beside the model, the file says that there is none.
void add_gguf_tokenizer(GgufFile& file, const ModelFolder& model);

}  // namespace athanor
