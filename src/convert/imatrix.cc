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
  const auto add = [&file](const std::string& name, const std::vector<float>& values) {
    const auto columns = int64_t(values.size());
    file.add({.name = name, .type = GgmlType::f32, .shape = {1, columns}, .make = [values](const ByteSink& sink) {
                sink(std::as_bytes(std::span(values)));
              }});
  };
  for (const auto& [name, squares] : importance) {
    add(gguf_name(name) + ".in_sum2", {squares.sums.begin(), squares.sums.end()});
    add(gguf_name(name) + ".counts", {float(squares.tokens)});
  }
  file.write(path);
}

}  // namespace athanor
