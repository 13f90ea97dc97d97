// The GGUF format, version 3 [ggml docs/gguf.md]: typed key/value pairs, tensor places, aligned data. Knows no model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"

namespace athanor {

// Numbers of ggml's types.
enum class GgmlType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

// A row of `columns` elements; q8_0 rows are whole blocks of kQ8Block.
constexpr int64_t kQ8Block = 32;
int64_t ggml_row_bytes(GgmlType type, int64_t columns);

// Appends rows of floats in a type. q8_0 rounds half away from zero, as ggml does: a block is its largest magnitude
// over 127 as f16, and 32 signed bytes.
void append_ggml(GgmlType type, std::span<const float> values, std::string_view what, std::vector<std::byte>& out);

class GgufFile {
 public:
  void set(std::string_view key, uint32_t value);
  void set(std::string_view key, float value);
  void set(std::string_view key, bool value);
  void set(std::string_view key, const std::string& value);
  void set(std::string_view key, const char* value) { set(key, std::string(value)); }
  void set(std::string_view key, const std::vector<std::string>& values);
  void set(std::string_view key, const std::vector<int32_t>& values);

  struct GgufTensor {
    std::string name;
    GgmlType type;
    std::vector<int64_t> shape;  // rows first; the file has it the other way round
    std::function<void(const ByteSink&)> make;

    int64_t bytes() const;
  };
  void add(GgufTensor tensor) { tensors_.push_back(std::move(tensor)); }

  // Atomically; returns the bytes of the file.
  int64_t write(const std::string& path) const;

 private:
  std::string pairs_;
  uint64_t pair_count_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace athanor
