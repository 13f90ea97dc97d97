// GPTQ: rounds the columns of a weight one after another and adjusts the following columns to compensate for the error
// on the layer's inputs [Frantar et al. 2023, algorithm 1]. Symmetric integers with one scale per group of a row.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "cpu/thread_pool.h"

namespace athanor {

class ModelFolder;

struct GptqOptions {
  int bits = 4;            // 4 or 8
  int64_t group = 128;     // columns that share a scale; 0 = all columns
  bool act_order = false;  // process columns by descending mean square of their input, instead of in order
  double damping = 0.05;   // fraction of the mean diagonal of the Hessian, added to its diagonal
};

struct GptqMatrix {
  std::vector<uint8_t> quantized;  // [out, in]; value = scale (q - 2^(bits - 1))
  std::vector<float> scales;       // [groups, out], representable in f16
  std::vector<int32_t> group_of;   // [in]: group of each input
};

struct GptqProblem {
  std::vector<float> weight;   // [out, in]
  std::vector<float> hessian;  // [in, in]: sum over tokens of x x^T; symmetric
  int64_t out, in;
  std::string_view what;  // name for errors
};
GptqMatrix quantize_gptq(GptqProblem problem, const GptqOptions&, ThreadPool&);

// Matrices in GPTQ's file format, version 1. A linear layer "NAME.weight" [out, in] is stored as
//   NAME.qweight i32 [in bits / 32, out]      integers packed along the inputs, the first in the lowest bits
//   NAME.qzeros  i32 [groups, out bits / 32]  zero point minus 1
//   NAME.scales  f16 [groups, out]
//   NAME.g_idx   i32 [in]                     group of each input
// value = scale (integer - qzero - 1). Only the linear layers of blocks are quantized; everything else is f16.

struct GptqExport {
  GptqOptions options;
  // Returns the sum over tokens of x x^T for the inputs of a weight, [in, in]; called once per weight.
  std::function<std::vector<float>(const std::string& weight)> hessian;
  ThreadPool* pool;
};

enum class GptqTensor : uint8_t { qweight, qzeros, scales, g_idx };
std::string gptq_name(const std::string& weight, GptqTensor);

// "quantization_config" for config.json, a JSON object. floats: regular expression, as JSON text, of the layers that
// are not quantized; empty: none.
std::string quantization_config_json(const GptqOptions&, const std::string& floats);

// The four tensors of a weight, which is quantized when the first of them is written. Folder and export must outlive
// them. Throws Error(usage) if the shape does not fit bits or group size.
std::vector<TensorData> gptq_matrix(const ModelFolder&, const std::string& weight, const GptqExport&);

// The tensors of one linear layer as stored in the file, packed; the weight is [out, in].
struct GptqStored {
  std::vector<int32_t> qweight, qzeros, g_idx;
  std::vector<float> scales;
  Shape matrix;
  int bits;
};
std::vector<float> gptq_values(const GptqStored&);

}  // namespace athanor
