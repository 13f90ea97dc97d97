// Maps weight names and layouts of Hugging Face files to those of GGUF files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "convert/model_folder.h"

namespace athanor {

// llama.cpp's architecture for a family. RoPE of "llama" rotates adjacent elements of a head; the other architectures'
// RoPE rotates its two halves.
const char* gguf_architecture(ModelType type);
// GGUF name of a Hugging Face tensor.
std::string gguf_name(const std::string& name, std::string_view architecture);

// True if keys of the file describe the routing, as for dots1 and deepseek2.
inline bool gguf_has_routing_keys(ModelType type) {
  return type == ModelType::dots1 || type == ModelType::deepseek_v2 || type == ModelType::deepseek_v3;
}
// True if llama.cpp divides the weights of a token's experts by their sum, for families without routing keys.
inline bool gguf_divides_weights(ModelType type) { return type != ModelType::olmoe && type != ModelType::qwen2_moe; }

// True if llama.cpp takes the embedding for the output matrix where a file has none.
inline bool gguf_ties_embeddings(ModelType type) {
  return type != ModelType::qwen2_moe && type != ModelType::olmoe && type != ModelType::dots1 &&
         type != ModelType::gpt_oss;
}

inline constexpr uint32_t kGgufSoftmax = 1, kGgufSigmoid = 2;  // expert_gating_func
inline constexpr double kGgufYarnLog = 0.1;  // rope.scaling.yarn_log_multiplier is this times mscale_all_dim

// A matrix of one expert. GGUF stores the matrices of all experts of a layer as one tensor [experts, rows, columns].
struct ExpertName {
  std::string merged;
  int64_t number;
};
std::optional<ExpertName> expert_name(const std::string& name);  // nullopt: not an expert's matrix

// The two tensors that hold kv_b_proj, the matrix [H (nope + value), rank] of latent attention: its rows for keys,
// transposed for each head [H, rank, nope], and those for values [H, value, rank].
struct LatentHeadNames {
  std::string keys, values;
};
std::optional<LatentHeadNames> latent_head_names(const std::string& name);  // nullopt: another tensor

// True for a matrix [1, columns] that GGUF stores as a vector [columns].
bool is_row_vector(const std::string& name);

// Layout of a weight in GGUF.
struct GgufLayout {
  std::vector<int64_t> shape;  // rows first
  bool transposed = false;     // GPT-2's matrices, which are [in, out] in Hugging Face files
  bool interleaved = false;    // rows of each head: the two halves are interleaved in GGUF
};
GgufLayout gguf_layout(const ModelConfig&, const ModelFolder::Weight&);

// Row of an interleaved matrix in GGUF, given its row in Hugging Face's order.
constexpr int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t in_head = row % head_dim, half = head_dim / 2;
  return row - in_head + in_head % half * 2 + in_head / half;
}

}  // namespace athanor
