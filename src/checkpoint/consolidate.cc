#include "checkpoint/store.h"

#include <algorithm>

#include "checkpoint/weights.h"

namespace athanor {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

// Wraps a tensor of a weight file; its data is read only while it is written.
CheckpointTensor tensor_of(const std::string& name, const WeightFiles::Place& place) {
  TensorData data = {
      .name = name, .dtype = place.entry->checked_dtype(), .shape = place.entry->checked_shape(), .pieces = {}};
  data.make = [place](const ByteSink& sink) {
    std::vector<std::byte> bytes(size_t(place.entry->bytes));
    place.file->read(*place.entry, bytes);
    sink(bytes);
  };
  return {std::move(data), std::nullopt};
}

}  // namespace

std::string consolidate_checkpoint(const std::string& folder, const std::string& root) {
  const Verification from = verify_checkpoint(folder, Depth::checksums);
  if (!from.ok) throw Error(cat(folder, ": damaged: ", from.problem));
  // The checkpoint written last is the newest of a folder: a run would return to this step.
  for (const CheckpointInfo& there : list_checkpoints(root))
    if (there.step >= from.manifest.step)
      throw Error(
          cat("checkpoint consolidate: ", root, " has ", step_folder(there.step),
              " already, and a run would go back from it to step ", from.manifest.step, ": give another save folder"),
          Exit::usage);
  const RunLock lock(root);
  CheckpointWriter writer(lock, from.manifest.step,
                          {.program_version = from.manifest.program_version,
                           .program_commit = from.manifest.program_commit,
                           .config_hash = from.manifest.config_hash,
                           .data_fingerprint = from.manifest.data_fingerprint});
  for (const std::string stem : {"model", "optimizer"}) {
    const auto is_of_stem = [&](const ManifestFile& file) { return file.name.starts_with(stem); };
    if (std::ranges::none_of(from.manifest.files, is_of_stem)) continue;  // an optimizer may keep no state
    const WeightFiles files(folder, stem);
    std::vector<CheckpointTensor> tensors;
    for (const auto& [name, place] : files.tensors()) tensors.push_back(tensor_of(name, place));
    writer.add_safetensors(stem + ".safetensors", tensors);
  }
  for (const ManifestFile& file : from.manifest.files)
    if (file.name.find(".safetensors") == std::string::npos)
      writer.add_text(file.name, read_file(cat(folder, "/", file.name), kMaxTextBytes));
  return writer.commit();
}

}  // namespace athanor
