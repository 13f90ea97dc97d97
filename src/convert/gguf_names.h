// Maps weight names and layouts of Hugging Face's files to those of GGUF files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "convert/model_folder.h"

namespace athanor {

// The architecture that computes a family: llama turns neighbouring elements of a head, the others its two halves.
const char* gguf_architecture(ModelType type);
std::string gguf_name(const std::string& name);  // of the tensor that Hugging Face calls `name`, where it is one

inline constexpr uint32_t kGgufSigmoid = 2;  // expert_gating_func of scores that are sigmoids of logits

// One of the matrices of a layer's experts, which are one tensor in GGUF: [experts, rows, columns].
struct ExpertName {
  std::string merged;
  int64_t number;
};
std::optional<ExpertName> expert_name(const std::string& name);  // none: a tensor of its own

// How a weight is stored there.
struct GgufLayout {
  std::vector<int64_t> shape;  // rows first
  bool transposed = false;     // GPT-2's matrices, [in, out] in Hugging Face's files
  bool interleaved = false;    // rows of each head: halves there become neighbours
};
GgufLayout gguf_layout(const ModelConfig&, const ModelFolder::Weight&);

// A row of an interleaved matrix in GGUF for a row in Hugging Face's order.
constexpr int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t in_head = row % head_dim, half = head_dim / 2;
  return row - in_head + in_head % half * 2 + in_head / half;
}

}  // namespace athanor
