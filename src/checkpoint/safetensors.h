// Reads safetensors files: validates the whole header first; tensors are spans of a mapping or are copied into the
// caller's buffers. Independent of models; converts nothing.
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

// The format's dtype names ("F32", "BF16", ...). A file may contain dtypes that this program does not support.
const char* safetensors_name(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view name);

// One tensor of a file. Row-major; rank 0 and dimensions of 0 are legal.
struct TensorEntry {
  std::string name;
  std::string dtype;  // as in the file, always a known name
  std::vector<int64_t> shape;
  int64_t offset = 0;  // offset of the first byte in the file
  int64_t bytes = 0;

  // Throws an Error naming the tensor if this program has no such DType, or no Shape of that rank.
  DType checked_dtype() const;
  Shape checked_shape() const;
};

struct SafetensorsHeader {
  int64_t json_bytes = 0;            // N, the value of the length field
  std::vector<TensorEntry> tensors;  // in the order of their data, which is contiguous and ends with the file
  TextMap metadata;

  int64_t data_begin() const { return 8 + json_bytes; }
};

// The two steps of reading a header; `where` names the file in errors. Malformed input always ends in an Error. Rules
// are those of the reference implementation, stricter where it is silent (duplicate names, unknown fields).
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

  // Returns a tensor's bytes in the mapping. The entry must be of this file; valid while this object lives.
  std::span<const std::byte> data(const TensorEntry& entry) const;
  // Copies by pread: if the file shrank or the disk fails, this throws an Error where the mapping would raise a signal.
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
