// Writes safetensors files sequentially from the caller's memory, without another copy, and computes checksums on the
// way. Output is byte-identical to the reference writer's: sorted by dtype and name, header padded to 8 bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"

namespace athanor {

using ByteSink = std::function<void(std::span<const std::byte>)>;

// A tensor whose bytes are stored in one or more pieces of memory, in order (row blocks, column slices copied row by
// row, ...), or are generated while they are written.
struct TensorData {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::span<const std::byte>> pieces;  // together exactly the shape's bytes
  std::function<void(const ByteSink&)> make = {};  // alternative to `pieces`: streams the bytes to the sink, in order
};
TensorData tensor_data(std::string name, const Tensor& tensor);  // contiguous or strided rows; refers to its memory

// Indices of the tensors in the order in which write_safetensors() writes them.
std::vector<size_t> safetensors_order(std::span<const TensorData> tensors);

// Transformers rejects files with an unknown "format".
inline const TextMap kPlainMetadata = {{"format", "pt"}};

struct SafetensorsSummary {
  int64_t bytes = 0;                     // size of the whole file
  std::string xxh3;                      // checksum of the whole file
  std::vector<std::string> tensor_xxh3;  // in the order of the input
};

struct SafetensorsWriteOptions {
  TextMap metadata = kPlainMetadata;
  std::function<void(std::string_view name)> after_tensor;  // called after a tensor's bytes were written
};
// Writes into an empty file; the caller calls finish().
SafetensorsSummary write_safetensors(OutputFile& out, std::span<const TensorData> tensors,
                                     const SafetensorsWriteOptions& options = {});
// Writes a whole file, atomically.
SafetensorsSummary save_safetensors(const std::string& path, std::span<const TensorData> tensors,
                                    const SafetensorsWriteOptions& options = {});

}  // namespace athanor
