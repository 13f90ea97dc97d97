// transformers stores all experts of a GPT-OSS layer in one tensor; this program has tensors of each expert
// ("PREFIX.experts.E.gate_proj.weight" [F, C], ".bias" [F], and up_proj and down_proj). A stored expert has K inputs
// and N outputs, which alternate between gate and up:
//   PREFIX.experts.gate_up_proj [E, K, N], gate_up_proj_bias [E, N]; the same of down_proj
//   PREFIX.experts.gate_up_proj_blocks u8 [E, N, K / 32, 16], gate_up_proj_scales u8 [E, N, K / 32]; the same of
//     down_proj. MXFP4 [OCP Microscaling Formats 1.0]: E2M1 values, two in a byte, the first in the low half, and an
//     E8M0 scale for 32 of them
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "tensor/tensor.h"

namespace athanor {

class ModelFolder;

// Where the values of one expert's matrix or bias are.
struct FusedPart {
  std::string tensor;  // without "_blocks"
  int64_t expert = 0;
  int64_t outputs = 0, inputs = 0;  // N, K; K is 1 for a bias
  int64_t first = 0, step = 1;      // outputs of the part: first, first + step, ...
  bool mxfp4 = false;

  int64_t values() const { return outputs * inputs; }  // of an expert
};
// The part that has the weight of this name and shape if it belongs to an expert; else its `tensor` is empty.
FusedPart fused_part(const std::string& name, const Shape& shape);
Shape fused_shape(const FusedPart&, int64_t experts);
// Names of the tensors of a file that have the part.
std::vector<std::string> fused_names(const FusedPart&);

// The values of an expert's tensor [K, N] of this many bytes per element as [N, K], first the outputs 0, step, 2 step,
// ..., then those from 1 on.
std::vector<std::byte> outputs_in_parts(std::span<const std::byte> stored, const FusedPart&, int64_t element_bytes);
// Converts an expert's MXFP4 blocks and scales to bf16, which represents all their values, in the same order of
// outputs.
std::vector<std::byte> mxfp4_in_parts(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                                      const FusedPart&);

// The tensors of all experts that a file of transformers has, from the weights of the first one: gate and down.
TensorData fused_tensor(const ModelFolder&, const std::string& first, DType);

}  // namespace athanor
