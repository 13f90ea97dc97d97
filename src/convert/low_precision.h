// Matrices in FP8 (E4M3) with scales, as stored in files: value = FP8 value * scale. A matrix [out, in] is divided into
// blocks with one scale each; the FP8 tensor keeps the matrix's name, and the f32 scales are a separate tensor:
//   tensor   one block   "<layer>.weight_scale" [1]           compressed-tensors, "float-quantized"
//   channel  a row       "<layer>.weight_scale" [out, 1]      compressed-tensors, "float-quantized"
//   block    128 x 128   "<layer>.weight_scale_inv" [out / 128, in / 128, rounded up]   DeepSeek-V3
// Only the linear layers of blocks are in FP8; embeddings, the head, norms and biases keep their dtype.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "tensor/tensor.h"

namespace athanor {

enum class Fp8Blocks : uint8_t { tensor, channel, block };
std::optional<Fp8Blocks> fp8_blocks_named(std::string_view name);  // "fp8_tensor", "fp8_channel", "fp8_block"

std::string scale_name(const std::string& weight, Fp8Blocks);
Shape scale_shape(const Shape& matrix, Fp8Blocks);
// "quantization_config" for config.json, a JSON object. floats: names of modules that are not quantized.
std::string quantization_config_json(Fp8Blocks, const std::vector<std::string>& floats);

class ModelFolder;

// The FP8 values and the scales of a model's matrix, which is read once for the scales and once for the values. The
// folder must outlive both.
struct Fp8Matrix {
  TensorData values, scales;
};
Fp8Matrix fp8_matrix(const ModelFolder&, const std::string& weight, Fp8Blocks);

// Dequantizes elements from `first` on, in row-major order, of a matrix of this shape to f32.
void decode(std::span<const std::byte> quantized, int64_t first, const Shape& matrix, Fp8Blocks,
            std::span<const float> scales, std::vector<std::byte>& out);

}  // namespace athanor
