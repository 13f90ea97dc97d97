// Reads GGUF files, version 2 and 3: validates the whole header first, then reads tensors row by row as floats.
// Independent of models.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/file.h"
#include "convert/ggml_type.h"

namespace athanor {

class GgufReader {
 public:
  explicit GgufReader(const std::string& path);
  const std::string& path() const { return path_; }

  struct Stored {
    GgmlType type;
    std::vector<int64_t> shape;  // rows first
    int64_t offset;              // offset in the file
    int64_t rows() const;
    int64_t columns() const { return shape.back(); }
  };
  const std::map<std::string, Stored>& tensors() const { return tensors_; }

  // Value of a key; arrays are skipped. Returns nullopt if the key is absent; throws an Error naming it if it has
  // another type.
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;

  // Reads rows [begin, end).
  void read_rows(const Stored&, int64_t begin, int64_t end, std::vector<float>& out) const;

 private:
  std::string path_;
  Fd file_;
  std::map<std::string, std::variant<double, std::string>> pairs_;
  std::map<std::string, Stored> tensors_;
};

// True if the path ends with the suffix of GGUF files and is not a folder.
bool is_gguf_file(const std::string& path);

}  // namespace athanor
