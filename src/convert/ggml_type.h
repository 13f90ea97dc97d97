// Element types of GGUF tensors: floats, blocks of small integers that share f16 scales, and MXFP4. Quantization
// reproduces the bytes of ggml's own quantizer [ggml src/ggml-quants.c], and dequantization its values. Independent of
// models and files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cpu/thread_pool.h"

namespace athanor {

// ggml's type numbers.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
  mxfp4 = 39,
};

// Quantizes one row of whole blocks. importance: one weight per column, or empty for equal weights.
using QuantizeRow = void (*)(std::span<const float> row, std::span<const float> importance, std::byte* out);
using DequantizeBlock = void (*)(const std::byte* block, float* out);

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;
  int64_t block;         // values per block; a block never crosses the end of a row
  int64_t bytes;         // bytes per block
  QuantizeRow quantize;  // null for floats
  DequantizeBlock dequantize;
};
const GgmlTypeInfo& ggml_info(GgmlType type);
bool is_ggml_type(uint32_t number);  // true for the types above

int64_t ggml_row_bytes(GgmlType type, int64_t columns);

// Rows of one matrix; what: its name for errors.
struct GgmlRows {
  std::span<const float> values;  // whole rows
  int64_t columns;
  std::span<const float> importance = {};  // [columns], or empty
  std::string_view what;
};
// Appends the rows, converted to a type. Non-finite values and scales too large for f16 are an Error naming `what`.
// With a pool, rows are quantized in parallel; the bytes do not depend on the number of threads.
void append_ggml(GgmlType type, const GgmlRows& rows, ThreadPool* pool, std::vector<std::byte>& out);

// Dequantizes whole blocks.
void read_ggml(GgmlType type, std::span<const std::byte> bytes, std::vector<float>& out);

}  // namespace athanor
