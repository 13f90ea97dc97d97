// Writer for the GGUF format, version 3 [ggml docs/gguf.md]: typed key/value pairs, tensor descriptions, aligned data.
// Independent of models.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "convert/ggml_type.h"

namespace athanor {

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
    std::vector<int64_t> shape;  // rows first; the file stores dimensions in reverse
    std::function<void(const ByteSink&)> make;

    int64_t bytes() const;
  };
  void add(GgufTensor tensor) { tensors_.push_back(std::move(tensor)); }

  // Orders tensors like llama.cpp's quantizer: by layer, with tensors outside of layers first, then by name.
  void sort_tensors();
  // Atomic; returns the size of the file in bytes.
  int64_t write(const std::string& path) const;

 private:
  std::string pairs_;
  uint64_t pair_count_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace athanor
