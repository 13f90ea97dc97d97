// A model in a GGUF file, for ModelFolder: its configuration from the file's keys, its weights as f32 with the names
// and in the order of Hugging Face files.
#pragma once
#include <string>
#include <vector>

#include "convert/gguf_names.h"
#include "convert/gguf_reader.h"

namespace athanor {

// The configuration that the keys describe. Keys that no supported family has, and RoPE frequencies given only as
// factors (rope_freqs.weight), are an Error(usage) naming them.
ModelConfig gguf_config(const GgufReader&);

class GgufWeights {
 public:
  explicit GgufWeights(const std::string& path)
      : file_(path), architecture_(file_.text("general.architecture").value_or("")) {}
  const GgufReader& file() const { return file_; }
  bool has(const std::string& name) const;
  // The shape of a tensor in Hugging Face's order.
  Shape shape_of(const std::string& name) const;
  // Throws an Error if the file has tensors that the model lacks.
  void require_no_others(const std::vector<ModelFolder::Weight>& weights) const;
  // Reads elements [begin, end) in row-major order as f32.
  void read_run(const ModelConfig&, const ModelFolder::Weight&, int64_t begin, int64_t end,
                std::vector<std::byte>& out) const;

 private:
  struct Place {
    const GgufReader::Stored* stored = nullptr;  // null: no such tensor
    int64_t first = 0, rows = 0;                 // rows of the tensor; for an expert, its part of the merged tensor
  };
  Place place_of(const std::string& name) const;

  // The two tensors of a kv_b_proj (LatentHeadNames).
  struct LatentHeads {
    const GgufReader::Stored *keys, *values;
    int64_t rows() const { return keys->columns() + values->shape[1]; }  // rows of kv_b_proj for each head
  };
  std::optional<LatentHeads> latent_heads(const std::string& name) const;  // nullopt: another tensor, or not there
  void read_latent_heads(const LatentHeads&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;

  GgufReader file_;
  std::string architecture_;
  mutable std::string transposed_name_;  // cache of one transposed matrix, since reading part of it needs all rows
  mutable std::vector<float> transposed_;
};

}  // namespace athanor
