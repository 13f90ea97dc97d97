// Reads safetensors files: the header is fully validated before any of it is trusted, tensors are spans of a mapping or
// are copied into the caller's buffers. Weights only: knows no model, converts nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace athanor {

using TextMap = std::map<std::string, std::string>;

// The dtype names of the format ("F32", "BF16", ...). Files may hold types that this program has no DType for.
const char* safetensors_name(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view name);

// One tensor of a file. Row-major; rank 0 and dimensions of 0 are legal.
struct TensorEntry {
  std::string name;
  std::string dtype;  // as in the file, always a known name
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of the first byte in the file
  int64_t bytes = 0;

  // Error naming the tensor if this program has no such DType, or no Shape of that rank.
  DType checked_dtype() const;
  Shape checked_shape() const;
};

struct SafetensorsHeader {
  int64_t json_bytes = 0;            // N, the value of the length field
  std::vector<TensorEntry> tensors;  // in the order of their data, which is contiguous and ends with the file
  TextMap metadata;

  int64_t data_begin() const { return 8 + json_bytes; }
};

// The two steps of reading a header; `where` names the file in errors. Hostile input ends in an Error, nothing else.
// Rules: those of the reference implementation, and stricter where it is silent (duplicate names, unknown fields).
int64_t parse_safetensors_length(std::span<const std::byte, 8> field, int64_t file_bytes, const std::string& where);
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t file_bytes, const std::string& where);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  const SafetensorsHeader& header() const { return header_; }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const TensorEntry* find(std::string_view name) const;  // nullptr if the file lacks it
  const TensorEntry& at(std::string_view name) const;    // Error if the file lacks it

  // The bytes in place. Only entries of this file; valid as long as this object.
  std::span<const std::byte> data(const TensorEntry& entry) const;
  // A copy by pread: a file that shrank or a failing disk is an Error, not a signal.
  void read(const TensorEntry& entry, std::span<std::byte> out) const;
  void read_part(const TensorEntry& entry, int64_t first_byte, std::span<std::byte> out) const;

 private:
  std::string path_;
  Fd file_;
  int64_t file_bytes_ = 0;
  SafetensorsHeader header_;
  std::vector<size_t> by_name_;  // positions in tensors(), sorted by name
  MappedFile mapping_;
};

}  // namespace athanor
