// Weights of a ModelFolder whose run uses 2:4 sparsity: its checkpoints have dense master weights.
#include <bit>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "config/config.h"
#include "config/stored_option.h"
#include "convert/floats.h"
#include "convert/model_folder.h"
#include "ops/two_of_four.h"

namespace athanor {

// Marks the matrices that the checkpoint's own config.resolved.json prunes by SR-STE.
void ModelFolder::find_two_of_four() {
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string path = cat(path_, "/config.resolved.json");
  if (std::error_code none; !std::filesystem::exists(path, none)) return;
  const Json run = parse_json(read_file(path, kMostBytes), path);
  const Json *method = stored_option(run, "pruning.method"), *sparsity = stored_option(run, "pruning.sparsity"),
             *exclude = stored_option(run, "pruning.exclude");
  if (!method || method->text != "srste" || !sparsity || sparsity->real == 0) return;
  std::vector<std::string> excluded;
  for (size_t i = 0; exclude && i < exclude->items.size(); ++i) excluded.push_back(exclude->items[i].text);
  for (Weight& w : weights_) w.two_of_four = w.role == Role::matrix && !matches_any(excluded, w.name);
}

// Reads whole groups of four around the elements.
void ModelFolder::read_two_of_four(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  Weight dense = w;
  dense.two_of_four = false;
  const int64_t first = begin / kSparseGroup * kSparseGroup, last = round_up(end, kSparseGroup);
  const auto size = size_of(w.dtype);
  std::vector<std::byte> bytes;
  read_unchecked(dense, first, last, bytes);
  std::vector<float> values;
  to_floats(bytes, w.dtype, values);
  for (size_t at = 0; at < values.size(); at += kSparseGroup) {
    uint32_t magnitudes[kSparseGroup];
    for (size_t i = 0; i < kSparseGroup; ++i) magnitudes[i] = bf16_magnitude(std::bit_cast<uint32_t>(values[at + i]));
    for (size_t i = 0; i < kSparseGroup; ++i)
      if (!is_kept(magnitudes, int(i))) std::memset(bytes.data() + (at + i) * size, 0, size);
  }
  const auto from = bytes.begin() + std::ptrdiff_t(size_t(begin - first) * size);
  out.assign(from, from + std::ptrdiff_t(size_t(end - begin) * size));
}

}  // namespace athanor
