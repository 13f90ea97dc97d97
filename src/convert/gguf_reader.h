// Reads GGUF files, version 2 and 3: validates the whole header first, then tensors row by row as floats. Knows no
// model.
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
    int64_t offset;              // in the file
    int64_t rows() const;
    int64_t columns() const { return shape.back(); }
  };
  const std::map<std::string, Stored>& tensors() const { return tensors_; }

  // Values of keys; arrays are skipped. Absent: nullopt; of another kind: an Error naming the key.
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;

  // Rows [begin, end).
  void read_rows(const Stored&, int64_t begin, int64_t end, std::vector<float>& out) const;

 private:
  std::string path_;
  Fd file_;
  std::map<std::string, std::variant<double, std::string>> pairs_;
  std::map<std::string, Stored> tensors_;
};

// Whether a path names a GGUF file: it ends so and is no folder.
bool is_gguf_file(const std::string& path);

}  // namespace athanor
