// Writes models as GGUF files for llama.cpp, with the names, row order, metadata and tokenizer of its converter.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "convert/ggml_type.h"
#include "convert/gguf_file.h"
#include "convert/model_folder.h"
#include "model/importance.h"

namespace athanor {

// The type of each tensor in a GGUF file, by the rules of llama.cpp's quantizer, so that a name such as q4_K_M means
// the same file [llama.cpp src/llama-quant.cpp].

struct GgufMixture {
  const char* name;    // value of --dtype
  uint32_t file_type;  // general.file_type
  GgmlType type;       // type of most matrices
  bool more = false;   // the M mixtures: more bits for value and down projections of some layers
};
std::optional<GgufMixture> mixture_named(std::string_view name);  // "q4_K" means q4_K_M, and so on
std::vector<std::string> mixture_names();
const GgufMixture& mixture_of_floats(GgmlType type);  // f32, f16 and bf16

// The type of a matrix, by its GGUF name. importance: true if there is an importance matrix, which changes some
// choices. If `columns` is no multiple of the block, returns a type with smaller blocks, or f16.
GgmlType matrix_type(const GgufMixture&, const ModelConfig&, const std::string& gguf_name, int64_t columns,
                     bool importance);

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
