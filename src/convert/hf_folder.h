// Writes models as folders that transformers can load: config.json, model.safetensors or shards with their index, and
// copies of the tokenizer's files.
#pragma once
#include <optional>
#include <string>

#include "checkpoint/store.h"
#include "convert/gptq.h"
#include "convert/model_folder.h"
#include "convert/sparsity.h"

namespace athanor {

struct HfFolderOptions {
  std::optional<DType> dtype;               // absent: each tensor keeps its dtype
  std::optional<Fp8Blocks> fp8 = {};        // linear layers of blocks in FP8; not for GPT-2
  std::optional<IntGroups> ints = {};       // linear layers of blocks in packed integers; not for GPT-2
  std::optional<GptqExport> gptq = {};      // linear layers of blocks in GPTQ's format; not for GPT-2
  std::optional<bool> nested_nf4 = {};      // linear layers of blocks in NF4, true: with nested absmaxes; not for GPT-2
  std::optional<PrunedExport> pruned = {};  // linear layers of blocks, pruned
  int64_t max_shard_bytes = 5'000'000'000;  // as in save_pretrained
  bool manifest = false;                    // write a manifest with sizes and checksums of all files
  CheckpointOptions checkpoint = {};        // for the manifest
};

// `out` must not exist; it is created atomically. Returns the size of the weights in bytes.
int64_t write_hf_folder(const ModelFolder& model, const std::string& out, const HfFolderOptions& options);

// The folder whose tokenizer is the model's: its own, or for adapters without a tokenizer that of their base.
std::string tokenizer_folder(const ModelFolder&);

}  // namespace athanor
