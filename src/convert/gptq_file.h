// Matrices as GPTQ's files have them, version 1. Of a linear layer "NAME.weight" [out, in]:
//   NAME.qweight i32 [in bits / 32, out]      codes packed along the inputs, the first in the lowest bits
//   NAME.qzeros  i32 [groups, out bits / 32]  the middle code less one
//   NAME.scales  f16 [groups, out]
//   NAME.g_idx   i32 [in]                     each input's group
// value = scale (code - zero - 1). Only the linear layers of blocks; the rest is f16.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "convert/gptq.h"

namespace athanor {

class ModelFolder;

struct GptqExport {
  GptqOptions options;
  // Sum over tokens of x x^T for the inputs of a weight, [in, in]; called once per weight.
  std::function<std::vector<float>(const std::string& weight)> hessian;
  ThreadPool* pool;
};

enum class GptqTensor : uint8_t { qweight, qzeros, scales, g_idx };
std::string gptq_name(const std::string& weight, GptqTensor);

// "quantization_config" of config.json, a JSON object.
std::string quantization_config_json(const GptqOptions&);

// The four tensors; the weight is quantized when the first is written. Folder and export must outlive them. An
// Error(usage) where the sizes do not fit.
std::vector<TensorData> gptq_matrix(const ModelFolder&, const std::string& weight, const GptqExport&);

// The tensors of one linear layer as the file stores them, packed; the weight is [out, in].
struct GptqStored {
  std::vector<int32_t> qweight, qzeros, g_idx;
  std::vector<float> scales;
  Shape matrix;
  int bits;
};
std::vector<float> gptq_values(const GptqStored&);

}  // namespace athanor
