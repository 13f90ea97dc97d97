// A model in a GGUF file, as ModelFolder reads it: its shape from the file's keys, its weights as f32 under the names
// and in the order of Hugging Face's files.
#pragma once
#include <string>
#include <vector>

#include "convert/gguf_names.h"
#include "convert/gguf_reader.h"

namespace athanor {

// The shape that the keys describe. Keys that no family here has, and frequencies of RoPE that only factors describe
// (rope_freqs.weight), are an Error(usage) naming them.
ModelConfig gguf_config(const GgufReader&);

class GgufWeights {
 public:
  explicit GgufWeights(const std::string& path) : file_(path) {}
  const GgufReader& file() const { return file_; }
  bool has(const std::string& name) const { return place_of(name).stored != nullptr; }
  // The shape of a tensor in Hugging Face's order.
  Shape shape_of(const std::string& name) const;
  // An Error if there are tensors besides those of the model.
  void require_no_others(const std::vector<ModelFolder::Weight>& weights) const;
  // Elements [begin, end), counted row by row, as f32.
  void read_run(const ModelConfig&, const ModelFolder::Weight&, int64_t begin, int64_t end,
                std::vector<std::byte>& out) const;

 private:
  struct Place {
    const GgufReader::Stored* stored = nullptr;  // null: there is no such tensor
    int64_t first = 0, rows = 0;                 // rows of it, those of one expert where it has all
  };
  Place place_of(const std::string& name) const;

  GgufReader file_;
  mutable std::string transposed_name_;  // of the matrix that is held, since runs of it need all rows
  mutable std::vector<float> transposed_;
};

}  // namespace athanor
