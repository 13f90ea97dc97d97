// Writes models as folders that transformers opens: config.json, model.safetensors or shards with their index, and the
// tokenizer's files as they are.
#pragma once
#include <optional>
#include <string>

#include "checkpoint/store.h"
#include "convert/gptq_file.h"
#include "convert/model_folder.h"
#include "convert/sparsity.h"

namespace athanor {

struct HfFolderOptions {
  std::optional<DType> dtype;            // absent: each tensor keeps its own
  std::optional<CodeBlocks> codes = {};  // linear layers of blocks in FP8; not for GPT-2
  std::optional<IntGroups> ints = {};    // linear layers of blocks in packed integers; not for GPT-2
  std::optional<GptqExport> gptq = {};   // linear layers of blocks in GPTQ's format; not for GPT-2
  std::optional<bool> nested_nf4 = {};   // linear layers of blocks in NF4, with nested absmaxes or not; not for GPT-2
  std::optional<PrunedExport> pruned = {};  // linear layers of blocks with zeros
  int64_t max_shard_bytes = 5'000'000'000;  // as save_pretrained
  bool manifest = false;                    // with sizes and checksums of all files, as checkpoints have
  CheckpointOptions checkpoint = {};        // for the manifest
};

// `out` must not exist; it is there as a whole or not at all. Returns the bytes of the weights.
int64_t write_hf_folder(const ModelFolder& model, const std::string& out, const HfFolderOptions& options);

}  // namespace athanor
