#include "convert/imatrix.h"

#include "base/int.h"
#include "convert/gguf_file.h"
#include "convert/gguf_names.h"

namespace athanor {

void write_imatrix(const Importance& importance, const ImatrixSource& source, const std::string& path) {
  GgufFile file;
  file.set("general.type", "imatrix");
  file.set("imatrix.datasets", source.datasets);
  file.set("imatrix.chunk_count", narrow<uint32_t>(source.windows));
  file.set("imatrix.chunk_size", narrow<uint32_t>(source.window_tokens));
  // Experts of a layer are one tensor: their sums one after another.
  std::map<std::string, std::map<int64_t, const InputSquares*>> tensors;
  for (const auto& [name, squares] : importance) {
    if (latent_head_names(name)) continue;  // no tensor has these inputs: llama.cpp's deepseek2 reads others
    const auto expert = expert_name(name);
    // The architecture changes names of norms alone.
    tensors[expert ? expert->merged : gguf_name(name, "")][expert ? expert->number : 0] = &squares;
  }
  for (const auto& tensor : tensors) {
    const std::string& name = tensor.first;
    const auto& parts = tensor.second;
    std::vector<float> sums, counts;
    for (const auto& [number, squares] : parts) {
      sums.insert(sums.end(), squares->sums.begin(), squares->sums.end());
      counts.push_back(float(squares->tokens));
    }
    const auto add = [&](const std::string& suffix, const std::vector<float>& values) {
      const auto count = int64_t(parts.size());
      file.add({.name = name + suffix,
                .type = GgmlType::f32,
                .shape = {count, int64_t(values.size()) / count},
                .make = [values](const ByteSink& sink) { sink(std::as_bytes(std::span(values))); }});
    };
    add(".in_sum2", sums);
    add(".counts", counts);
  }
  file.write(path);
}

}  // namespace athanor
