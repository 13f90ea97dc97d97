// NF4 matrices as stored by bitsandbytes and transformers. A matrix "NAME" [out, in] with n values consists of
//   NAME                                    u8 [(n + 1) / 2, 1]   values, the first in the high half of a byte
//   NAME.absmax                             f32 [blocks of 64], or nested u8
//   NAME.quant_map                          f32 [16]
//   NAME.nested_absmax, .nested_quant_map   f32 [blocks of 256], [256]; if nested
//   NAME.quant_state.bitsandbytes__nf4      u8: JSON with the sizes and nested_offset
// GPT-2's matrices, [in, out] in plain files, are transposed first. Only the linear layers of blocks are quantized;
// embeddings, the head and norms keep their dtype.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "param/nf4.h"

namespace athanor {

class ModelFolder;

// One tensor in the file that belongs to the matrix.
struct Nf4Part {
  std::string name;
  DType dtype;
  Shape shape;
  int64_t at, bytes;  // position in the Nf4Record; at = -1: not in it
};
std::string nf4_state_name(const std::string& weight);
std::vector<Nf4Part> nf4_parts(const std::string& weight, const Nf4Record&);

struct Nf4State {
  bool nested = false;
  float offset = 0;
};
// Parses the text of the tensor nf4_state_name(). An Error names the unsupported property.
Nf4State parse_nf4_state(const std::string& text, const std::string& where, const Shape& matrix);

// "quantization_config" for config.json, a JSON object.
std::string nf4_config_json(bool nested);
// The tensors of a matrix: quantized, or copied if the folder has them in this format. The folder must outlive them.
std::vector<TensorData> nf4_matrix(const ModelFolder&, const std::string& weight, bool nested);

}  // namespace athanor
